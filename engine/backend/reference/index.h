// The lightning indexer's scores and selections of one query (attention.md 5.3-5.5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::backend::reference {

struct IndexQuery {
  int heads = 0;
  int head_dim = 0;
  const float* vectors = nullptr;  // [heads, head_dim], as they meet the keys
  const float* weights = nullptr;  // [heads]
  float scale = 1;                 // multiplies each weight
};

// Scores of 16 keys, given as a panel [head_dim][16]: sum over heads, ascending, of relu(q . k) * (w * scale).
void score_keys(const IndexQuery& query, const float* key_panel, float* scores);

// Candidate blocks of `block_size` rows (5.5): blocks by their best score, the block of the newest row always first;
// ties to the lower block; blocks of -inf dropped. Ascending in `blocks`, -1 padded. `order` is scratch.
void candidate_blocks(std::span<const float> scores, int block_size, std::span<int32_t> blocks,
                      std::vector<float>& block_scores, std::vector<int32_t>& order);

// Sets the scores outside the candidate blocks (ascending, -1 ends the list) to -inf.
void mask_to_candidates(std::span<const int32_t> blocks, int block_size, std::span<float> scores);

// The selection.size() highest scores: higher first, then lower index; -inf never. Ascending indices, -1 padded.
void select_top(std::span<const float> scores, std::span<int32_t> selection, std::vector<int32_t>& order);

}  // namespace deepinfer::backend::reference
