// From a dialect's request to a turn: what a server, the command line and the bindings hand to Service::start.
#pragma once

#include "dialects/request.h"
#include "service/turn.h"

namespace deepinfer::service {

// Conversation, sampling, limits and stops of the request. `max_tokens` stays 0 when the request has none.
TurnRequest turn_request(const dialects::Request& request);

}  // namespace deepinfer::service
