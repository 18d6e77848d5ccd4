#include "dialects/error_body.h"

#include "text/detokenizer.h"

namespace deepinfer::dialects {
namespace {

struct StatusWords {
  int status;
  std::string_view type;           // Chat and Responses
  std::string_view code;           // Chat and Responses
  std::string_view messages_type;  // Messages
};

constexpr StatusWords kWords[] = {
    {400, "invalid_request_error", "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "invalid_api_key", "authentication_error"},
    {404, "invalid_request_error", "not_found", "not_found_error"},
    {413, "invalid_request_error", "request_too_large", "request_too_large"},
    {415, "invalid_request_error", "invalid_request_error", "invalid_request_error"},
    {429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"},
    {500, "internal_error", "internal_error", "api_error"},
    {503, "service_unavailable", "service_unavailable", "overloaded_error"},
    {504, "timeout", "timeout", "timeout_error"},
};

const StatusWords& words_of(int status) {
  for (const StatusWords& words : kWords) {
    if (words.status == status) return words;
  }
  return status < 500 ? kWords[0] : kWords[6];
}

}  // namespace

std::string error_body(const RequestError& error, Dialect dialect, text::Profile profile,
                       std::string_view request_id) {
  using text::JsonValue;
  // Messages quote what they refuse, and what is long only in part: the cut may be inside a character.
  const std::string message = text::to_valid_utf8(error.message);
  if (dialect == Dialect::kMessages && profile == text::Profile::kOurs) {
    return write_json(JsonValue::object(
        {{"type", "error"},
         {"error", JsonValue::object({{"type", words_of(error.status).messages_type}, {"message", message}})},
         {"request_id", request_id}}));
  }
  JsonValue inner = JsonValue::object(
      {{"message", message}, {"type", error.type}, {"param", nullptr}, {"code", error.code}});
  if (error.param) inner.set("param", *error.param);
  return write_json(JsonValue::object({{"error", std::move(inner)}}));
}

RequestError server_error(int status, std::string message) {
  const StatusWords& words = words_of(status);
  RequestError error;
  error.status = status;
  error.type = words.type;
  error.code = words.code;
  error.message = std::move(message);
  return error;
}

}  // namespace deepinfer::dialects
