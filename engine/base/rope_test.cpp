#include "base/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepinfer {
namespace {

TEST(Rope, PlainFrequenciesAreTwoRoundings) {
  const auto f = rope_frequencies({.theta = 10000.0});
  ASSERT_EQ(f.size(), 32u);
  EXPECT_EQ(f[0], 1.0f);
  for (int i = 0; i < 32; ++i) {
    const float power = static_cast<float>(std::pow(10000.0L, 2.0L * i / 64));
    EXPECT_EQ(f[static_cast<std::size_t>(i)], 1.0f / power) << i;
  }
}

TEST(Rope, YarnScalesTheSlowPairsOnly) {
  const auto plain = rope_frequencies({.theta = 160000.0});
  const auto yarn = rope_frequencies({.theta = 160000.0, .factor = 16.0});
  for (std::size_t i = 0; i < 32; ++i) {
    if (i <= 15) {
      EXPECT_EQ(yarn[i], plain[i]) << i;
    } else if (i >= 25) {
      EXPECT_EQ(yarn[i], plain[i] / 16.0f) << i;
    } else {
      EXPECT_LT(yarn[i], plain[i]) << i;
      EXPECT_GT(yarn[i], plain[i] / 16.0f) << i;
    }
  }
}

}  // namespace
}  // namespace deepinfer
