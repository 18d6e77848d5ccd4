// Model output to reasoning, content and tool calls, whole or streamed. recipe.md section 5.
//
// Works on ids: only the control ids </think> and ｜DSML｜ are structural, the same spelling written as ordinary
// tokens is content. Text mode (push_text, or ParserOptions::match_text) matches bytes instead, for backends that
// hand over text. What is emitted in total does not depend on how the input is cut into pushes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_piece.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

// Where generation starts, decided by the rendered prompt's end.
enum class ParserStart {
  kReasoning,              // after <think>: leading line feeds are dropped
  kReasoningContinuation,  // inside given reasoning: leading line feeds are kept
  kContent,                // after </think>: leading line feeds are dropped
  kContentContinuation,    // inside a given answer: leading line feeds are kept
  kCalls,                  // after a forced opener of the calls block
};

// kPackage follows deepseek-recipe 0.2.0 where recipe.md marks a rule OURS; its listed faults are copied by neither.
enum class ParserProfile { kOurs, kPackage };

// A tool of the request, as far as arguments are checked against it.
struct ParserTool {
  std::string name;        // as rendered in the prompt
  std::string parameters;  // JSON Schema text; empty or unusable text means no checks
};

struct ParserOptions {
  ParserStart start = ParserStart::kContent;
  bool raw = false;  // all of it is content, whatever it spells: only stop strings and stop ids act
  ParserProfile profile = ParserProfile::kOurs;
  bool tools_enabled = false;      // the prompt had a tools block
  bool json_mode = false;          // response_format json_object: fences and prose around it are dropped
  bool match_text = false;         // treat ids by their bytes: text mode
  bool stop_in_reasoning = false;  // stop strings end reasoning too (vLLM); 5.4
  bool include_stop = false;       // keep the matched stop string in the content; 5.4
  bool surface_stray_calls =
      false;  // DSML without tools stays in the content instead of being dropped; 5.3.9
  // At most kMaxStops, none empty (checked by the dialects). Looked for in the text as it is sent: where U+FFFD stands for
  // broken bytes, it counts as that character.
  std::vector<std::string> stops;
  std::vector<TokenId> stop_ids;  // besides EOS and the role tokens
  bool ignore_eos = false;        // EOS and the role tokens leave nothing and end nothing
  std::size_t min_tokens = 0;     // a stop string does not count if one of so many first ids completes it
  std::vector<ParserTool> tools;  // schemas for 5.3.1, 5.3.3, 5.3.4; may be empty with tools_enabled
};
inline constexpr std::size_t kMaxStops = 16;

enum class FinishReason {
  kNone,       // the backend ended without a reason; counts as kStop
  kStop,       // EOS, a stop id or a stop string
  kLength,     // token limit or context full
  kToolCalls,  // only in results: kStop and at least one call
  kContentFilter,
  kOverloaded,  // aborted by the server
  kAborted,     // aborted by the client
};

struct ParserEvent {
  enum class Kind {
    kReasoning,  // text to append to the reasoning
    kContent,    // text to append to the content
    kCallStart,  // text is the name of call number `call`, whole
    kArguments,  // text to append to the JSON arguments of call number `call`
  };
  Kind kind = Kind::kContent;
  int call = -1;
  std::string text;  // valid UTF-8, never empty except for kCallStart
};

// An id that became part of the text: its number among the ids taken, and whether that was reasoning or content.
struct ShownToken {
  std::size_t index = 0;
  ParserEvent::Kind kind = ParserEvent::Kind::kContent;
};

struct ParserOutcome {
  FinishReason finish = FinishReason::kStop;
  std::optional<std::size_t> stop;    // index in ParserOptions::stops of the one that matched
  std::optional<TokenId> stop_id;     // the id that ended generation: EOS, a role token or one of stop_ids
  std::size_t completion_tokens = 0;  // ids taken, the ending id included; ids after the end are not counted
  std::size_t reasoning_tokens = 0;   // ids up to and including </think>; 5.6
  bool open_call = false;             // output ended inside a call: its arguments are a prefix of JSON
  std::size_t repairs = 0;            // values, keys, tags that had to be corrected or dropped; for the log
};

// One per choice of a request: no globals. The tokenizer must outlive it.
class OutputParser {
 public:
  OutputParser(const Tokenizer& tokenizer, ParserOptions options);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  // Takes sampled ids and appends the events they complete. Neighbouring deltas of one kind are one event within a
  // push. Ids after the end (ended()) are ignored.
  void push(std::span<const TokenId> ids, std::vector<ParserEvent>& events);
  // The same for a piece of text that stands for `tokens` ids; markers are matched by bytes.
  void push_text(std::string_view bytes, std::size_t tokens, std::vector<ParserEvent>& events);
  // End of generation: flushes what was held and closes the books. Call once.
  ParserOutcome finish(FinishReason reason, std::vector<ParserEvent>& events);

  // Appends the ids that became reasoning or content since the last call: in order, each once, with the first of its
  // bytes that is sure to be shown (the last of a character may still be held back). Ids of markup, of calls and of stop
  // strings that are cut off never come.
  void take_shown(std::vector<ShownToken>& tokens);

  // ParsedCall::written of each call so far; events do not carry it.
  const std::vector<std::vector<PromptPiece>>& written_calls() const;

  // Nothing more can change: a stop id or stop string was seen, or the calls block closed. The engine may stop.
  bool ended() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

struct ParsedCall {
  std::string name;
  std::string arguments;  // JSON text of an object; a prefix of one if the outcome says open_call
  // As the model wrote it, from its opening tag to its closing one: what a prompt repeats to have the same bytes again.
  // Empty: it is not whole, or has tags that were mended.
  std::vector<PromptPiece> written;
};

struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> calls;
  ParserOutcome outcome;
};

// A whole output at once.
ParsedOutput parse_output(const Tokenizer& tokenizer, const ParserOptions& options,
                          std::span<const TokenId> ids, FinishReason reason);
// Adds events to a result, for callers that stream and keep the whole. ParsedCall::written stays empty.
void accumulate(std::span<const ParserEvent> events, ParsedOutput& output);

}  // namespace deepinfer::text
