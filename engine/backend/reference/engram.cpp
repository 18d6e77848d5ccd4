#include "backend/reference/engram.h"

#include <algorithm>
#include <cmath>

#include "backend/reference/arithmetic.h"
#include "base/check.h"
#include "base/math.h"

namespace deepinfer::backend::reference {

void engram_rows(const graph::EngramAttributes& attributes, std::span<const int64_t> ids,
                 std::span<const uint8_t> dead, int64_t pad, std::span<int32_t> rows) {
  const auto orders = static_cast<size_t>(attributes.max_ngram);
  const auto heads = static_cast<size_t>(attributes.heads);
  DI_CHECK(ids.size() == orders && dead.size() == orders && rows.size() == (orders - 1) * heads);
  bool blocked = false;  // sticky: nothing behind a dead position counts
  int64_t hash = 0;
  for (size_t k = 0; k < orders; ++k) {
    blocked = blocked || dead[k] != 0;
    const int64_t product = (blocked ? pad : ids[k]) * attributes.multipliers[k];
    hash = k == 0 ? product : hash ^ product;
    if (k == 0) continue;
    for (size_t head = 0; head < heads; ++head) {
      const size_t column = (k - 1) * heads + head;
      rows[column] = static_cast<int32_t>(hash % attributes.primes[column] + attributes.offsets[column]);
    }
  }
}

void engram_mix(const EngramMix& mix, const float* h, const float* kv, bool dead, bool round, float* mixed) {
  const int64_t width = mix.hidden;
  const auto size = static_cast<size_t>(width);
  const float* value = kv + mix.streams * width;
  for (int i = 0; i < mix.streams; ++i) {
    const float* stream = h + i * width;
    const float* key = kv + i * width;
    const float* q_weight = mix.q_weight.data() + i * width;
    const float* k_weight = mix.k_weight.data() + i * width;
    const float dot = sum_of(width, [&](int64_t d) {
      return static_cast<double>(stream[d]) * q_weight[d] * k_weight[d] * key[d];
    });
    const float stream_factor = rsqrt_f32(mean_of_squares({stream, size}) + mix.eps);
    const float key_factor = rsqrt_f32(mean_of_squares({key, size}) + mix.eps);
    const float score = dot * stream_factor * key_factor * rsqrt_f32(static_cast<float>(width));
    const float root = sqrt_f32(std::max(std::abs(score), 1e-6f));
    const float gate = dead ? 0.0f : sigmoid_f32(score < 0.0f ? -root : root);
    for (int64_t d = 0; d < width; ++d)
      mixed[i * width + d] = rounded(round, stream[d] + gate * value[d]);
  }
}

}  // namespace deepinfer::backend::reference
