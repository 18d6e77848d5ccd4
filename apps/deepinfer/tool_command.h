// Runs the program that stands for the tools of `run` and `chat`.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace deepinfer::app {

// `command` (split at blanks, no shell) is run with `name` as its last argument and `arguments` on standard input.
// Returns what it prints, without a trailing line feed, cut after `limit` bytes. kNotFound or kIo when it cannot be
// run, kInternal when it exits with a failure; the message has its exit status.
Result<std::string> run_tool(const std::string& command, const std::string& name,
                             const std::string& arguments, std::size_t limit);

}  // namespace deepinfer::app
