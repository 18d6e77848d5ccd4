// What a forward pass multiplies and reads at least, counted from its graph: the arithmetic that benches are held against.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace deepinfer::bench {

// Which rows run a segment: all tokens of a step, those of the decoder half, those with logits.
enum class WorkRows : std::uint8_t { kTokens, kDecoder, kLogits };

class ForwardWork {
 public:
  ForwardWork(const graph::Graph& graph, int experts_per_token);

  // Multiply-adds of the matrices for one row; of experts, those that it uses.
  double matrices(WorkRows rows) const { return matrices_[static_cast<std::size_t>(rows)]; }
  // Multiply-adds of attention (q.k and the weighted sum) and of index scores for the row at a position. Where a selection
  // or candidates limit what is read, as many as they allow.
  double attention(WorkRows rows, std::int64_t position) const;
  // Bytes of weights that a step of `rows` rows reads, logits for each: every dense matrix once, and the experts that so
  // many rows choose if they choose evenly, E (1 - (1 - k/E)^rows).
  double weight_bytes(std::int64_t rows) const;

 private:
  struct Attention {
    WorkRows rows;
    std::int64_t multiplies = 0;  // a key
    std::int64_t window = 0;      // keys of the window
    int ratio = 0;                // positions a further key; 0: none
    std::int64_t most = 0;        // of those further keys
  };

  std::array<double, 3> matrices_{};
  std::vector<Attention> attention_;
  double dense_bytes_ = 0;
  double expert_bytes_ = 0;  // of all experts
  double chosen_share_ = 0;  // of the experts, by one row
};

}  // namespace deepinfer::bench
