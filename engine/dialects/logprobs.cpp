#include "dialects/logprobs.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/detokenizer.h"

namespace deepinfer::dialects {

using text::JsonValue;

namespace {

constexpr double kLeastLogprob = -9999;

JsonValue token_object(const std::string& bytes, double logprob) {
  JsonValue list = JsonValue::array();
  for (const char byte : bytes)
    list.push(static_cast<unsigned char>(byte));
  return JsonValue::object(
      {{"token", token_text(bytes)}, {"logprob", logprob_number(logprob)}, {"bytes", std::move(list)}});
}

}  // namespace

std::string token_text(std::string_view bytes) {
  if (text::to_valid_utf8(bytes) == bytes) return std::string(bytes);
  std::string spelled;
  for (const char byte : bytes)
    spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return spelled;
}

JsonValue logprob_number(double logprob) {
  return JsonValue::real(std::max(logprob, kLeastLogprob));
}

JsonValue logprob_list(std::span<const TokenLogprob> tokens) {
  JsonValue list = JsonValue::array();
  for (const TokenLogprob& token : tokens) {
    JsonValue top = JsonValue::array();
    for (const TokenLogprob::Alternative& other : token.top)
      top.push(token_object(other.bytes, other.logprob));
    JsonValue one = token_object(token.bytes, token.logprob);
    one.set("top_logprobs", std::move(top));
    list.push(std::move(one));
  }
  return list;
}

}  // namespace deepinfer::dialects
