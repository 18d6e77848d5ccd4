// Binds the tensors of a checkpoint to weights of a graph, one call a weight, each with the exact shape and
// element types that the configuration implies (backbone.md 2.3-2.5). Without a table it makes the same weights
// without bytes. The first fault is kept and later calls return weights without bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/weight.h"
#include "model/config.h"
#include "tensor/tensor_table.h"
#include "tensor/weight.h"

namespace deepinfer::model {

class Binder {
 public:
  // `table` may be null; both are borrowed. `token_map`: canonical ids, must outlive the graph.
  Binder(tensor::TensorTable* table, const Config& config, std::span<const int32_t> token_map,
         std::vector<graph::Weight>& weights)
      : table_(table), config_(config), token_map_(token_map), weights_(weights) {}

  // "<stem>.weight" [n, k] E4M3 with "<stem>.scale" in tiles of the configuration's size.
  graph::WeightId fp8(const std::string& stem, int64_t n, int64_t k, std::string_view why);
  // "<stem>.weight" [n, k], BF16 or F32.
  graph::WeightId plain(const std::string& stem, int64_t n, int64_t k, std::string_view why);
  // The tensor `name` itself: [k] or [n, k]; F32 only where the specs keep a parameter in fp32.
  graph::WeightId vector(const std::string& name, int64_t k, bool f32_only, std::string_view why);
  graph::WeightId matrix(const std::string& name, int64_t n, int64_t k, bool f32_only, std::string_view why);
  // "<prefix>.{e}.<name>.weight" for every routed expert: E2M1 [n, k / 2] packed, one scale a row and 32 columns.
  graph::WeightId experts(const std::string& prefix, std::string_view name, int64_t n, int64_t k);
  // "<stem>.weight" [rows, dim] E4M3, one scale a row and 32 columns. Scales beyond kScannedScaleBytes are not read
  // at load: the table is on disk and stays there.
  graph::WeightId engram_table(const std::string& stem, int64_t rows, int64_t dim);
  graph::WeightId token_map();
  // tid2eid: [vocab, k] I32 or I64, every entry an expert.
  graph::WeightId routes(const std::string& name);

  bool failed() const { return fault_.has_value(); }
  const Error& fault() const { return *fault_; }
  int64_t bytes() const;  // of all weights made so far

  static constexpr int64_t kScannedScaleBytes = 256 << 20;

 private:
  graph::WeightId push(graph::Weight weight);
  graph::WeightId take_tensor(const std::string& name, const tensor::Shape& shape, bool f32_only,
                              std::string_view why, int64_t n, int64_t k);
  // Takes "<stem>.weight" (and its scale) into a part; nothing after a fault.
  graph::WeightPart take_part(const std::string& stem, tensor::WeightKind kind, int64_t n, int64_t k,
                              std::string_view why, tensor::ScaleCheck check, int64_t tile_rows,
                              graph::WeightFormat* format);

  tensor::TensorTable* table_;
  const Config& config_;
  std::span<const int32_t> token_map_;
  std::vector<graph::Weight>& weights_;
  std::optional<Error> fault_;
};

}  // namespace deepinfer::model
