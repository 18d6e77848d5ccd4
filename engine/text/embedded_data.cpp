#include "text/embedded_data.h"

// The assembler copies the files; DEEPINFER_TEXT_DATA is their folder, given by the build. x86-64 and AArch64 keep
// int32 in the byte order of the file.
#define DEEPINFER_EMBED(symbol, file)           \
  asm(".pushsection .rodata\n"                  \
      ".balign 64\n"                            \
      ".globl " #symbol "_begin\n" #symbol      \
      "_begin:\n"                               \
      ".incbin \"" DEEPINFER_TEXT_DATA "/" file \
      "\"\n"                                    \
      ".globl " #symbol "_end\n" #symbol        \
      "_end:\n"                                 \
      ".byte 0\n"                               \
      ".popsection\n");                         \
  extern "C" const char symbol##_begin[];       \
  extern "C" const char symbol##_end[]

DEEPINFER_EMBED(deepinfer_prompt_constants, "prompt_constants.json");
DEEPINFER_EMBED(deepinfer_engram_token_map, "engram_token_map.i32");

namespace deepinfer::text {

std::string_view embedded_prompt_constants() {
  return {deepinfer_prompt_constants_begin,
          static_cast<std::size_t>(deepinfer_prompt_constants_end - deepinfer_prompt_constants_begin)};
}

std::span<const std::int32_t> embedded_engram_token_map() {
  return {reinterpret_cast<const std::int32_t*>(deepinfer_engram_token_map_begin),
          static_cast<std::size_t>(deepinfer_engram_token_map_end - deepinfer_engram_token_map_begin) /
              sizeof(std::int32_t)};
}

}  // namespace deepinfer::text
