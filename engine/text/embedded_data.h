// The files of text/data, inside the program: it runs as one binary.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace deepinfer::text {

std::string_view embedded_prompt_constants();               // prompt_constants.json
std::span<const std::int32_t> embedded_engram_token_map();  // engram_token_map.i32

}  // namespace deepinfer::text
