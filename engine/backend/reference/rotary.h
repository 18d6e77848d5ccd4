// Rotations of head vectors (attention.md 3.5, 10).
#pragma once

#include <cstdint>
#include <span>

namespace deepinfer::backend::reference {

// Rotates the last 2 * sines.size() channels of one head vector, adjacent pairs: (a, b) -> (a cos - b sin,
// a sin + b cos), f32, then the rounding; other channels pass unchanged. inverse: sin -> -sin. In place.
void rotate(std::span<float> vector, std::span<const float> sines, std::span<const float> cosines,
            bool inverse, bool round);

// Sylvester Hadamard times size^-0.5, f32 butterflies from neighbours outwards, one rounding at the end. The size is a
// power of two. In place.
void hadamard(std::span<float> vector, bool round);

}  // namespace deepinfer::backend::reference
