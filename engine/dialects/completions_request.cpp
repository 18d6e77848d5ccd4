// Completions request bodies: recipe.md 3.9 and section 9.
#include <algorithm>

#include <fmt/format.h>

#include "dialects/common_request.h"

namespace deepinfer::dialects::completions {
namespace {

constexpr std::uint32_t kDefaultMaxTokens = 16;
constexpr std::uint64_t kMostLogprobs = 5;

class Reader {
 public:
  explicit Reader(const RequestContext& context) : context_(context) {
    request_.dialect = Dialect::kCompletions;
    request_.conversation.thinking = false;
  }

  Parsed<Request> read(std::string_view bytes) {
    const JsonValue body = read_body(bytes, context_, findings_, request_);
    if (!findings_.clean() && body.size() == 0) return findings_.error();
    prompts(body);
    completion().suffix = string_field(findings_, body, "suffix", "");
    completion().echo = bool_field(findings_, body, "echo", "").value_or(false);
    completion().read_specials = bool_field(findings_, body, "allow_special_tokens", "").value_or(false);
    completion().add_bos = bool_field(findings_, body, "add_special_tokens", "").value_or(true);
    read_sampling(body, context_, findings_, request_);
    read_penalties(body, findings_, request_);
    read_seed(body, findings_, request_);
    read_token_rules(body, findings_, request_);
    request_.sampling.max_tokens = kDefaultMaxTokens;
    read_max_tokens(body, "max_tokens", context_, findings_, request_);
    read_stream(body, findings_, request_);
    read_stops(body, findings_, request_);
    choices(body);
    logprobs(body);
    request_.user = read_caller(body);
    check_echo();
    if (!findings_.clean()) return findings_.error();
    return std::move(request_);
  }

 private:
  CompletionOptions& completion() { return request_.completion; }

  void fault(std::string_view param, std::string message) {
    RequestError error;
    error.param = std::string(param);
    error.message = std::move(message);
    findings_.add(std::move(error));
  }

  // A string, ids, or a list of either. Nothing at all is a prompt too: the model begins a document.
  void prompts(const JsonValue& body) {
    const JsonValue* value = given(body, "prompt");
    if (value == nullptr) {
      completion().prompts.emplace_back();
      return;
    }
    if (value->is_string()) {
      completion().prompts.push_back({value->text(), std::nullopt});
      return;
    }
    if (!value->is_array())
      return findings_.shape(
          "prompt: expected a string, a list of strings, a list of token ids or a list of these");
    if (value->size() == 0)
      return fault("prompt", "Invalid 'prompt': empty list. Expected at least one prompt.");
    if (value->items().front().is_number()) return ids(*value, "prompt");
    if (value->size() > kMostChoices)
      return fault("prompt", fmt::format("Invalid 'prompt': {} prompts, at most {} are taken.", value->size(),
                                         kMostChoices));
    for (std::size_t i = 0; i < value->size(); ++i) {
      const JsonValue& item = value->items()[i];
      const std::string path = index_path("prompt", i);
      if (item.is_string()) {
        completion().prompts.push_back({item.text(), std::nullopt});
      } else if (item.is_array()) {
        ids(item, path);
      } else {
        return findings_.shape(
            fmt::format("{}: expected a string or a list of token ids, got {}", path, type_name(item)));
      }
    }
  }

  void ids(const JsonValue& list, const std::string& path) {
    std::vector<std::int32_t> prompt;
    prompt.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const JsonValue& item = list.items()[i];
      const auto id = item.is_number() ? token_id(item.text()) : std::nullopt;
      if (!id) return findings_.shape(index_path(path, i) + ": expected a token id");
      prompt.push_back(*id);
    }
    completion().prompts.push_back({{}, std::move(prompt)});
  }

  void choices(const JsonValue& body) {
    const std::uint64_t n = unsigned_field(findings_, body, "n", "", 0xFFFFU).value_or(1);
    const std::uint64_t best_of = unsigned_field(findings_, body, "best_of", "", 0xFFFFU).value_or(n);
    if (n < 1 || n > kMostChoices)
      return fault("n", fmt::format("Invalid n value, the valid range of n is [1, {}]", kMostChoices));
    if (best_of < n || best_of > kMostChoices) {
      return fault("best_of",
                   fmt::format("Invalid best_of value, the valid range of best_of is [{}, {}]: from n on", n,
                               kMostChoices));
    }
    if (request_.stream && best_of > n)
      fault("best_of", "best_of above n cannot be streamed: the best answer is known when all have ended");
    const std::size_t all = completion().prompts.size() * static_cast<std::size_t>(best_of);
    if (all > kMostChoices) {
      fault("prompt",
            fmt::format("{} prompts with {} answers each are {} answers, at most {} are given to one request",
                        completion().prompts.size(), best_of, all, kMostChoices));
    }
    request_.sampling.choices = static_cast<std::uint32_t>(n);
    completion().best_of = static_cast<std::uint32_t>(best_of);
  }

  void logprobs(const JsonValue& body) {
    const auto top = unsigned_field(findings_, body, "logprobs", "", 255);
    if (!top) return;
    if (*top > kMostLogprobs)
      fault("logprobs",
            fmt::format("Invalid logprobs value, the valid range of logprobs is [0, {}]", kMostLogprobs));
    request_.sampling.logprobs = true;
    request_.sampling.top_logprobs = static_cast<std::uint32_t>(*top);
  }

  void check_echo() {
    if (!completion().echo) return;
    if (completion().suffix)
      fault("echo", "echo cannot be used with suffix: the prompt does not stand before the answer");
    // The text would need log-probabilities of the prompt's tokens too, which no step computes.
    if (request_.sampling.logprobs) fault("logprobs", "logprobs of an echoed prompt are not available yet");
  }

  const RequestContext& context_;
  Findings findings_;
  Request request_;
};

}  // namespace

Parsed<Request> parse_request(std::string_view body, const RequestContext& context) {
  return Reader(context).read(body);
}

}  // namespace deepinfer::dialects::completions
