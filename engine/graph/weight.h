// Weights as a graph sees them: a name, a logical shape, a storage format and the bytes of the checkpoint.
// The bytes are borrowed from the mapped files (model::Checkpoint owns the mappings); a backend may
// repack them into its own memory at compile time and then let the pages go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer::graph {

using WeightId = int;

enum class WeightFormat : uint8_t {
  kF32,
  kBf16,
  kFp8Tile,  // E4M3 [n, k], UE8M0 scale [ceil(n/tile), ceil(k/tile)], tile 32 or 128 (backbone.md 2.2)
  kFp4Rows,  // E2M1 packed [n, k/2] low nibble = even column, UE8M0 scale [n, k/32]
  kFp8Rows,  // E4M3 [n, k], UE8M0 scale [n, k/32] (Engram tables)
  kI32,      // tid2eid, token map
  kI64,      // tid2eid as some releases store it
};

// One matrix (or vector: n == 1) of a weight. An expert stack has one part an expert.
struct WeightPart {
  const std::byte* data = nullptr;   // null in a graph built without weights (`plan --config`)
  const std::byte* scale = nullptr;  // kFp8Tile, kFp4Rows, kFp8Rows
};

struct Weight {
  std::string name;  // "layers.3.attn.wq_a.weight"; expert stacks: "layers.3.ffn.experts.*.w1.weight"
  WeightFormat format = WeightFormat::kF32;
  int64_t n = 0;  // rows (outputs)
  int64_t k = 0;  // columns (inputs), logical
  int tile = 0;   // kFp8Tile: 32 or 128
  std::vector<WeightPart> parts;

  // Bytes of the checkpoint that this weight covers, scales included.
  int64_t bytes() const;
};

}  // namespace deepinfer::graph
