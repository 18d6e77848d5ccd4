// Replies as the handlers make them. Private to this room.
#pragma once

#include <cstdint>

#include "dialects/request.h"
#include "serve/http.h"
#include "text/json_value.h"

namespace deepinfer::serve {

HttpReply json_reply(const text::JsonValue& body, int status = 200);
// A rejection in the shape of the path's dialect; 429 and 503 say when to try again.
HttpReply refusal(const HttpRequest& request, const dialects::RequestError& error,
                  std::int64_t retry_after_ns = 0);

}  // namespace deepinfer::serve
