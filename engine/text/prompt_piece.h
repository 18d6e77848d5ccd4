// A run of a prompt.
#pragma once

#include <string>

namespace deepinfer::text {

// The spelling of one control token, or bytes that never become one.
struct PromptPiece {
  bool special = false;
  std::string bytes;
  bool operator==(const PromptPiece&) const = default;
};

}  // namespace deepinfer::text
