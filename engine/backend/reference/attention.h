// One softmax over a list of keys and a sink, for all heads of a query (attention.md 3.7).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace deepinfer::backend::reference {

inline constexpr int kKeyTile = 64;  // keys that share one running maximum

struct AttentionShape {
  int heads = 0;
  int head_dim = 0;
  float scale = 1;
  bool round_numerators = false;  // precision bf16
  bool round_output = false;
};

struct AttentionScratch {
  explicit AttentionScratch(const AttentionShape& shape);
  std::vector<float> keys;          // [kKeyTile, head_dim]
  std::vector<float> key_panels;    // [kKeyTile / 16][head_dim][16]
  std::vector<double> sums;         // [heads, head_dim]
  std::vector<float> largest;       // [heads]
  std::vector<double> denominator;  // [heads]
};

// q [heads, head_dim] -> o [heads, head_dim].
//   count  length of the key list; load_key(i, key) writes key i, head_dim values, each key is its own value
//   sinks  [heads], scaled logits that join the denominator only
// Keys in tiles of kKeyTile in list order, lowest maximum -1e30; logits and exponentials in f32. No keys: o = 0.
void attend(const AttentionShape& shape, const float* q, int64_t count,
            const std::function<void(int64_t index, float* key)>& load_key, const float* sinks,
            AttentionScratch& scratch, float* o);

}  // namespace deepinfer::backend::reference
