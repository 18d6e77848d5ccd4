// What the dialects make of a request body: a conversation, or a bare prompt, and how to continue it, or a rejection.
// recipe.md sections 2 and 7. No sockets here: bodies in, values out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/conversation.h"
#include "text/encoding.h"
#include "text/json_value.h"

namespace deepinfer::dialects {

enum class Dialect : std::uint8_t { kChat, kResponses, kMessages, kCompletions };
std::optional<Dialect> dialect_from_name(
    std::string_view name);  // of a conversation: chat, responses, messages

// A rejection. `status`, `type`, `param` and `code` are what a client acts on; bodies: error_body.h.
struct RequestError {
  enum class Kind : std::uint8_t {
    kShape,     // not JSON, or a field of a wrong type
    kSemantic,  // well formed, but not a request that can be served
  };
  Kind kind = Kind::kSemantic;
  int status = 400;
  std::string type = "invalid_request_error";
  std::optional<std::string> param;
  std::string code = "invalid_request_error";
  std::string message;
};

// A value, or the rejection of the request it was to come from.
template <class T>
class [[nodiscard]] Parsed {
 public:
  Parsed(T value) : value_(std::move(value)) {}             // NOLINT(google-explicit-constructor)
  Parsed(RequestError error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const RequestError& error() const { return error_; }

 private:
  std::optional<T> value_;
  RequestError error_;
};

struct ModelName {
  std::string name;
  text::ModelVersion version = text::ModelVersion::kV41;
};

inline constexpr std::uint32_t kMaxTokensBound = 393216;

// What the server decides before it reads a body.
struct RequestContext {
  text::Profile profile = text::Profile::kOurs;
  std::vector<ModelName> models;  // accepted names; the first also stands for any name when any_model is set
  bool any_model = false;
  bool default_thinking = true;
  bool reject_missing_reasoning = false;  // 400 for a tool-calling turn without its reasoning (recipe.md 3.6)
  bool reject_image_spelling = false;     // 400 for a text that spells the image placeholder (4.3)
  bool drop_billing_header = true;        // a leading system block that changes with every request (10.1)
  // Responses: input and output items, one list, of the stored response that a request goes on from. Unset: the request is
  // read as if it named none, for tools that have no server behind them.
  std::function<Parsed<text::JsonValue>(const std::string& id)> earlier_items;
  // Responses: the item of a stored response that an item_reference names. Unset: references leave nothing, likewise.
  std::function<Parsed<text::JsonValue>(const std::string& id)> stored_item;
  bool store_responses = false;
  std::uint32_t thinking_max_tokens = kMaxTokensBound;
  std::uint32_t chat_max_tokens = kMaxTokensBound;
};

// Sampling and limits as the request has them; unset ones are decided by resolve_max_tokens and the sampler.
struct SamplingOptions {
  std::optional<std::uint32_t> max_tokens;
  double temperature = 1;
  double top_p = 1;
  std::optional<std::uint32_t> top_k;
  double min_p = 0;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  double repetition_penalty = 1;
  std::optional<std::uint64_t> seed;  // below 2^63
  bool logprobs = false;
  std::optional<std::uint32_t> top_logprobs;  // 0..20
  std::uint32_t choices = 1;                  // n
  std::uint32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids;
  std::vector<std::pair<std::int32_t, double>> logit_bias;
  std::optional<std::uint64_t> thinking_budget;  // most ids of reasoning
};

// What constrained decoding should hold the answer to.
struct OutputConstraint {
  enum class Kind : std::uint8_t { kJson, kRegex, kToolCall, kToolCallRequired };
  Kind kind = Kind::kJson;
  std::string text;  // schema or "" for any JSON; the expression; a JSON list of function tools
};
std::string_view constraint_kind_name(
    OutputConstraint::Kind kind);  // json, regex, tool_call, tool_call_required

// A function that a client knows by a namespace and a local name.
struct NamespacedTool {
  std::string name;  // in the prompt
  std::string space;
  std::string local;
};

// A prompt of Completions: text, or the caller's own ids.
struct CompletionPrompt {
  std::string text;
  std::optional<std::vector<std::int32_t>> ids;
};

// What Completions has in place of a conversation. recipe.md 3.9
struct CompletionOptions {
  std::vector<CompletionPrompt> prompts;  // at least one; each gets SamplingOptions::choices answers
  std::optional<std::string> suffix;      // fill in the middle
  bool echo = false;                      // an answer begins with its prompt
  std::uint32_t best_of = 1;   // answers made for each prompt, of which the best are given; >= choices
  bool read_specials = false;  // spellings of control tokens in prompts count as these tokens
  bool add_bos = true;
};

struct Request {
  Dialect dialect = Dialect::kChat;
  std::string model;
  text::ModelVersion version = text::ModelVersion::kV41;
  text::Conversation conversation;
  CompletionOptions completion;  // Completions, whose conversation is empty
  SamplingOptions sampling;
  std::optional<OutputConstraint> constraint;
  std::vector<std::string> stops;
  bool stream = false;
  bool include_usage = false;  // Chat, Completions: a usage chunk at the end of the stream
  bool parallel_tool_calls = true;
  std::vector<NamespacedTool> namespaces;  // Responses
  std::vector<std::string> custom_tools;   // Responses: functions that stand for free-form tools
  text::JsonValue echo;                    // Responses: settings that the response repeats
  bool store = false;                      // Responses: the client wants to come back to it
  text::JsonValue input_items;             // Responses, with store: the whole input as a list of items
  std::string user;                        // caller's id: cache and rate key
};

// Parser options of a rendered request, its tools' schemas included.
text::ParserOptions parser_options(const Request& request, const text::RenderedPrompt& prompt,
                                   text::Profile profile);

// Reads a body. The error carries the status; nothing else of the request has happened then.
Parsed<Request> parse_request(Dialect dialect, std::string_view body, const RequestContext& context);

namespace chat {
Parsed<Request> parse_request(std::string_view body, const RequestContext& context);
}
namespace completions {
Parsed<Request> parse_request(std::string_view body, const RequestContext& context);
}
namespace responses {
Parsed<Request> parse_request(std::string_view body, const RequestContext& context);
}
namespace messages {
Parsed<Request> parse_request(std::string_view body, const RequestContext& context);
}

}  // namespace deepinfer::dialects
