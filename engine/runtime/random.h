// Random numbers as a function of (seed, position, purpose): the same for a request whatever batch, slot or step
// it runs in, and whether it was preempted or not. Counter-based: Philox-4x32 with ten rounds (Salmon, Moraes,
// Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace deepinfer::runtime {

// What a number is drawn for: numbers of one position must not be shared between purposes.
enum class Draw : std::uint32_t { kSample = 0 };

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// Uniform in [0, 1), 53 random bits.
double uniform(std::uint64_t seed, std::int64_t position, Draw purpose);

}  // namespace deepinfer::runtime
