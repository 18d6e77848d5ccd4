#include "backend/reference/rotary.h"

#include "backend/reference/arithmetic.h"
#include "base/check.h"
#include "base/math.h"

namespace deepinfer::backend::reference {

void rotate(std::span<float> vector, std::span<const float> sines, std::span<const float> cosines,
            bool inverse, bool round) {
  DI_CHECK(vector.size() >= 2 * sines.size() && sines.size() == cosines.size());
  float* pairs = vector.data() + (vector.size() - 2 * sines.size());
  for (size_t i = 0; i < sines.size(); ++i) {
    const float sine = inverse ? -sines[i] : sines[i];
    const float a = pairs[2 * i];
    const float b = pairs[2 * i + 1];
    pairs[2 * i] = rounded(round, a * cosines[i] - b * sine);
    pairs[2 * i + 1] = rounded(round, a * sine + b * cosines[i]);
  }
}

void hadamard(std::span<float> vector, bool round) {
  const size_t size = vector.size();
  DI_CHECK(size > 0 && (size & (size - 1)) == 0);
  for (size_t half = 1; half < size; half *= 2) {
    for (size_t first = 0; first < size; first += 2 * half) {
      for (size_t i = first; i < first + half; ++i) {
        const float a = vector[i];
        const float b = vector[i + half];
        vector[i] = a + b;
        vector[i + half] = a - b;
      }
    }
  }
  const float factor = rsqrt_f32(static_cast<float>(size));
  for (float& value : vector)
    value = rounded(round, value * factor);
}

}  // namespace deepinfer::backend::reference
