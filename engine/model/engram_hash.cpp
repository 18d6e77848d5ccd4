#include "model/engram_hash.h"

#include <algorithm>
#include <array>
#include <limits>

namespace deepinfer::model {
namespace {

__extension__ using Uint128 = unsigned __int128;

bool is_prime(int64_t value) {
  if (value < 4) return value >= 2;
  if (value % 2 == 0) return false;
  for (int64_t divisor = 3; divisor * divisor <= value; divisor += 2) {
    if (value % divisor == 0) return false;
  }
  return true;
}

// NumPy's SeedSequence for one 64-bit seed: four pool words, from which PCG64 takes its state.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    const std::array<uint32_t, 2> words = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (size_t i = 0; i < pool_.size(); ++i)
      pool_[i] = hash(i < words.size() ? words[i] : 0);
    for (size_t source = 0; source < pool_.size(); ++source) {
      for (size_t target = 0; target < pool_.size(); ++target) {
        if (source != target) pool_[target] = mix(pool_[target], hash(pool_[source]));
      }
    }
  }

  std::array<uint64_t, 4> state() const {
    std::array<uint32_t, 8> words{};
    uint32_t constant = 0x8b51f9dd;
    for (size_t i = 0; i < words.size(); ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38dedu;
      value *= constant;
      words[i] = value ^ (value >> 16);
    }
    std::array<uint64_t, 4> state{};
    for (size_t i = 0; i < state.size(); ++i) {
      state[i] = words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32;
    }
    return state;
  }

 private:
  uint32_t hash(uint32_t value) {
    value ^= constant_;
    constant_ *= 0x931e8875u;
    value *= constant_;
    return value ^ (value >> 16);
  }

  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
    return value ^ (value >> 16);
  }

  std::array<uint32_t, 4> pool_{};
  uint32_t constant_ = 0x43b0d7e5;
};

// PCG64 (XSL-RR 128/64).
class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed) {
    const std::array<uint64_t, 4> s = SeedSequence(seed).state();
    increment_ = ((static_cast<Uint128>(s[2]) << 64 | s[3]) << 1) | 1;
    step();
    state_ += static_cast<Uint128>(s[0]) << 64 | s[1];
    step();
  }

  uint64_t next() {
    step();
    const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const auto turn = static_cast<unsigned>(state_ >> 122);
    return folded >> turn | folded << ((64 - turn) % 64);
  }

  // Lemire's unbiased bounded integer, as NumPy draws 64-bit ranges.
  uint64_t below(uint64_t bound) {
    Uint128 product = static_cast<Uint128>(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold)
        product = static_cast<Uint128>(next()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  void step() {
    constexpr Uint128 kMultiplier = static_cast<Uint128>(0x2360ED051FC65DA4ull) << 64 | 0x4385DF649FCCF645ull;
    state_ = state_ * kMultiplier + increment_;
  }

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

}  // namespace

std::vector<int64_t> primes_from(int64_t lower, int count) {
  std::vector<int64_t> primes;
  primes.reserve(static_cast<size_t>(count));
  for (int64_t value = lower; static_cast<int>(primes.size()) < count; ++value) {
    if (is_prime(value)) primes.push_back(value);
  }
  return primes;
}

std::vector<int64_t> engram_multipliers(int layer, int64_t compressed_vocab, int count) {
  const int64_t bound = std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / compressed_vocab / 2);
  Pcg64 generator(10007ull * static_cast<uint64_t>(layer));
  std::vector<int64_t> multipliers;
  multipliers.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    multipliers.push_back(static_cast<int64_t>(2 * generator.below(static_cast<uint64_t>(bound)) + 1));
  }
  return multipliers;
}

}  // namespace deepinfer::model
