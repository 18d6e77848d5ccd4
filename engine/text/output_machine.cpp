#include "text/output_machine.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::text {
namespace {

// Longest closing tag of a call, behind its control id.
constexpr std::size_t kMostClosing = 8;

// Longest tag that is waited for; a tag without an end must not swallow the output.
constexpr std::size_t kMostTagBytes = 4096;

bool is_blank(Symbol symbol) {
  return symbol == ' ' || symbol == '\t' || symbol == '\n' || symbol == '\r';
}

// Whether a tag's inside, behind the key, says string="true". Read from its end: what stands before may be damaged.
ArgumentsBuilder::Kind kind_of(std::string_view inside) {
  const std::size_t last = inside.find_last_not_of(" \t\r\n\"'");
  inside = inside.substr(0, last == std::string_view::npos ? 0 : last + 1);
  return inside.ends_with("true") ? ArgumentsBuilder::Kind::kString : ArgumentsBuilder::Kind::kJson;
}

}  // namespace

OutputMachine::OutputMachine(const Tokenizer& tokenizer, ParserOptions options)
    : options_(std::move(options)),
      dsml_(tokenizer.token_bytes(tokenizer.control().dsml)),
      end_think_(tokenizer.token_bytes(tokenizer.control().end_think)) {
  if (options_.profile == ParserProfile::kOurs) {
    for (const ParserTool& tool : options_.tools) {
      schemas_.emplace_back(tool.name, ArgumentSchema::from_json(tool.parameters));
    }
  }
  for (int state = 0; state <= static_cast<int>(State::kDone); ++state) {
    by_state_.push_back(branches_of(static_cast<State>(state)));
  }
  switch (options_.start) {
    case ParserStart::kReasoning: enter(State::kThink, true); break;
    case ParserStart::kReasoningContinuation: enter(State::kThink); break;
    case ParserStart::kContent: enter(State::kAnswer, true); break;
    case ParserStart::kContentContinuation: enter(State::kAnswer); break;
    case ParserStart::kCalls: enter(State::kCalls); break;
  }
}

void OutputMachine::add_stops(Branches& branches) const {
  for (std::size_t i = 0; i < options_.stops.size(); ++i) {
    if (!options_.stops[i].empty())
      branches.push_back({Found::kStop, SymbolMatcher(byte_pattern(to_valid_utf8(options_.stops[i]))), i});
  }
}

void OutputMachine::add_calls_openers(Branches& branches) const {
  if (options_.tools_enabled) {
    branches.push_back({Found::kCalls, SymbolMatcher(pattern("<\1"), true)});
  } else if (options_.profile == ParserProfile::kOurs && !options_.surface_stray_calls) {
    for (const char* opener : {"<\1 calls>", "<\1tool_calls>", "<\1 invoke ", "<\1invoke "}) {
      branches.push_back({Found::kSkip, SymbolMatcher(pattern(opener), true)});
    }
  }
}

OutputMachine::Branches OutputMachine::branches_of(State state) const {
  Branches branches;
  const auto add = [&](Found found, std::string_view text) {
    branches.push_back({found, SymbolMatcher(pattern(text))});
  };
  switch (state) {
    case State::kThink:
      if (options_.stop_in_reasoning) add_stops(branches);
      branches.push_back({Found::kEndThink, SymbolMatcher(pattern("\2"), true)});
      add_calls_openers(branches);
      break;
    case State::kAnswer:
      add_stops(branches);
      if (options_.raw) break;
      add_calls_openers(branches);
      add(Found::kStrayEndThink, "\2");
      if (options_.json_mode) {
        add(Found::kJson, "{");
        add(Found::kJson, "[");
        add(Found::kFence, "```\n");
        add(Found::kFence, "```json\n");
      }
      break;
    case State::kJson:
      add_stops(branches);
      add_calls_openers(branches);
      add(Found::kStrayEndThink, "\2");
      add(Found::kFenceEnd, "\n```");
      break;
    case State::kJsonTail:
      add_calls_openers(branches);
      add(Found::kStrayEndThink, "\2");
      break;
    case State::kCalls:
      for (const char* tag : {"<\1 invoke", "<\1invoke"})
        add(Found::kInvokeTag, tag);
      add(Found::kInvokeName, "invoke name=\"");
      for (const char* tag : {"</\1 calls>", "</\1tool_calls>"})
        add(Found::kCallsEnd, tag);
      break;
    case State::kArguments:
      for (const char* tag : {"<\1 parameter", "<\1parameter"})
        add(Found::kParameterTag, tag);
      add(Found::kParameterName, "parameter name=");
      add(Found::kCallEnd, "</\1");
      break;
    case State::kValue:
      if (options_.profile == ParserProfile::kPackage) {
        add(Found::kValueEnd, "</\1");
        break;
      }
      for (const char* tag : {"</\1 parameter>", "</\1parameter>"})
        add(Found::kValueEnd, tag);
      for (const char* tag : {"</\1 invoke>", "</\1invoke>"})
        add(Found::kValueEndCall, tag);
      for (const char* tag : {"</\1 calls>", "</\1tool_calls>"})
        add(Found::kValueEndCalls, tag);
      break;
    case State::kSkip:
      for (const char* tag : {"</\1 calls>", "</\1tool_calls>"})
        add(Found::kSkipEnd, tag);
      add(Found::kEndThink, "\2");
      break;
    default: break;
  }
  return branches;
}

OutputMachine::Branches& OutputMachine::branches() {
  return by_state_[static_cast<std::size_t>(state_)];
}

void OutputMachine::enter(State state, bool lead) {
  flush_run();
  state_ = state;
  lead_ = lead;
  tag_.clear();
  outside_json_ = in_json_string_ = json_escape_ = false;
  drop_held();
}

void OutputMachine::begin_push(std::vector<ParserEvent>& events) {
  events_ = &events;
  events_from_ = events.size();
}

void OutputMachine::end_push() {
  flush_run();
  drop_empty_delta();
  events_ = nullptr;
}

void OutputMachine::feed(Symbol symbol) {
  if (record_ != Record::kOff) record(symbol);
  if (symbol >= 256) {
    end_character();
    return take(symbol);
  }
  if (symbol < 0x80 && character_.empty()) return take(symbol);
  character_tokens_[character_.size()] = token_;
  character_ += static_cast<char>(symbol);
  while (!character_.empty()) {
    const Utf8Step step = read_utf8(character_);
    if (step.kind == Utf8Kind::kIncomplete) return;
    take_character(step);
  }
}

void OutputMachine::end_character() {
  if (!character_.empty())
    take_character({0, static_cast<std::uint8_t>(character_.size()), Utf8Kind::kInvalid});
}

void OutputMachine::take_character(const Utf8Step& step) {
  const std::string bytes =
      step.kind == Utf8Kind::kValid ? character_.substr(0, step.size) : std::string(kReplacement);
  const auto tokens = character_tokens_;
  character_.erase(0, step.size);
  std::copy(tokens.begin() + step.size, tokens.end(), character_tokens_.begin());
  // An invalid subpart has no more bytes than its replacement, so each of its ids has a part in what is shown.
  const std::size_t present = token_;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    token_ = tokens[std::min<std::size_t>(i, step.size - 1U)];
    take(static_cast<unsigned char>(bytes[i]));
  }
  token_ = present;
}

void OutputMachine::take(Symbol symbol) {
  switch (state_) {
    case State::kInvokeTag:
    case State::kParameterTag: return feed_tag(symbol);
    case State::kName:
      if (symbol != '"') return append_spelling(symbol, tag_);
      start_call(tag_);
      return enter(State::kArguments);
    case State::kKeyStart:
    case State::kKey: return feed_key(symbol);
    case State::kKind: return feed_kind(symbol);
    case State::kDone: return;
    default: return feed_text(symbol);
  }
}

void OutputMachine::feed_text(Symbol symbol) {
  if (lead_ && symbol == '\n') return;
  lead_ = false;
  held_.push_back(symbol);
  held_tokens_.push_back(token_);
  std::size_t hold = 0;
  const bool inside_json_string = in_json_string_;
  if (state_ == State::kJson) {
    if (in_json_string_ && symbol == '\\' && !json_escape_) {
      json_escape_ = true;
    } else {
      if (symbol == '"' && !json_escape_) in_json_string_ = !in_json_string_;
      json_escape_ = false;
    }
  }
  for (Branch& branch : branches()) {
    if (branch.found == Found::kFenceEnd && inside_json_string) {
      branch.matcher.reset();
      continue;
    }
    if (branch.matcher.feed(symbol)) {
      if (branch.found == Found::kStop && token_ < options_.min_tokens) {
        branch.matcher.reset();
        continue;
      }
      release(held_.size() - held_from_ - branch.matcher.length());
      return found(branch, symbol);
    }
    hold = std::max(hold, branch.matcher.length());
  }
  release(held_.size() - held_from_ - hold);
}

void OutputMachine::found(const Branch& branch, Symbol symbol) {
  switch (branch.found) {
    case Found::kStop:
      stop_ = branch.index;
      if (options_.include_stop) release(held_.size() - held_from_);
      return enter(State::kDone);
    case Found::kEndThink:
      if (thinking()) return enter(State::kAnswer, true);
      return drop_held();
    case Found::kStrayEndThink: ++repairs_; return drop_held();
    case Found::kCalls: return enter(State::kCalls);
    case Found::kSkip:
      ++repairs_;
      skip_origin_ = state_;
      return enter(State::kSkip);
    case Found::kSkipEnd: return enter(skip_origin_);
    case Found::kJson:
      enter(State::kJson);
      run_ += static_cast<char>(symbol);
      show(token_);
      return;
    case Found::kFence: return enter(State::kJson);
    case Found::kFenceEnd: return enter(State::kJsonTail);
    case Found::kInvokeName: return enter(State::kName);
    case Found::kInvokeTag:
      recorded_.assign(held_.begin() + static_cast<std::ptrdiff_t>(held_from_), held_.end());
      record_ = Record::kOn;
      return enter(State::kInvokeTag);
    case Found::kCallsEnd: return enter(State::kDone);
    case Found::kParameterName:
      arguments_->begin_parameter(delta(ParserEvent::Kind::kArguments));
      return enter(State::kKeyStart);
    case Found::kParameterTag: return enter(State::kParameterTag);
    case Found::kCallEnd:
      end_call();
      if (record_ == Record::kOn) record_ = Record::kClosing;
      closing_from_ = recorded_.size();
      return enter(State::kCalls);
    case Found::kValueEnd:
    case Found::kValueEndCall:
    case Found::kValueEndCalls: {
      const Found what = branch.found;
      flush_run();
      arguments_->end_value(delta(ParserEvent::Kind::kArguments));
      if (what != Found::kValueEnd) end_call();
      if (what == Found::kValueEndCall && record_ == Record::kOn) keep_record();
      if (what != Found::kValueEnd) record_ = Record::kOff;
      return enter(what == Found::kValueEnd       ? State::kArguments
                   : what == Found::kValueEndCall ? State::kCalls
                                                  : State::kDone);
    }
  }
}

void OutputMachine::drop_held() {
  held_.clear();
  held_tokens_.clear();
  held_from_ = 0;
  for (Branch& branch : branches())
    branch.matcher.reset();
}

void OutputMachine::release(std::size_t count) {
  const std::size_t end = held_from_ + count;
  const bool outside = state_ == State::kJsonTail || (state_ == State::kAnswer && options_.json_mode);
  const bool shown = state_ == State::kThink || state_ == State::kAnswer || state_ == State::kJson ||
                     state_ == State::kValue;
  if (outside) {
    if (count != 0 && !outside_json_) {
      run_ += ' ';
      outside_json_ = true;
    }
  } else if (shown) {
    for (std::size_t i = held_from_; i < end; ++i) {
      append_spelling(held_[i], run_);
      if (state_ != State::kValue) show(held_tokens_[i]);
    }
  }
  held_from_ = end;
  if (held_from_ == held_.size()) {
    held_.clear();
    held_tokens_.clear();
    held_from_ = 0;
  }
}

void OutputMachine::show(std::size_t token) {
  if (token < shown_to_) return;
  shown_to_ = token + 1;
  shown_.push_back(
      {token, state_ == State::kThink ? ParserEvent::Kind::kReasoning : ParserEvent::Kind::kContent});
}

void OutputMachine::take_shown(std::vector<ShownToken>& tokens) {
  tokens.insert(tokens.end(), shown_.begin(), shown_.end());
  shown_.clear();
}

void OutputMachine::append_spelling(Symbol symbol, std::string& text) const {
  if (symbol == kDsmlSymbol) {
    text += dsml_;
  } else if (symbol == kEndThinkSymbol) {
    text += end_think_;
  } else {
    text += static_cast<char>(symbol);
  }
}

// Behind "invoke" or "parameter": the template's form at once, any other form when the tag has ended.
void OutputMachine::feed_tag(Symbol symbol) {
  const bool invoke = state_ == State::kInvokeTag;
  if (symbol >= 256) {
    const bool closing = tag_.ends_with("</"), opening = tag_.ends_with('<');
    ++repairs_;
    enter(invoke ? State::kCalls : State::kArguments);
    return feed_mark(closing || opening, closing, symbol);
  }
  if (symbol == '>') return invoke ? end_invoke_tag() : end_parameter_tag();
  tag_ += static_cast<char>(symbol);
  if (invoke && tag_ == " name=\"") return enter(State::kName);
  if (!invoke && tag_ == " name=") {
    arguments_->begin_parameter(delta(ParserEvent::Kind::kArguments));
    return enter(State::kKeyStart);
  }
  if (tag_.size() > kMostTagBytes) {
    ++repairs_;
    enter(invoke ? State::kCalls : State::kArguments);
  }
}

// A control id inside a tag ends it: with the "<" or "</" before it, it begins the next one.
void OutputMachine::feed_mark(bool opening, bool closing, Symbol symbol) {
  record_ = Record::kOff;
  if (opening) take('<');
  if (closing) take('/');
  take(symbol);
}

void OutputMachine::end_invoke_tag() {
  const auto attributes = TagAttributes::parse(tag_);
  const auto name = attributes ? attributes->find("name") : std::nullopt;
  ++repairs_;
  if (!name) return enter(State::kCalls);
  start_call(*name);
  enter(State::kArguments);
}

void OutputMachine::end_parameter_tag() {
  const auto attributes = TagAttributes::parse(tag_);
  const auto name = attributes ? attributes->find("name") : std::nullopt;
  ++repairs_;
  if (!name) return enter(State::kArguments);
  std::string& out = delta(ParserEvent::Kind::kArguments);
  arguments_->begin_parameter(out);
  arguments_->key(*name, out);
  arguments_->after_key(out);
  begin_value(attributes->find("string") == "true" ? ArgumentsBuilder::Kind::kString
                                                   : ArgumentsBuilder::Kind::kJson);
}

void OutputMachine::feed_key(Symbol symbol) {
  if (state_ == State::kKeyStart) {
    if (is_blank(symbol)) return;
    state_ = State::kKey;
    key_quote_ = symbol == '"' || symbol == '\'' ? static_cast<char>(symbol) : '\0';
    if (key_quote_ != 0) return;
    ++repairs_;
  }
  const bool ends =
      key_quote_ != 0 ? symbol == static_cast<Symbol>(key_quote_) : is_blank(symbol) || symbol == '>';
  if (!ends) return append_spelling(symbol, tag_);
  arguments_->key(tag_, delta(ParserEvent::Kind::kArguments));
  enter(State::kKind);
  if (key_quote_ == 0) feed_kind(symbol);
}

void OutputMachine::feed_kind(Symbol symbol) {
  if (tag_.empty()) arguments_->after_key(delta(ParserEvent::Kind::kArguments));
  if (symbol == '>') return begin_value(kind_of(tag_));
  if (symbol == kDsmlSymbol && tag_.ends_with("</")) {  // the value's end without its begin
    begin_value(ArgumentsBuilder::Kind::kJson);
    return feed_mark(true, true, symbol);
  }
  if (symbol == kDsmlSymbol && tag_.ends_with('<')) {  // the next tag
    arguments_->no_value(delta(ParserEvent::Kind::kArguments));
    enter(State::kArguments);
    return feed_mark(true, false, symbol);
  }
  append_spelling(symbol, tag_);
  if (tag_.size() <= kMostTagBytes) return;
  ++repairs_;
  const std::string inside = tag_;
  begin_value(ArgumentsBuilder::Kind::kJson);
  run_ += inside;
}

void OutputMachine::begin_value(ArgumentsBuilder::Kind kind) {
  arguments_->begin_value(kind, delta(ParserEvent::Kind::kArguments));
  enter(State::kValue);
}

void OutputMachine::start_call(std::string_view name) {
  ++call_;
  written_.emplace_back();
  std::string text = to_valid_utf8(name);
  drop_empty_delta();
  const auto schema =
      std::find_if(schemas_.begin(), schemas_.end(), [&](const auto& pair) { return pair.first == text; });
  events_->push_back({ParserEvent::Kind::kCallStart, call_, std::move(text)});
  arguments_.emplace(schema == schemas_.end() ? nullptr : &schema->second);
}

// A closing tag ends in kCalls, where the rest of it counts as text between calls.
void OutputMachine::record(Symbol symbol) {
  recorded_.push_back(symbol);
  if (record_ != Record::kClosing) return;
  if (symbol != '>' && recorded_.size() - closing_from_ < kMostClosing) return;
  const auto closes = [&](std::string_view tag) {
    return std::equal(recorded_.begin() + static_cast<std::ptrdiff_t>(closing_from_), recorded_.end(),
                      tag.begin(), tag.end());
  };
  if (closes(" invoke>") || closes("invoke>")) keep_record();
  record_ = Record::kOff;
}

void OutputMachine::keep_record() {
  std::vector<PromptPiece> pieces;
  for (const Symbol symbol : recorded_) {
    const bool special = symbol == kDsmlSymbol || symbol == kEndThinkSymbol;
    if (special || pieces.empty() || pieces.back().special) pieces.push_back({special, {}});
    append_spelling(symbol, pieces.back().bytes);
  }
  // Bytes that are no text would not be encoded to what they were.
  const bool exact = std::all_of(pieces.begin(), pieces.end(), [](const PromptPiece& piece) {
    return to_valid_utf8(piece.bytes) == piece.bytes;
  });
  if (exact) written_[static_cast<std::size_t>(call_)] = std::move(pieces);
}

void OutputMachine::end_call() {
  arguments_->close(delta(ParserEvent::Kind::kArguments));
  repairs_ += arguments_->repairs();
  arguments_.reset();
}

// A closing tag of the value that the end of output cut short still ends the value.
bool OutputMachine::finish_held_value() {
  constexpr std::size_t kClosingMark = 3;  // "<", "/", the control id
  for (const Branch& branch : branches()) {
    if (branch.matcher.matched() < kClosingMark) continue;
    release(held_.size() - held_from_ - branch.matcher.length());
    flush_run();
    arguments_->end_value(delta(ParserEvent::Kind::kArguments));
    enter(State::kArguments);
    return true;
  }
  return false;
}

bool OutputMachine::finish(bool complete) {
  if (state_ != State::kValue || !finish_held_value()) release(held_.size() - held_from_);
  flush_run();
  const bool open = arguments_.has_value();
  if (open && complete) {
    end_call();
  } else if (open) {
    const bool in_key = state_ == State::kKey;
    arguments_->cut(in_key ? tag_ : "", in_key && key_quote_ != 0, delta(ParserEvent::Kind::kArguments));
  }
  enter(State::kDone);
  return !open;
}

void OutputMachine::flush_run() {
  if (run_.empty()) return;
  if (state_ == State::kValue) {
    arguments_->value(run_, delta(ParserEvent::Kind::kArguments));
  } else {
    delta(state_ == State::kThink ? ParserEvent::Kind::kReasoning : ParserEvent::Kind::kContent) += run_;
  }
  run_.clear();
}

// The text of the newest event of this push, if it is of this kind, else of a new one.
std::string& OutputMachine::delta(ParserEvent::Kind kind) {
  const int call = kind == ParserEvent::Kind::kArguments ? call_ : -1;
  const bool same =
      events_->size() > events_from_ && events_->back().kind == kind && events_->back().call == call;
  if (!same) {
    drop_empty_delta();
    events_->push_back({kind, call, {}});
  }
  return events_->back().text;
}

void OutputMachine::drop_empty_delta() {
  if (events_->size() > events_from_ && events_->back().kind != ParserEvent::Kind::kCallStart &&
      events_->back().text.empty()) {
    events_->pop_back();
  }
}

}  // namespace deepinfer::text
