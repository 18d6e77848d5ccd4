// The state machine behind OutputParser. recipe.md 5.2, names as in its table.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/arguments_builder.h"
#include "text/detokenizer.h"
#include "text/json_text.h"
#include "text/parser.h"
#include "text/symbol_matcher.h"
#include "text/tag_attributes.h"
#include "text/utf8.h"

namespace deepinfer::text {

// Takes symbols one at a time, so what it emits can not depend on how they were cut into pushes. Text states hold the
// longest suffix that can still become a marker and emit the rest at once. Bytes that are no UTF-8 count as U+FFFD from the
// start, so markers and stop strings are looked for in the text that the client sees.
class OutputMachine {
 public:
  OutputMachine(const Tokenizer& tokenizer, ParserOptions options);

  // Where events go until the next call; the machine merges neighbouring deltas of one kind behind `events`' present end.
  void begin_push(std::vector<ParserEvent>& events);
  void feed(Symbol symbol);
  // No more bytes come: what was fed of a character is all of it.
  void end_character();
  // The symbols fed from now on come from the id of this number.
  void begin_token(std::size_t index) { token_ = index; }
  // OutputParser: same name.
  void take_shown(std::vector<ShownToken>& tokens);
  // Sends what the fed symbols completed. Call at the end of every push.
  void end_push();
  // End of the output. `complete`: the model ended it itself, so an open call is closed instead of left a prefix.
  // False when a call was open.
  bool finish(bool complete);

  bool done() const { return state_ == State::kDone; }
  bool thinking() const {
    return state_ == State::kThink || (state_ == State::kSkip && skip_origin_ == State::kThink);
  }
  std::size_t calls() const { return static_cast<std::size_t>(call_) + 1; }
  std::optional<std::size_t> stop() const { return stop_; }
  // OutputParser: same name.
  const std::vector<std::vector<PromptPiece>>& written_calls() const { return written_; }
  std::size_t repairs() const { return repairs_ + (arguments_ ? arguments_->repairs() : 0); }

 private:
  enum class State {
    kThink,
    kAnswer,
    kJson,
    kJsonTail,
    kCalls,      // inside the block, between calls
    kInvokeTag,  // behind "<｜DSML｜ invoke"
    kName,
    kArguments,     // inside a call, between parameters
    kParameterTag,  // behind "<｜DSML｜ parameter"
    kKeyStart,      // behind "parameter name="
    kKey,
    kKind,  // behind the key, up to the end of the tag
    kValue,
    kSkip,  // a calls block in a request without tools (5.3.9)
    kDone,
  };
  enum class Found {
    kStop,
    kEndThink,
    kStrayEndThink,
    kCalls,
    kSkip,
    kSkipEnd,
    kJson,
    kFence,
    kFenceEnd,
    kInvokeName,
    kInvokeTag,
    kCallsEnd,
    kParameterName,
    kParameterTag,
    kCallEnd,
    kValueEnd,
    kValueEndCall,
    kValueEndCalls,
  };
  struct Branch {
    Found found;
    SymbolMatcher matcher;
    std::size_t index = 0;  // of the stop string
  };
  using Branches = std::vector<Branch>;  // earlier ones win

  Branches branches_of(State state) const;
  void add_stops(Branches& branches) const;
  void add_calls_openers(Branches& branches) const;

  void enter(State state, bool lead = false);
  Branches& branches();
  void take_character(const Utf8Step& step);  // the front of character_
  void take(Symbol symbol);                   // of a control id, or of valid UTF-8
  void feed_text(Symbol symbol);
  void feed_tag(Symbol symbol);
  void feed_key(Symbol symbol);
  void feed_kind(Symbol symbol);
  void found(const Branch& branch, Symbol symbol);
  void drop_held();                 // a marker was found or refuted nothing: start matching afresh
  void release(std::size_t count);  // the oldest held symbols are text
  void show(std::size_t token);     // a byte of it is reasoning or content
  void append_spelling(Symbol symbol, std::string& text) const;
  void feed_mark(bool opening, bool closing, Symbol symbol);
  void end_invoke_tag();
  void end_parameter_tag();
  void begin_value(ArgumentsBuilder::Kind kind);
  void start_call(std::string_view name);
  void end_call();
  void record(Symbol symbol);  // of a call, from its opening tag on
  void keep_record();          // it is whole
  bool finish_held_value();

  void flush_run();  // the run of bytes goes to the channel of the present state
  std::string& delta(ParserEvent::Kind kind);
  void drop_empty_delta();

  ParserOptions options_;
  std::string dsml_, end_think_;  // spellings
  std::vector<std::pair<std::string, ArgumentSchema>> schemas_;

  std::string character_;                             // bytes of an unfinished character
  std::array<std::size_t, 4> character_tokens_ = {};  // where each of them comes from
  State state_ = State::kAnswer;
  std::vector<Branches> by_state_;
  bool lead_ = false;         // line feeds are dropped until something else comes
  std::vector<Symbol> held_;  // may still become a marker; the front half may be released already
  std::size_t held_from_ = 0;
  std::vector<std::size_t> held_tokens_;  // where each held symbol comes from
  std::size_t token_ = 0;
  std::vector<ShownToken> shown_;  // not yet taken
  std::size_t shown_to_ = 0;       // ids below it have been shown, or never will be
  std::string run_;                // bytes for the present channel, not yet sent
  std::string tag_;                // inside of a tag, a name or a key
  char key_quote_ = 0;             // 0: unquoted
  bool outside_json_ = false;      // JSON mode: the space for the present run of outside text is sent
  bool in_json_string_ = false;
  bool json_escape_ = false;
  State skip_origin_ = State::kAnswer;

  int call_ = -1;
  std::optional<ArgumentsBuilder> arguments_;  // of the open call
  enum class Record { kOff, kOn, kClosing };
  Record record_ = Record::kOff;
  std::vector<Symbol> recorded_;
  std::size_t closing_from_ = 0;                   // in recorded_: behind "</" and the control id
  std::vector<std::vector<PromptPiece>> written_;  // by call
  std::optional<std::size_t> stop_;
  std::size_t repairs_ = 0;

  std::vector<ParserEvent>* events_ = nullptr;
  std::size_t events_from_ = 0;
};

}  // namespace deepinfer::text
