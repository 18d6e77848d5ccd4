#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace deepinfer {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) {
    return make_error(ErrorKind::kInvalidArgument, "cannot halve 3", "give an even number");
  }
  return value / 2;
}

Result<int> quarter(int value) {
  DI_ASSIGN(const int once, half(value));
  DI_ASSIGN(const int twice, half(once));
  return twice;
}

Result<void> check_half(int value) {
  DI_TRY(half(value));
  return {};
}

TEST(Result, CarriesValuesAndErrors) {
  EXPECT_EQ(quarter(12).value(), 3);
  const auto failed = quarter(6);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(failed.error().message(), "cannot halve 3\n  give an even number");
  EXPECT_TRUE(check_half(2).ok());
  EXPECT_FALSE(check_half(1).ok());
}

TEST(Result, MovesOnlyTypes) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(4));
  std::unique_ptr<int> owned = std::move(result).value();
  EXPECT_EQ(*owned, 4);
}

TEST(Result, WithinNamesTheOuterAttempt) {
  EXPECT_EQ(within(make_error(ErrorKind::kIo, "no space"), "cannot write x").what,
            "cannot write x: no space");
}

}  // namespace
}  // namespace deepinfer
