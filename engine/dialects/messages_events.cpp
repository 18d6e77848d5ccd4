// Messages answers: recipe.md 6.2.
#include "dialects/argument_stream.h"
#include "dialects/error_body.h"
#include "dialects/events.h"

namespace deepinfer::dialects::messages {
namespace {

using text::FinishReason;
using text::JsonValue;
using text::ParserEvent;

JsonValue usage_object(const TokenUsage& usage) {
  JsonValue object = JsonValue::object({{"input_tokens", usage.prompt - usage.cached},
                                        {"cache_creation_input_tokens", 0},
                                        {"cache_read_input_tokens", usage.cached},
                                        {"output_tokens", usage.completion},
                                        {"service_tier", "standard"}});
  if (usage.unrestored > 0) object.set("unrestored_tokens", usage.unrestored);
  return object;
}

std::string_view stop_word(const text::ParserOutcome& outcome) {
  if (outcome.stop) return "stop_sequence";
  switch (outcome.finish) {
    case FinishReason::kLength: return "max_tokens";
    case FinishReason::kToolCalls: return "tool_use";
    case FinishReason::kContentFilter: return "refusal";
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kOverloaded:
    case FinishReason::kAborted: break;
  }
  return "end_turn";
}

// Exactly one block is open at a time; indices are dense from 0.
class Writer : public AnswerWriter {
 public:
  Writer(const Request& request, AnswerIdentity identity, text::Profile profile)
      : request_(request), identity_(std::move(identity)), profile_(profile) {}

  void begin(const TokenUsage& usage, std::vector<SseFrame>& frames) override {
    JsonValue message = envelope();
    message.set("usage", usage_object({.prompt = usage.prompt, .cached = usage.cached}));
    add({{"type", "message_start"}, {"message", std::move(message)}}, frames);
    // The package opens the thinking block before anything is thought; ours when the first byte comes.
    if (package() && request_.conversation.thinking) open(Block::kThinking, frames);
  }

  void push(std::span<const ParserEvent> events, std::vector<SseFrame>& frames) override {
    for (const ParserEvent& event : events) {
      switch (event.kind) {
        case ParserEvent::Kind::kReasoning:
          if (block_ != Block::kThinking) open(Block::kThinking, frames);
          reasoning_ += event.text;
          add_delta({{"type", "thinking_delta"}, {"thinking", event.text}}, frames);
          break;
        case ParserEvent::Kind::kContent:
          if (block_ != Block::kText) open(Block::kText, frames);
          text_ += event.text;
          add_delta({{"type", "text_delta"}, {"text", event.text}}, frames);
          break;
        case ParserEvent::Kind::kCallStart:
          call_name_ = event.text;
          call_id_ = identity_.call_id(calls_++);
          open(Block::kTool, frames);
          break;
        case ParserEvent::Kind::kArguments:
          arguments_ += event.text;
          add_arguments(event.text, frames);
          break;
      }
    }
  }

  void finish(const text::ParserOutcome& outcome, const TokenUsage& usage, std::int64_t,
              std::vector<SseFrame>& frames) override {
    close(frames);
    stop_reason_ = stop_word(outcome);
    if (outcome.stop) stop_sequence_ = request_.stops[*outcome.stop];
    usage_ = usage;
    add({{"type", "message_delta"},
         {"delta", JsonValue::object({{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}})},
         {"usage", usage_object(usage)}},
        frames);
    add({{"type", "message_stop"}}, frames);
  }

  void fail(const RequestError& error, std::vector<SseFrame>& frames) override {
    frames.push_back(
        {"error", error_body(error, Dialect::kMessages, text::Profile::kOurs, identity_.request_id)});
  }

  JsonValue body() const override {
    JsonValue message = envelope();
    message.set("content", blocks_);
    message.set("stop_reason", stop_reason_);
    message.set("stop_sequence", stop_sequence_);
    message.set("usage", usage_object(usage_));
    return message;
  }

 private:
  enum class Block { kNone, kThinking, kText, kTool };

  bool package() const { return profile_ == text::Profile::kPackage; }

  JsonValue envelope() const {
    return JsonValue::object({{"id", identity_.id},
                              {"type", "message"},
                              {"role", "assistant"},
                              {"model", identity_.model},
                              {"content", JsonValue::array()},
                              {"stop_reason", nullptr},
                              {"stop_sequence", nullptr}});
  }

  static void add(std::initializer_list<std::pair<std::string_view, JsonValue>> members,
                  std::vector<SseFrame>& frames) {
    const JsonValue event = JsonValue::object(members);
    frames.push_back({event.find("type")->text(), write_json(event)});
  }

  void add_delta(std::initializer_list<std::pair<std::string_view, JsonValue>> members,
                 std::vector<SseFrame>& frames) const {
    add({{"type", "content_block_delta"}, {"index", index_}, {"delta", JsonValue::object(members)}}, frames);
  }

  void add_arguments(const std::string& text, std::vector<SseFrame>& frames) {
    const auto add_piece = [&](const std::string& piece) {
      add_delta({{"type", "input_json_delta"}, {"partial_json", piece}}, frames);
    };
    if (!package()) return add_piece(text);
    for (const std::string& piece : cutter_.push(text))
      add_piece(piece);
  }

  JsonValue block_start(Block block) const {
    if (block == Block::kThinking)
      return JsonValue::object({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    if (block == Block::kText) return JsonValue::object({{"type", "text"}, {"text", ""}});
    return JsonValue::object(
        {{"type", "tool_use"}, {"id", call_id_}, {"name", call_name_}, {"input", JsonValue::object()}});
  }

  void open(Block block, std::vector<SseFrame>& frames) {
    close(frames);
    block_ = block;
    index_ = blocks_.size();
    cutter_ = ArgumentCutter();
    // Kept while it is open: a later call's name and id must not change it.
    open_block_ = block_start(block);
    add({{"type", "content_block_start"}, {"index", index_}, {"content_block", open_block_}}, frames);
    if (index_ == 0) add({{"type", "ping"}}, frames);
  }

  void close(std::vector<SseFrame>& frames) {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) {
      const std::string signature = identity_.sign ? identity_.sign(reasoning_) : identity_.id;
      add_delta({{"type", "signature_delta"}, {"signature", signature}}, frames);
      open_block_.set("thinking", std::move(reasoning_));
      open_block_.set("signature", signature);
    } else if (block_ == Block::kText) {
      open_block_.set("text", std::move(text_));
    } else {
      // Arguments cut off by the limit are no JSON: the block then shows none.
      auto input = text::read_json(arguments_);
      if (input.ok()) open_block_.set("input", std::move(input).value());
    }
    reasoning_.clear();
    text_.clear();
    arguments_.clear();
    blocks_.push(std::move(open_block_));
    add({{"type", "content_block_stop"}, {"index", index_}}, frames);
    block_ = Block::kNone;
  }

  const Request& request_;
  AnswerIdentity identity_;
  text::Profile profile_;
  Block block_ = Block::kNone;
  std::size_t index_ = 0;
  JsonValue open_block_;
  JsonValue blocks_ = JsonValue::array();
  std::string reasoning_, text_, arguments_, call_name_, call_id_;
  std::size_t calls_ = 0;
  ArgumentCutter cutter_;
  JsonValue stop_reason_, stop_sequence_;
  TokenUsage usage_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_answer_writer(const Request& request, AnswerIdentity identity,
                                                 text::Profile profile) {
  return std::make_unique<Writer>(request, std::move(identity), profile);
}

}  // namespace deepinfer::dialects::messages
