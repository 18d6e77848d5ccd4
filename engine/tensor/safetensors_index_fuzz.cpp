// model.safetensors.index.json: the reader answers every input, and every shard it accepts is a plain file name.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tensor/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto index =
      deepinfer::tensor::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "input");
  if (!index.ok()) {
    DI_CHECK(!index.error().what.empty());
    return 0;
  }
  for (const auto& [tensor, shard] : *index) {
    DI_CHECK(!shard.empty() && shard != "." && shard != ".." && shard.find('/') == std::string::npos);
  }
  return 0;
}
