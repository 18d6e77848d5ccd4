#include "dialects/limits.h"

#include <algorithm>

#include <fmt/format.h>

namespace deepinfer::dialects {
namespace {

constexpr std::uint64_t kChatTokens = 8192;
constexpr std::uint64_t kThinkingTokens = 65536;
constexpr std::uint64_t kMaxEffortTokens = 131072;

RequestError overflow(const TokenLimits& limits, text::Profile profile) {
  const std::uint64_t asked = limits.max_tokens.value_or(0);
  RequestError error;
  if (profile == text::Profile::kOurs && limits.dialect == Dialect::kMessages) {
    error.message = fmt::format("prompt is too long: {} tokens > {} maximum", limits.prompt_tokens,
                                limits.context_limit - 1);
    error.code = "context_length_exceeded";
    return error;
  }
  error.message = fmt::format(
      "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
      "messages, {} in the "
      "completion). Please reduce the length of the messages or completion.",
      limits.context_limit, limits.prompt_tokens + asked, limits.prompt_tokens, asked);
  if (profile == text::Profile::kOurs) error.code = "context_length_exceeded";
  return error;
}

std::uint64_t default_tokens(const TokenLimits& limits) {
  if (!limits.thinking) return kChatTokens;
  const bool max = limits.effort && limits.effort->tier == text::Effort::Tier::kMax;
  return max ? kMaxEffortTokens : kThinkingTokens;
}

}  // namespace

Parsed<std::uint64_t> resolve_max_tokens(const TokenLimits& limits, text::Profile profile) {
  const std::uint64_t asked = limits.max_tokens.value_or(0);
  const bool package = profile == text::Profile::kPackage;
  if (package && limits.prompt_tokens + asked > limits.context_limit) return overflow(limits, profile);
  if (!package && limits.prompt_tokens >= limits.context_limit) return overflow(limits, profile);
  const std::uint64_t room = limits.context_limit - limits.prompt_tokens;
  const std::uint64_t wanted = limits.max_tokens ? asked : default_tokens(limits);
  return std::max<std::uint64_t>(1, std::min(wanted, room));
}

}  // namespace deepinfer::dialects
