#include "graph/weight.h"

namespace deepinfer::graph {

int64_t Weight::bytes() const {
  const int64_t count = n * k;
  int64_t each = 0;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kI32: each = 4 * count; break;
    case WeightFormat::kI64: each = 8 * count; break;
    case WeightFormat::kBf16: each = 2 * count; break;
    case WeightFormat::kFp8Tile: each = count + (n + tile - 1) / tile * ((k + tile - 1) / tile); break;
    case WeightFormat::kFp4Rows: each = count / 2 + n * (k / 32); break;
    case WeightFormat::kFp8Rows: each = count + n * (k / 32); break;
  }
  return each * static_cast<int64_t>(parts.size());
}

}  // namespace deepinfer::graph
