// Whole safetensors files: the reader answers every input, and whatever it accepts lies inside the file.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace deepinfer::tensor;
  const auto header = parse_safetensors({reinterpret_cast<const std::byte*>(data), size}, "input");
  if (!header.ok()) {
    DI_CHECK(!header.error().what.empty() && !header.error().remedy.empty());
    return 0;
  }
  std::size_t end = 0;
  for (const TensorRecord& tensor : header->tensors) {
    DI_CHECK(end == 0 || tensor.begin == end);
    DI_CHECK(tensor.begin <= tensor.end && tensor.end <= size);
    DI_CHECK(byte_count(tensor.element, tensor.shape) == tensor.end - tensor.begin);
    end = tensor.end;
  }
  DI_CHECK(header->tensors.empty() || end == size);
  return 0;
}
