#include "backend/common/health.h"

#include <gtest/gtest.h>

namespace deepinfer::backend {
namespace {

TEST(Health, KeepsTheFirstFailure) {
  Health health;
  EXPECT_TRUE(health.check().ok());
  health.fail("GPU 0 failed while it ran a step: an illegal memory access was encountered");
  health.fail("GPU 0 failed while it read state: the context is destroyed");
  for (int question = 0; question < 2; ++question) {
    const Result<void> state = health.check();
    ASSERT_FALSE(state.ok());
    EXPECT_EQ(state.error().kind, ErrorKind::kDeviceLost);
    EXPECT_EQ(state.error().what,
              "GPU 0 failed while it ran a step: an illegal memory access was encountered");
    EXPECT_NE(state.error().remedy, "");
  }
}

}  // namespace
}  // namespace deepinfer::backend
