#include <bit>
#include <cmath>
#include <limits>

#include "backend/common/record.h"
#include "backend/cuda/kernels/common/gpu_world.h"
#include "backend/cuda/kernels/common/records.h"

namespace deepinfer::backend::cuda::test {
namespace {

struct Shape {
  int channels = 0, group = 0, vectors = 1;
};

// The inputs of products of both releases, the small models' among them (192 = 128 + 64), and one that only the kernel for any
// shape takes.
constexpr Shape kShapes[] = {{5120, 32},  {1280, 32},  {8192, 32},     {6144, 32}, {2304, 32, 6},
                             {4096, 128}, {1024, 128}, {2048, 128, 6}, {192, 128}, {64, 32, 2},
                             {128, 128},  {32, 32},    {1032, 64},     {52, 32}};

// Ordinary values, zeros, groups below the floor, ties, and in the last row an infinity and a NaN.
std::vector<float> inputs(const Shape& shape, int rows) {
  Random random{static_cast<std::uint64_t>(shape.channels * 131 + shape.group)};
  std::vector<float> values(static_cast<size_t>(rows * shape.vectors * shape.channels));
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t group = i / 16;
    const double size = group % 5 == 0 ? 1e-6 : group % 7 == 0 ? 1e30 : 1.0;
    const double drawn = group % 3 == 0 ? std::round(16 * random.normal()) / 16 : random.normal();
    values[i] = i % 11 == 0 ? -0.0f : static_cast<float>(bf16_value(bf16_bits(size * drawn)));
  }
  values[values.size() - 1] = std::numeric_limits<float>::infinity();
  values[values.size() - static_cast<size_t>(shape.channels)] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

std::vector<float> on_host(const Shape& shape, std::vector<float> values) {
  const state::RecordLayout layout{state::RecordFormat::kFp8Block, shape.channels, shape.channels,
                                   shape.group, false};
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(shape.channels))
    fake_quantise_record(layout, std::span(values).subspan(first, static_cast<size_t>(shape.channels)));
  return values;
}

void expect_bits(const std::vector<float>& got, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << what << " " << i;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << what << " " << i;
  }
}

// f32 and bf16 rows, into another array and in place, give the host's bits; rows past the count stay as they are.
TEST(FakeQuantiseTest, GivesTheBitsOfTheHost) {
  if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  const std::vector<SequenceSpec> specs = {{.id = 1, .start = 5, .tokens = 3},
                                           {.id = 2, .start = 0, .tokens = 4}};
  const StepArrays arrays(specs, nullptr, 0, nullptr, 0);
  const int rows = static_cast<int>(arrays.names(RowAxis::kTokens).size());
  const RowSpace space = arrays.rows(RowAxis::kTokens, 2);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(std::to_string(shape.vectors) + " x " + std::to_string(shape.channels) + " by " +
                 std::to_string(shape.group));
    const RecordShape record{RecordCode::kFp8, shape.channels, shape.channels, shape.group, false};
    const std::int64_t width = static_cast<std::int64_t>(shape.channels) * shape.vectors;
    const std::vector<float> given = inputs(shape, rows + 2);  // two rows past the count
    std::vector<float> expected = on_host(shape, given);
    std::copy(given.begin() + rows * width, given.end(), expected.begin() + rows * width);
    std::vector<std::uint16_t> narrow;
    for (const float value : given)
      narrow.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));

    const DeviceArray<float> wide(given), wide_out(given);
    const DeviceArray<std::uint16_t> half(narrow), half_out(narrow);
    const auto quantise = [&](void* from, void* to, bool bf16) {
      fake_quantise(arrays.data(), space, record, {from, bf16, width}, {to, bf16, width}, nullptr);
    };
    quantise(wide.data(), wide_out.data(), false);
    quantise(half.data(), half_out.data(), true);
    quantise(wide.data(), wide.data(), false);
    quantise(half.data(), half.data(), true);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto widened = [](const std::vector<std::uint16_t>& bits) {
      std::vector<float> values;
      for (const std::uint16_t value : bits)
        values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16));
      return values;
    };
    expect_bits(wide_out.host(), expected, "f32");
    expect_bits(wide.host(), expected, "f32 in place");
    expect_bits(widened(half_out.host()), expected, "bf16");
    expect_bits(widened(half.host()), expected, "bf16 in place");
  }
}

}  // namespace
}  // namespace deepinfer::backend::cuda::test
