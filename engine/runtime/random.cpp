#include "runtime/random.h"

namespace deepinfer::runtime {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

constexpr std::uint32_t low(std::uint64_t x) {
  return static_cast<std::uint32_t>(x);
}
constexpr std::uint32_t high(std::uint64_t x) {
  return static_cast<std::uint32_t>(x >> 32);
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

double uniform(std::uint64_t seed, std::int64_t position, Draw purpose) {
  const auto at = static_cast<std::uint64_t>(position);
  const auto bits =
      philox({low(at), high(at), static_cast<std::uint32_t>(purpose), 0}, {low(seed), high(seed)});
  const std::uint64_t mantissa = (std::uint64_t{bits[0]} << 21) ^ (bits[1] >> 11);
  return static_cast<double>(mantissa) * 0x1p-53;
}

}  // namespace deepinfer::runtime
