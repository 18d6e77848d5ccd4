// Responses answers: recipe.md 6.3.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "dialects/argument_stream.h"
#include "dialects/events.h"
#include "text/json_text.h"

namespace deepinfer::dialects::responses {
namespace {

using text::FinishReason;
using text::JsonValue;
using text::ParserEvent;

JsonValue usage_object(const TokenUsage& usage) {
  return JsonValue::object(
      {{"input_tokens", usage.prompt},
       {"input_tokens_details", cache_details(usage)},
       {"output_tokens", usage.completion},
       {"output_tokens_details", JsonValue::object({{"reasoning_tokens", usage.reasoning}})},
       {"total_tokens", usage.prompt + usage.completion}});
}

// Items come one after another; each is opened, filled and closed before the next.
class Writer : public AnswerWriter {
 public:
  Writer(const Request& request, AnswerIdentity identity, text::Profile profile)
      : request_(request), identity_(std::move(identity)), package_(profile == text::Profile::kPackage) {}

  void begin(const TokenUsage&, std::vector<SseFrame>& frames) override {
    add("response.created", {{"response", response()}}, frames);
    add("response.in_progress", {{"response", response()}}, frames);
  }

  // Parts of output text alone have a place for them: those of the reasoning are left out, as in the reference API.
  void add_tokens(std::span<const TokenLogprob> tokens) override {
    for (const TokenLogprob& token : tokens)
      if (!token.reasoning) tokens_.push_back(token);
  }

  void push(std::span<const ParserEvent> events, std::vector<SseFrame>& frames) override {
    for (const ParserEvent& event : events) {
      switch (event.kind) {
        case ParserEvent::Kind::kReasoning:
          if (item_ != Item::kReasoning) open_text(Item::kReasoning, frames);
          text_ += event.text;
          add_delta("response.reasoning_text.delta", event.text, frames);
          break;
        case ParserEvent::Kind::kContent:
          if (item_ != Item::kMessage) open_text(Item::kMessage, frames);
          text_ += event.text;
          add_text_delta(event.text, frames);
          break;
        case ParserEvent::Kind::kCallStart: open_call(event.text, frames); break;
        case ParserEvent::Kind::kArguments: arguments(event.text, frames); break;
      }
    }
  }

  void finish(const text::ParserOutcome& outcome, const TokenUsage& usage, std::int64_t finished,
              std::vector<SseFrame>& frames) override {
    const bool length = outcome.finish == FinishReason::kLength;
    const bool filter = outcome.finish == FinishReason::kContentFilter;
    const bool aborted = outcome.finish == FinishReason::kAborted;
    status_ = length || filter || aborted ? "incomplete" : "completed";
    close(status_, false, frames);
    completed_at_ = finished;
    usage_ = usage_object(usage);
    if (length) incomplete_ = JsonValue::object({{"reason", "max_output_tokens"}});
    if (filter) incomplete_ = JsonValue::object({{"reason", "content_filter"}});
    // A cancelled response ends its stream with an event that clients know, too.
    const std::string event = "response." + status_;
    if (aborted) status_ = "cancelled";
    add(event, {{"response", response()}}, frames);
  }

  void fail(const RequestError& error, std::vector<SseFrame>& frames) override {
    close("incomplete", false, frames);
    status_ = "failed";
    error_ = JsonValue::object({{"code", error.code}, {"message", error.message}});
    add("response.failed", {{"response", response()}}, frames);
  }

  JsonValue body() const override { return response(); }

 private:
  enum class Item { kNone, kReasoning, kMessage, kFunction, kCustom };

  JsonValue echo(std::string_view key) const {
    const JsonValue* value = request_.echo.find(key);
    return value == nullptr ? JsonValue() : *value;
  }

  JsonValue response() const {
    return JsonValue::object({{"id", identity_.id},
                              {"object", "response"},
                              {"created_at", identity_.created},
                              {"status", status_},
                              {"background", false},
                              {"completed_at", completed_at_},
                              {"content_filters", nullptr},
                              {"error", error_},
                              {"frequency_penalty", JsonValue::real(0)},
                              {"incomplete_details", incomplete_},
                              {"instructions", echo("instructions")},
                              {"max_output_tokens", echo("max_output_tokens")},
                              {"max_tool_calls", nullptr},
                              {"model", identity_.model},
                              {"moderation", nullptr},
                              {"output", output_},
                              {"parallel_tool_calls", request_.parallel_tool_calls},
                              {"presence_penalty", JsonValue::real(0)},
                              {"previous_response_id", echo("previous_response_id")},
                              {"prompt_cache_key", nullptr},
                              {"prompt_cache_retention", nullptr},
                              {"reasoning", echo("reasoning")},
                              {"safety_identifier", nullptr},
                              {"service_tier", "default"},
                              {"store", request_.store},
                              {"temperature", echo("temperature")},
                              {"text", echo("text")},
                              {"tool_choice", echo("tool_choice")},
                              {"tools", echo("tools")},
                              {"top_logprobs", echo("top_logprobs")},
                              {"top_p", echo("top_p")},
                              {"truncation", "disabled"},
                              {"usage", usage_},
                              {"user", echo("user")},
                              {"metadata", echo("metadata")}});
  }

  void add(const std::string& type, std::initializer_list<std::pair<std::string_view, JsonValue>> members,
           std::vector<SseFrame>& frames) {
    JsonValue event = JsonValue::object({{"type", type}});
    for (const auto& [key, value] : members)
      event.set(key, value);
    event.set("sequence_number", sequence_++);
    frames.push_back({type, write_json(event)});
  }

  std::size_t index() const { return output_.size(); }
  std::string item_id(std::string_view prefix) const {
    return fmt::format("{}_{}_{}", prefix, identity_.id, index());
  }

  // Item and content part of the text that is open.
  JsonValue text_item(std::string_view status, JsonValue content) const {
    if (item_ == Item::kReasoning) {
      return JsonValue::object({{"type", "reasoning"},
                                {"id", open_id_},
                                {"status", status},
                                {"content", std::move(content)},
                                {"summary", JsonValue::array()},
                                {"encrypted_content", fmt::format("{}-{}", identity_.id, index())}});
    }
    return JsonValue::object({{"type", "message"},
                              {"id", open_id_},
                              {"status", status},
                              {"role", "assistant"},
                              {"phase", "final_answer"},
                              {"content", std::move(content)}});
  }

  JsonValue text_part(const std::string& text) const {
    if (item_ == Item::kReasoning) return JsonValue::object({{"type", "reasoning_text"}, {"text", text}});
    return JsonValue::object({{"type", "output_text"},
                              {"annotations", JsonValue::array()},
                              {"logprobs", text.empty() ? JsonValue::array() : logprob_list(tokens_)},
                              {"text", text}});
  }

  void open_text(Item item, std::vector<SseFrame>& frames) {
    close("completed", false, frames);
    item_ = item;
    open_id_ = item_id(item == Item::kReasoning ? "rs" : "msg");
    text_.clear();
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(tokens_sent_));
    tokens_sent_ = 0;
    add("response.output_item.added",
        {{"item", text_item("in_progress", JsonValue::array())}, {"output_index", index()}}, frames);
    add("response.content_part.added",
        {{"content_index", 0}, {"item_id", open_id_}, {"output_index", index()}, {"part", text_part("")}},
        frames);
  }

  // Members of an event that brings text of the open item, as its delta or as a whole.
  JsonValue text_event(std::string_view type, std::string_view key, const std::string& text,
                       std::span<const TokenLogprob> tokens) const {
    JsonValue event = JsonValue::object({{"type", type}});
    if (item_ == Item::kReasoning || item_ == Item::kMessage) event.set("content_index", 0);
    event.set(key, text);
    event.set("item_id", open_id_);
    if (item_ == Item::kMessage) event.set("logprobs", logprob_list(tokens));
    event.set("output_index", index());
    return event;
  }

  // The whole text of the open item.
  void add_whole(std::string_view type, std::string_view key, std::vector<SseFrame>& frames) {
    JsonValue event = text_event(type, key, text_, tokens_);
    event.set("sequence_number", sequence_++);
    frames.push_back({std::string(type), write_json(event)});
  }

  void add_text_delta(const std::string& text, std::vector<SseFrame>& frames) {
    constexpr std::string_view kType = "response.output_text.delta";
    if (!request_.sampling.logprobs) return add_delta(kType, text, frames);
    JsonValue event = text_event(kType, "delta", text, std::span(tokens_).subspan(tokens_sent_));
    tokens_sent_ = tokens_.size();
    event.set("sequence_number", sequence_++);
    frames.push_back({std::string(kType), write_json(event)});
  }

  // Most events of a stream are deltas, and those of an item differ in their text and number alone; what is around these
  // is written once.
  void add_delta(std::string_view type, std::string_view text, std::vector<SseFrame>& frames) {
    if (before_delta_.empty()) {
      constexpr std::string_view kPlace = R"("here")";  // no string of JSON has bare quotes in it
      const std::string all = write_json(text_event(type, "delta", "here", {}));
      const std::size_t place = all.find(kPlace);
      before_delta_ = all.substr(0, place);
      after_delta_ = all.substr(place + kPlace.size());
      after_delta_.back() = ',';  // in place of the brace that closes the event
      after_delta_ += R"("sequence_number":)";
    }
    SseFrame& frame = frames.emplace_back();
    frame.name = type;
    frame.data.reserve(before_delta_.size() + after_delta_.size() + 64);
    frame.data = before_delta_;
    frame.data += '"';
    text::append_json_escaped(text, frame.data);
    frame.data += '"';
    frame.data += after_delta_;
    fmt::format_to(std::back_inserter(frame.data), "{}}}", sequence_++);
  }

  JsonValue call_item(std::string_view status) const {
    if (item_ == Item::kCustom) {
      JsonValue item = JsonValue::object({{"type", "custom_tool_call"},
                                          {"id", open_id_},
                                          {"status", status},
                                          {"call_id", call_id_},
                                          {"name", call_name_}});
      if (!call_space_.empty()) item.set("namespace", call_space_);
      item.set("input", text_);
      return item;
    }
    JsonValue item = JsonValue::object({{"type", "function_call"},
                                        {"id", open_id_},
                                        {"status", status},
                                        {"call_id", call_id_},
                                        {"name", call_name_}});
    if (!call_space_.empty()) item.set("namespace", call_space_);
    item.set("arguments", text_);
    return item;
  }

  void open_call(const std::string& name, std::vector<SseFrame>& frames) {
    close("completed", true, frames);
    const auto& customs = request_.custom_tools;
    const bool custom = std::find(customs.begin(), customs.end(), name) != customs.end();
    item_ = custom ? Item::kCustom : Item::kFunction;
    open_id_ = item_id(custom ? "ctc" : "fc");
    call_id_ = identity_.call_id(calls_++);
    call_name_ = name;
    call_space_.clear();
    for (const NamespacedTool& tool : request_.namespaces) {
      if (tool.name != name) continue;
      call_name_ = tool.local;
      call_space_ = tool.space;
    }
    text_.clear();
    cutter_ = ArgumentCutter();
    decoder_ = InputDecoder();
    add("response.output_item.added", {{"item", call_item("in_progress")}, {"output_index", index()}},
        frames);
  }

  void arguments(const std::string& text, std::vector<SseFrame>& frames) {
    const bool custom = item_ == Item::kCustom;
    const auto add_piece = [&](const std::string& piece) {
      text_ += piece;
      add_delta(custom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta",
                piece, frames);
    };
    if (custom) {
      std::string input;
      decoder_.push(text, input);
      if (!input.empty()) add_piece(input);
    } else if (!package_) {
      add_piece(text);
    } else {
      for (const std::string& piece : cutter_.push(text))
        add_piece(piece);
    }
  }

  void close(const std::string& status, bool call_follows, std::vector<SseFrame>& frames) {
    JsonValue done;
    switch (item_) {
      case Item::kNone: return;
      case Item::kReasoning:
      case Item::kMessage: {
        const bool reasoning = item_ == Item::kReasoning;
        add_whole(reasoning ? "response.reasoning_text.done" : "response.output_text.done", "text", frames);
        add("response.content_part.done",
            {{"content_index", 0},
             {"item_id", open_id_},
             {"output_index", index()},
             {"part", text_part(text_)}},
            frames);
        done = text_item(status, JsonValue::array({text_part(text_)}));
        if (!reasoning && call_follows) done.set("phase", "commentary");
        break;
      }
      case Item::kFunction:
        add_whole("response.function_call_arguments.done", "arguments", frames);
        done = call_item(status);
        break;
      case Item::kCustom:
        add_whole("response.custom_tool_call_input.done", "input", frames);
        done = call_item(status);
        break;
    }
    add("response.output_item.done", {{"item", done}, {"output_index", index()}}, frames);
    output_.push(std::move(done));
    item_ = Item::kNone;
    before_delta_.clear();  // of the next item: another id and number
  }

  const Request& request_;
  AnswerIdentity identity_;
  bool package_;
  std::uint64_t sequence_ = 0;
  Item item_ = Item::kNone;
  std::string open_id_, text_, call_id_, call_name_, call_space_;
  std::string before_delta_, after_delta_;  // of the open item
  std::vector<TokenLogprob> tokens_;        // of the open message
  std::size_t tokens_sent_ = 0;             // of these: in a delta
  std::size_t calls_ = 0;
  ArgumentCutter cutter_;
  InputDecoder decoder_;
  JsonValue output_ = JsonValue::array();
  std::string status_ = "in_progress";
  JsonValue completed_at_, error_, incomplete_, usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile) {
  return std::make_unique<Writer>(request, std::move(identity), profile);
}

}  // namespace deepinfer::dialects::responses
