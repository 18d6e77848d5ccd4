#include "model/engram_hash.h"

#include <gtest/gtest.h>

#include <numeric>

namespace deepinfer::model {
namespace {

using Values = std::vector<int64_t>;

// Values of backbone.md 6.2.
TEST(EngramHash, PrimesOfTheRelease) {
  const Values primes = primes_from(16000000, 48);
  EXPECT_EQ(primes.front(), 16000057);
  EXPECT_EQ(primes[23], 16000463);
  EXPECT_EQ(primes[24], 16000477);
  EXPECT_EQ(primes.back(), 16000889);
  EXPECT_EQ(std::accumulate(primes.begin(), primes.begin() + 24, int64_t{0}), 384006168);
  EXPECT_EQ(std::accumulate(primes.begin() + 24, primes.end(), int64_t{0}), 384016682);
  EXPECT_EQ(primes_from(2, 5), (Values{2, 3, 5, 7, 11}));
}

TEST(EngramHash, MultipliersOfTheRelease) {
  EXPECT_EQ(engram_multipliers(1, 99092, 4),
            (Values{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(engram_multipliers(14, 99092, 4),
            (Values{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
}

TEST(EngramHash, MultipliersOfTheTestSize) {
  EXPECT_EQ(engram_multipliers(1, 400, 4),
            (Values{18984069153536581, 1198982504596559, 8908289623672409, 18328883108567563}));
  EXPECT_EQ(engram_multipliers(4, 400, 4),
            (Values{20378323963399201, 1248012217874625, 18246170261325197, 4695688200551669}));
}

}  // namespace
}  // namespace deepinfer::model
