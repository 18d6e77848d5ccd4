// The safetensors container (backbone.md 2.1): reading the header of one file, and writing a file.
//
// A file is the header's length (u64, little endian), the header (JSON), and the data. Every byte of the data belongs to
// exactly one tensor: a file with a hole, an overlap or a rest is refused, as the format says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace deepinfer::tensor {

struct TensorRecord {
  std::string name;
  Element element = Element::kU8;
  Shape shape;
  std::size_t begin = 0;  // bytes from the start of the file
  std::size_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorRecord> tensors;            // in the order of their bytes
  std::map<std::string, std::string> metadata;  // the "__metadata__" entry
};

inline constexpr std::size_t kLargestHeaderBytes = 100'000'000;
inline constexpr std::size_t kLargestRank = 8;

// Reads and checks the header of a whole file given by its bytes. `file` names it in messages. kFormat: truncated, lying
// or oversized lengths, JSON errors, duplicate names, sizes that overflow or do not fit the offsets, overlaps, holes;
// kUnsupported: an element type we do not have.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> bytes, std::string_view file);

// The weight_map of model.safetensors.index.json: (tensor, shard file name) in the order of the file. kFormat for JSON errors, a missing map,
// duplicate tensors, or a shard that is not a plain file name.
Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::string_view json,
                                                                                 std::string_view file);

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// Writes a file that holds these tensors; readers see the old file or the whole new one. Data is ordered by element size,
// then name, so that every tensor is aligned. kInvalidArgument for duplicate names.
Result<void> write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace deepinfer::tensor
