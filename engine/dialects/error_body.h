// Rejections and failures as the bodies and events that clients of a dialect understand. recipe.md 7.5 and section 6.
#pragma once

#include <string>
#include <string_view>

#include "dialects/request.h"

namespace deepinfer::dialects {

// OpenAI's shape for Chat and Responses. Messages has its own in ours; the package uses OpenAI's for all three.
std::string error_body(const RequestError& error, Dialect dialect, text::Profile profile,
                       std::string_view request_id);

// A failure of the server by status: type and code of the table in recipe.md 7.5.
RequestError server_error(int status, std::string message);

}  // namespace deepinfer::dialects
