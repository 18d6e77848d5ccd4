// Linear kernels of every set this machine has: equal to the plain twin, and bit-equal whatever the number of
// rows, the position of a row, the split into tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/kernels/test_support.h"
#include "backend/cpu/kernels/twin.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/pack.h"

namespace deepinfer::backend::cpu {
namespace {

using testing::bits_equal;
using testing::RandomWeight;

struct Case {
  graph::WeightFormat format;
  int tile;
  std::int64_t n;
  std::int64_t k;
};

std::vector<float> random_rows(std::int64_t rows, std::int64_t k, bool bf16, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> kind(0, 19);
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  for (float& value : x) {
    value = normal(random);
    const int k_ = kind(random);
    if (k_ == 0) value = 0.0f;
    if (k_ == 1) value *= 1e-4f;   // far below its block's largest
    if (k_ == 2) value *= 300.0f;  // an outlier
    if (k_ == 3) value = -0.0f;
    if (bf16) value = tensor::round_to_bf16(value);
  }
  return x;
}

std::vector<float> product(const KernelSet& set, const PackedMatrix& matrix, const std::vector<float>& x,
                           std::int64_t first, std::int64_t rows, int workers) {
  Parallel parallel({.threads = workers});
  auto workspace = Workspace::create(workers);
  EXPECT_TRUE(workspace.ok());
  EXPECT_TRUE(reserve_linears(*workspace, rows, {&matrix, 1}).ok());
  std::vector<float> y(static_cast<std::size_t>(rows * matrix.n), 1e30f);
  const LinearJob job{&matrix, y.data(), matrix.n, false};
  run_linears(set, parallel, *workspace, x.data() + first * matrix.k, matrix.k, rows, {&job, 1});
  return y;
}

void check_case(const KernelSet& set, const Case& c, Activations activations, std::uint32_t seed) {
  std::mt19937 random(seed);
  const RandomWeight weight(c.format, c.tile, c.n, c.k, random);
  std::vector<std::byte> memory(static_cast<std::size_t>(packed_size(weight.weight).total()) + 64);
  auto* aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  Parallel one({.threads = 1});
  const auto matrix = pack(set, one, weight.weight, 0, activations, aligned);
  ASSERT_TRUE(matrix.ok());
  constexpr std::int64_t kRows = 70;
  const std::vector<float> x = random_rows(kRows, c.k, activations == Activations::kBf16, random);
  const std::vector<float> whole = product(set, *matrix, x, 0, kRows, 1);

  std::vector<twin::PairOrder> orders = {twin::PairOrder::kOddFirst};
  if (matrix->operand == Operand::kBf16) {
    orders.push_back(twin::PairOrder::kEvenFirst);
    orders.push_back(twin::PairOrder::kTogether);
  }
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{33}, kRows - 1})
    for (std::int64_t n = 0; n < c.n; ++n) {
      const float actual = whole[static_cast<std::size_t>(row * c.n + n)];
      std::erase_if(orders, [&](twin::PairOrder order) {
        return !bits_equal(actual,
                           twin::linear(set, weight.weight, matrix->operand, n, x.data() + row * c.k, order));
      });
      ASSERT_FALSE(orders.empty()) << set.name << " row " << row << " output " << n << ": " << actual
                                   << ", twin "
                                   << twin::linear(set, weight.weight, matrix->operand, n,
                                                   x.data() + row * c.k);
    }
  // Against double precision: no path is less precise than f32 sums of exact products, except that FP4 against bf16
  // takes activations in steps of 2^-14 of their block's largest.
  const bool steps = matrix->operand == Operand::kFixed16;
  for (std::int64_t n = 0; n < c.n; ++n) {
    double sum = 0;
    double magnitude = 0;
    double step_error = 0;
    for (std::int64_t i = 0; i < c.k; ++i) {
      const double term = static_cast<double>(twin::code_value(weight.weight, weight.weight.parts[0], n, i)) *
                          twin::block_scale(weight.weight, weight.weight.parts[0], n, i / kBlock) *
                          x[static_cast<std::size_t>(i)];
      sum += term;
      magnitude += std::fabs(term);
      if (!steps) continue;
      const std::int64_t block = i / kBlock * kBlock;
      float largest = 0.0f;
      for (std::int64_t j = block; j < std::min(c.k, block + kBlock); ++j)
        largest = std::max(largest, std::fabs(x[static_cast<std::size_t>(j)]));
      step_error +=
          std::fabs(static_cast<double>(twin::code_value(weight.weight, weight.weight.parts[0], n, i)) *
                    twin::block_scale(weight.weight, weight.weight.parts[0], n, i / kBlock)) *
          largest * 0x1p-14;
    }
    ASSERT_NEAR(whole[static_cast<std::size_t>(n)], sum, 4e-6 * magnitude + step_error + 1e-30)
        << set.name << " output " << n;
  }
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 64}) {
    for (const std::int64_t first : {std::int64_t{0}, kRows - rows}) {
      for (const int workers : {1, 3}) {
        const std::vector<float> part = product(set, *matrix, x, first, rows, workers);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * c.n,
                               [](float a, float b) { return bits_equal(a, b); }))
            << set.name << ": " << rows << " rows from " << first << " with " << workers << " workers";
      }
    }
  }
}

const Case kCases[] = {
    {graph::WeightFormat::kF32, 0, 24, 320},        {graph::WeightFormat::kF32, 0, 5, 33},
    {graph::WeightFormat::kBf16, 0, 130, 96},       {graph::WeightFormat::kBf16, 0, 17, 50},
    {graph::WeightFormat::kFp8Tile, 32, 96, 544},   {graph::WeightFormat::kFp8Tile, 32, 71, 96},
    {graph::WeightFormat::kFp8Tile, 128, 192, 192}, {graph::WeightFormat::kFp8Tile, 128, 33, 320},
    {graph::WeightFormat::kFp4Rows, 0, 64, 352},    {graph::WeightFormat::kFp4Rows, 0, 83, 64},
};

TEST(CpuLinear, EqualsTwinForAnyRowsAndWorkers) {
  std::uint32_t seed = 1;
  for (const KernelSet* set : available_sets())
    for (const Case& c : kCases)
      for (const Activations activations : {Activations::kF32, Activations::kBf16})
        check_case(*set, c, activations, ++seed);
}

TEST(CpuLinear, RoundsToBf16AtTheEnd) {
  std::mt19937 random(7);
  for (const KernelSet* set : available_sets()) {
    const RandomWeight weight(graph::WeightFormat::kFp8Tile, 32, 40, 64, random);
    auto memory = HugeBuffer::create(host_ledger(), "test",
                                     static_cast<std::size_t>(packed_size(weight.weight).total()));
    Parallel one({.threads = 1});
    const auto matrix = pack(*set, one, weight.weight, 0, Activations::kBf16, memory->data());
    ASSERT_TRUE(matrix.ok());
    const std::vector<float> x = random_rows(9, 64, true, random);
    const std::vector<float> exact = product(*set, *matrix, x, 0, 9, 1);
    Parallel parallel({.threads = 2});
    auto workspace = Workspace::create(2);
    ASSERT_TRUE(reserve_linears(*workspace, 9, {&*matrix, 1}).ok());
    std::vector<float> y(9 * 40);
    const LinearJob job{&*matrix, y.data(), 40, true};
    run_linears(*set, parallel, *workspace, x.data(), 64, 9, {&job, 1});
    for (std::size_t i = 0; i < y.size(); ++i)
      ASSERT_TRUE(bits_equal(y[i], tensor::round_to_bf16(exact[i])));
  }
}

TEST(CpuLinear, RefusesNanCodesAndScales) {
  std::mt19937 random(9);
  const KernelSet& set = *available_sets().front();
  for (const bool in_scale : {false, true}) {
    RandomWeight weight(graph::WeightFormat::kFp8Tile, 32, 32, 64, random);
    (in_scale ? weight.scales : weight.codes)[1] = in_scale ? 255 : 0xff;
    auto memory = HugeBuffer::create(host_ledger(), "test",
                                     static_cast<std::size_t>(packed_size(weight.weight).total()));
    Parallel one({.threads = 1});
    const auto matrix = pack(set, one, weight.weight, 0, Activations::kF32, memory->data());
    ASSERT_FALSE(matrix.ok());
    EXPECT_EQ(matrix.error().kind, ErrorKind::kFormat);
    EXPECT_NE(matrix.error().what.find("test weight"), std::string::npos);
  }
}

// Scale byte 0 is 2^-127, not 0; products of it pass through subnormals, so only their size is compared.
TEST(CpuLinear, SmallestScale) {
  std::mt19937 random(13);
  constexpr int kOutputs = 16, kInputs = 64;
  for (const KernelSet* set : available_sets())
    for (const graph::WeightFormat format : {graph::WeightFormat::kFp8Tile, graph::WeightFormat::kFp4Rows}) {
      RandomWeight weight(format, 32, kOutputs, kInputs, random);
      std::fill(weight.scales.begin(), weight.scales.end(), std::uint8_t{0});
      auto memory = HugeBuffer::create(host_ledger(), "test",
                                       static_cast<std::size_t>(packed_size(weight.weight).total()));
      Parallel one({.threads = 1});
      const auto matrix = pack(*set, one, weight.weight, 0, Activations::kF32, memory->data());
      const std::vector<float> x(kInputs, 0x1p+48f);
      const std::vector<float> y = product(*set, *matrix, x, 0, 1, 1);
      for (int n = 0; n < kOutputs; ++n) {
        double sum = 0, size = 0;
        for (int i = 0; i < kInputs; ++i) {
          const double value = twin::code_value(weight.weight, weight.weight.parts[0], n, i);
          sum += value * 0x1p-79;
          size += std::abs(value) * 0x1p-79;
        }
        EXPECT_NEAR(y[static_cast<std::size_t>(n)], sum, 1e-2 * size) << set->name;
      }
    }
}

// Infinite activations stay visible in every set.
TEST(CpuLinear, KeepsNonFiniteActivations) {
  std::mt19937 random(11);
  for (const KernelSet* set : available_sets())
    for (const graph::WeightFormat format : {graph::WeightFormat::kFp8Tile, graph::WeightFormat::kFp4Rows}) {
      const RandomWeight weight(format, 32, 16, 64, random);
      auto memory = HugeBuffer::create(host_ledger(), "test",
                                       static_cast<std::size_t>(packed_size(weight.weight).total()));
      Parallel one({.threads = 1});
      const auto matrix = pack(*set, one, weight.weight, 0, Activations::kF32, memory->data());
      std::vector<float> x = random_rows(1, 64, true, random);
      x[40] = std::nanf("");
      for (const float y : product(*set, *matrix, x, 0, 1, 1))
        ASSERT_FALSE(std::isfinite(y)) << set->name;
    }
}

}  // namespace
}  // namespace deepinfer::backend::cpu
