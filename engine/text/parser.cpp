#include "text/parser.h"

#include <algorithm>

#include "base/check.h"
#include "text/output_machine.h"

namespace deepinfer::text {
namespace {

// Text mode: turns the spellings of the two structural tokens into their symbols.
class TextMarkers {
 public:
  TextMarkers(std::string_view end_think, std::string_view dsml)
      : end_think_(byte_pattern(end_think)), dsml_(byte_pattern(dsml)) {}

  template <class Feed>
  void push(std::string_view bytes, const Feed& feed) {
    for (const char c : bytes) {
      const auto symbol = static_cast<Symbol>(static_cast<unsigned char>(c));
      held_ += c;
      const bool end_think = end_think_.feed(symbol), dsml = dsml_.feed(symbol);
      if (end_think || dsml) {
        release(held_.size() - (end_think ? end_think_ : dsml_).length(), feed);
        held_.clear();
        end_think_.reset();
        dsml_.reset();
        feed(end_think ? kEndThinkSymbol : kDsmlSymbol);
      } else {
        release(held_.size() - std::max(end_think_.length(), dsml_.length()), feed);
      }
    }
  }
  template <class Feed>
  void finish(const Feed& feed) {
    release(held_.size(), feed);
  }

 private:
  template <class Feed>
  void release(std::size_t count, const Feed& feed) {
    for (std::size_t i = 0; i < count; ++i)
      feed(static_cast<Symbol>(static_cast<unsigned char>(held_[i])));
    held_.erase(0, count);
  }

  SymbolMatcher end_think_, dsml_;
  std::string held_;  // at most the longer spelling
};

}  // namespace

class OutputParser::Machine {
 public:
  Machine(const Tokenizer& tokenizer, ParserOptions options)
      : tokenizer_(tokenizer),
        match_text_(options.match_text),
        ignore_eos_(options.ignore_eos),
        stop_ids_(options.stop_ids),
        markers_(tokenizer.token_bytes(tokenizer.control().end_think),
                 tokenizer.token_bytes(tokenizer.control().dsml)),
        machine_(tokenizer, std::move(options)) {
    const ControlIds& control = tokenizer.control();
    for (const TokenId id : {control.end_of_sentence, control.begin_of_sentence, control.user, control.system,
                             control.assistant, control.latest_reminder}) {
      if (id != kNoToken) eos_ids_.push_back(id);
    }
  }

  void push(std::span<const TokenId> ids, std::vector<ParserEvent>& events) {
    machine_.begin_push(events);
    for (const TokenId id : ids) {
      if (ended()) break;
      machine_.begin_token(outcome_.completion_tokens);
      count(1);
      take(id);
    }
    machine_.end_push();
  }

  void push_text(std::string_view bytes, std::size_t tokens, std::vector<ParserEvent>& events) {
    if (ended()) return;
    machine_.begin_push(events);
    machine_.begin_token(outcome_.completion_tokens);
    count(tokens);
    push_marked(bytes);
    machine_.end_push();
  }

  ParserOutcome finish(FinishReason reason, std::vector<ParserEvent>& events) {
    machine_.begin_push(events);
    if (!ended()) markers_.finish([&](Symbol symbol) { machine_.feed(symbol); });
    machine_.end_character();
    if (stop_id_ || machine_.stop()) reason = FinishReason::kStop;
    const bool complete = reason == FinishReason::kStop || reason == FinishReason::kNone;
    outcome_.open_call = !machine_.finish(complete);
    machine_.end_push();
    outcome_.finish = reason == FinishReason::kNone ? FinishReason::kStop : reason;
    if (reason == FinishReason::kStop && !machine_.stop() && machine_.calls() > 0)
      outcome_.finish = FinishReason::kToolCalls;
    outcome_.stop = machine_.stop();
    outcome_.stop_id = stop_id_;
    outcome_.repairs = machine_.repairs() + dropped_ids_;
    return outcome_;
  }

  bool ended() const { return stop_id_.has_value() || machine_.done(); }
  void take_shown(std::vector<ShownToken>& tokens) { machine_.take_shown(tokens); }
  const std::vector<std::vector<PromptPiece>>& written_calls() const { return machine_.written_calls(); }

 private:
  void count(std::size_t tokens) {
    outcome_.completion_tokens += tokens;
    if (machine_.thinking()) outcome_.reasoning_tokens += tokens;
  }

  void push_marked(std::string_view bytes) {
    markers_.push(bytes, [&](Symbol symbol) { machine_.feed(symbol); });
  }

  void take(TokenId id) {
    const auto in = [id](const std::vector<TokenId>& ids) {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    const bool eos = in(eos_ids_);
    if (in(stop_ids_) || (eos && !ignore_eos_)) {
      stop_id_ = id;
      return;
    }
    if (eos) return;
    if (tokenizer_.is_placeholder(id)) {
      ++dropped_ids_;
      return;
    }
    if (match_text_) return push_marked(tokenizer_.token_bytes(id));
    if (id == tokenizer_.control().end_think) return machine_.feed(kEndThinkSymbol);
    if (id == tokenizer_.control().dsml) return machine_.feed(kDsmlSymbol);
    for (const char c : tokenizer_.token_bytes(id))
      machine_.feed(static_cast<unsigned char>(c));
  }

  const Tokenizer& tokenizer_;
  bool match_text_, ignore_eos_;
  std::vector<TokenId> stop_ids_, eos_ids_;
  TextMarkers markers_;
  OutputMachine machine_;
  ParserOutcome outcome_;
  std::optional<TokenId> stop_id_;
  std::size_t dropped_ids_ = 0;
};

OutputParser::OutputParser(const Tokenizer& tokenizer, ParserOptions options)
    : machine_(std::make_unique<Machine>(tokenizer, std::move(options))) {}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

void OutputParser::push(std::span<const TokenId> ids, std::vector<ParserEvent>& events) {
  machine_->push(ids, events);
}
void OutputParser::push_text(std::string_view bytes, std::size_t tokens, std::vector<ParserEvent>& events) {
  machine_->push_text(bytes, tokens, events);
}
ParserOutcome OutputParser::finish(FinishReason reason, std::vector<ParserEvent>& events) {
  return machine_->finish(reason, events);
}
void OutputParser::take_shown(std::vector<ShownToken>& tokens) {
  machine_->take_shown(tokens);
}
const std::vector<std::vector<PromptPiece>>& OutputParser::written_calls() const {
  return machine_->written_calls();
}
bool OutputParser::ended() const {
  return machine_->ended();
}

void accumulate(std::span<const ParserEvent> events, ParsedOutput& output) {
  for (const ParserEvent& event : events) {
    switch (event.kind) {
      case ParserEvent::Kind::kReasoning: output.reasoning += event.text; break;
      case ParserEvent::Kind::kContent: output.content += event.text; break;
      case ParserEvent::Kind::kCallStart: output.calls.push_back({event.text, {}, {}}); break;
      case ParserEvent::Kind::kArguments:
        DI_CHECK(static_cast<std::size_t>(event.call) < output.calls.size());
        output.calls[static_cast<std::size_t>(event.call)].arguments += event.text;
        break;
    }
  }
}

ParsedOutput parse_output(const Tokenizer& tokenizer, const ParserOptions& options,
                          std::span<const TokenId> ids, FinishReason reason) {
  ParsedOutput output;
  std::vector<ParserEvent> events;
  OutputParser parser(tokenizer, options);
  parser.push(ids, events);
  output.outcome = parser.finish(reason, events);
  accumulate(events, output);
  for (std::size_t i = 0; i < output.calls.size(); ++i)
    output.calls[i].written = parser.written_calls()[i];
  return output;
}

}  // namespace deepinfer::text
