// Products of many rows on the GPU: against plain sums in double, bit for bit against the portable kernels, and a row alone
// against the same row among others. Skipped where there is no Hopper GPU; the portable kernels need any.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/kernels/sm90/experts_many.h"
#include "backend/cuda/kernels/sm90/linear_many.h"
#include "base/math.h"

namespace deepinfer::backend::cuda {
namespace {

constexpr std::uint16_t kPoison = 0x7fbf;  // a NaN

void check(cudaError_t error, const char* what) {
  ASSERT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
}
#define CUDA_CHECK(call) check(call, #call)

bool hopper() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}
#define NEED_HOPPER() \
  if (!hopper())      \
  GTEST_SKIP() << "NOT RUN: these kernels need a Hopper GPU (compute capability 9.0), and there is none"

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(size_, 1) * sizeof(T)));
    set(values);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void set(const std::vector<T>& values) {
    CUDA_CHECK(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    CUDA_CHECK(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
double e4m3(unsigned code) {
  const unsigned exponent = code >> 3 & 15u, mantissa = code & 7u;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8.0 + mantissa, static_cast<int>(exponent) - 10);
  return code & 128u ? -magnitude : magnitude;
}
double e2m1(unsigned code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8u ? -kMagnitudes[code & 7u] : kMagnitudes[code & 7u];
}

int multiprocessors() {
  int device = 0, count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// A weight matrix twice: its values, and packed as packed.h says.
struct Weights {
  PackedMatrix shape;
  std::vector<double> values;  // [n, k]
  std::vector<std::uint8_t> units, scales;
};

// code_at(output, column) gives bf16 bits, an E4M3 code or an E2M1 code; exponents are UE8M0 bytes, one a (tile, unit) or
// (output, 32 columns).
template <class CodeAt, class ExponentAt>
Weights make_weights(PackedCode code, int n, int k, CodeAt code_at, ExponentAt exponent_at) {
  Weights weights;
  weights.shape = {code, nullptr, nullptr, n, k, (k + kChunk - 1) / kChunk * kChunk};
  weights.values.resize(static_cast<std::size_t>(n) * k);
  weights.units.assign(weights.shape.unit_bytes(), 0);
  weights.scales.assign(std::max<std::int64_t>(weights.shape.scale_bytes(), 1), 0);
  const int width = unit_columns(code), units_of_tile = weights.shape.units_of_tile();
  const auto coded = [&](int output, int column) -> unsigned {
    return output < n && column < k ? code_at(output, column) : 0u;
  };
  for (int output = 0; output < n; ++output)
    for (int column = 0; column < k; ++column) {
      const unsigned bits = code_at(output, column);
      weights.values[static_cast<std::size_t>(output) * k + column] =
          code == PackedCode::kBf16  ? from_bf16(static_cast<std::uint16_t>(bits))
          : code == PackedCode::kFp8 ? std::ldexp(e4m3(bits), exponent_at(output / 16, column / 32) - 127)
                                     : std::ldexp(e2m1(bits), exponent_at(output, column / 32) - 127);
    }
  for (int tile = 0; tile < weights.shape.tiles(); ++tile)
    for (int unit = 0; unit < units_of_tile; ++unit) {
      const std::size_t place = static_cast<std::size_t>(tile) * units_of_tile + unit;
      for (int lane = 0; lane < 32; ++lane)
        for (int step = 0; step < width / 16; ++step)
          for (int i = 0; i < 4; ++i)
            for (int half = 0; half < 2; ++half) {
              const unsigned bits = coded(tile * 16 + lane / 4 + i % 2 * 8,
                                          unit * width + step * 16 + lane % 4 * 2 + half + i / 2 * 8);
              std::uint8_t* bytes = &weights.units[place * kUnitBytes + static_cast<std::size_t>(lane) * 16];
              if (code == PackedCode::kBf16) {
                bytes[4 * i + 2 * half] = static_cast<std::uint8_t>(bits);
                bytes[4 * i + 2 * half + 1] = static_cast<std::uint8_t>(bits >> 8);
              } else if (code == PackedCode::kFp8) {
                bytes[8 * step + i / 2 * 4 + half * 2 + i % 2] = static_cast<std::uint8_t>(bits);
              } else {
                for (int bit = 0; bit < 4; ++bit) {
                  const int at = fp4_bit(i, bit);
                  bytes[4 * step + 2 * half + at / 8] |=
                      static_cast<std::uint8_t>((bits >> bit & 1u) << (at % 8));
                }
              }
            }
      if (code == PackedCode::kFp8)
        weights.scales[place] = static_cast<std::uint8_t>(exponent_at(tile, unit) + 120);
      if (code == PackedCode::kFp4)
        for (int row = 0; row < 16; ++row) {
          const auto field = [&](int block) { return exponent_at(tile * 16 + row, unit * 2 + block) + 126; };
          const int half = field(0) << 7 | field(1) >> 1 | (field(1) & 1) << 15;
          std::uint8_t* const bytes =
              &weights.scales[place * 32 + static_cast<std::size_t>(row % 8 * 4 + row / 8 * 2)];
          bytes[0] = static_cast<std::uint8_t>(half);
          bytes[1] = static_cast<std::uint8_t>(half >> 8);
        }
    }
  return weights;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x =
      a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u) * 0xbf58476d1ce4e5b9u ^ (c + 0x51u) * 0x94d049bb133111ebu;
  x ^= x >> 31, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 29;
  return x;
}

// Random codes of every kind but NaN, exponents over 12 powers of two.
Weights random_weights(PackedCode code, int n, int k, std::uint64_t seed) {
  return make_weights(
      code, n, k,
      [=](int output, int column) -> unsigned {
        const std::uint64_t random = mix(seed, output, column);
        if (code == PackedCode::kFp4) return random & 15u;
        if (code == PackedCode::kFp8) return (random & 127u) == 127u ? 1u : random & 255u;
        return to_bf16(std::ldexp(static_cast<float>(random & 0xffffu) - 32768.0f,
                                  -15 - static_cast<int>(random >> 16 & 7u)));
      },
      [=](int row, int block) { return 116 + static_cast<int>(mix(seed + 1, row, block) % 12); });
}

// Values with widely spread magnitudes, zeros of both signs among them.
std::vector<std::uint16_t> random_rows(std::int64_t size, std::uint64_t seed) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t random = mix(seed, i, 7);
    values[i] = random % 29 == 0 ? static_cast<std::uint16_t>(random >> 32 & 0x8000u)
                                 : to_bf16(std::ldexp(static_cast<float>(random & 0xffffu) - 32767.5f,
                                                      -15 - static_cast<int>(random >> 20 & 15u)));
  }
  return values;
}

struct Product {
  double value = 0, magnitude = 0;  // sum, sum of magnitudes
};
Product product(const Weights& weights, int output, const std::uint16_t* x) {
  Product result;
  for (int column = 0; column < weights.shape.k; ++column) {
    const double term =
        weights.values[static_cast<std::size_t>(output) * weights.shape.k + column] * from_bf16(x[column]);
    result.value += term;
    result.magnitude += std::fabs(term);
  }
  return result;
}

struct LinearCase {
  PackedCode code;
  int n, k, groups, rows, spare_rows;  // spare_rows: of the buffer, past the count
  bool bf16;
};

void check_linear(const LinearCase& c, LinearTiling tiling) {
  SCOPED_TRACE("code " + std::to_string(static_cast<int>(c.code)) + " n " + std::to_string(c.n) + " k " +
               std::to_string(c.k) + " groups " + std::to_string(c.groups) + " rows " +
               std::to_string(c.rows) + " tile " + std::to_string(tiling.row_tile) + " split " +
               std::to_string(tiling.split));
  const Weights weights = random_weights(c.code, c.n, c.k, 5);
  const int most = c.rows + c.spare_rows;
  const std::int64_t columns = static_cast<std::int64_t>(c.k) * c.groups;
  const std::int64_t x_stride = (columns + 7) / 8 * 8 + 8, y_stride = (c.n + 7) / 8 * 8 + 8;
  std::vector<std::uint16_t> x = random_rows(most * x_stride, 9);
  for (int row = 0; row < most; ++row)
    for (std::int64_t column = row < c.rows ? columns : 0; column < x_stride; ++column)
      x[static_cast<std::size_t>(row * x_stride + column)] = kPoison;
  const DeviceArray<std::uint8_t> units(weights.units), scales(weights.scales);
  DeviceArray<std::uint16_t> x_device(x);
  const std::size_t words = static_cast<std::size_t>(most * y_stride) * (c.bf16 ? 1 : 2);
  const std::vector<std::uint16_t> poison(words, kPoison);
  DeviceArray<std::uint16_t> y(poison), y_portable(poison);
  DeviceArray<std::int32_t> count({c.rows});
  LinearMany linear{weights.shape, x_device.data(), x_stride,     c.groups, y.data(),
                    y_stride,      c.bf16,          count.data(), most};
  linear.weight.units = units.data();
  linear.weight.scales = scales.data();
  LinearManyPlan plan;
  CUDA_CHECK(plan_linear_many(std::span(&linear, 1), tiling.row_tile, &plan));
  CUDA_CHECK(launch_linear_many(plan, tiling.split, linear.most_rows, multiprocessors(), nullptr));
  LinearMany portable = linear;
  portable.y = y_portable.data();
  CUDA_CHECK(launch_linear_many_portable(portable, nullptr));
  CUDA_CHECK(cudaDeviceSynchronize());
  const auto fast = y.get(), slow = y_portable.get();
  EXPECT_EQ(fast, slow) << "wgmma and mma.sync give different bits";
  int wrong = 0, touched = 0;
  for (int row = 0; row < most; ++row)
    for (std::int64_t output = 0; output < y_stride; ++output) {
      const auto at = static_cast<std::size_t>(row * y_stride + output);
      if (row >= c.rows || output >= c.n) {
        touched += c.bf16 ? fast[at] != kPoison : fast[2 * at] != kPoison || fast[2 * at + 1] != kPoison;
        continue;
      }
      const double value =
          c.bf16 ? from_bf16(fast[at])
                 : std::bit_cast<float>(std::uint32_t{fast[2 * at]} | std::uint32_t{fast[2 * at + 1]} << 16);
      const int group = static_cast<int>(output) / (c.n / c.groups);
      const Product wanted =
          product(weights, static_cast<int>(output),
                  &x[static_cast<std::size_t>(row * x_stride + std::int64_t{group} * c.k)]);
      const double allowed =
          wanted.magnitude * 0x1p-18 + (c.bf16 ? std::fabs(wanted.value) * 0x1p-8 : 0.0) + 1e-30;
      wrong += !(std::fabs(value - wanted.value) <= allowed);
    }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(touched, 0) << "elements outside the result were written";

  // The last row alone.
  std::copy_n(x.begin() + (c.rows - 1) * x_stride, x_stride, x.begin());
  x_device.set(x);
  count.set({1});
  y.set(poison);
  CUDA_CHECK(launch_linear_many(plan, tiling.split, linear.most_rows, multiprocessors(), nullptr));
  CUDA_CHECK(cudaDeviceSynchronize());
  const auto alone = y.get();
  const std::size_t row_words = static_cast<std::size_t>(c.n) * (c.bf16 ? 1 : 2);
  const std::size_t last = static_cast<std::size_t>((c.rows - 1) * y_stride) * (c.bf16 ? 1 : 2);
  EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + static_cast<std::int64_t>(row_words),
                         fast.begin() + static_cast<std::int64_t>(last)))
      << "a row alone differs from the row among others";
}

std::vector<LinearCase> linear_cases(PackedCode code) {
  return {{code, 16, 64, 1, 1, 0, true},     {code, 1, 8, 1, 3, 2, false},
          {code, 128, 256, 1, 64, 0, true},  {code, 200, 640, 1, 65, 70, false},
          {code, 331, 333, 1, 129, 3, true}, {code, 264, 1288, 1, 200, 300, true},
          {code, 384, 328, 3, 77, 1, true},  {code, 512, 512, 4, 130, 0, false}};
}

TEST(LinearMany, EqualsThePortableKernelAndTheSum) {
  NEED_HOPPER();
  for (const PackedCode code : {PackedCode::kBf16, PackedCode::kFp8, PackedCode::kFp4})
    for (const int row_tile : {64, 128, 160, 192})
      for (const LinearCase& c : linear_cases(code))
        check_linear(c, {row_tile, 0});
}

// A tile shared by the blocks of a cluster; the last case has more tiles than clusters run at once.
TEST(LinearMany, EverySplitEqualsThePortableKernelAndTheSum) {
  NEED_HOPPER();
  for (const PackedCode code : {PackedCode::kBf16, PackedCode::kFp8, PackedCode::kFp4})
    for (const int row_tile : {16, 32, 64})
      for (int split = 1; split <= kMostSplit; ++split) {
        const LinearTiling tiling{row_tile, split};
        for (const LinearCase& c : linear_cases(code))
          check_linear(c, tiling);
        if (split % 4 == 2) check_linear({code, 1100, 600, 1, 300, 7, true}, tiling);
      }
}

// Parts of different codes and heights that share an input, one launch.
TEST(LinearMany, PartsShareALaunch) {
  NEED_HOPPER();
  constexpr int kColumns = 1288, kMost = 70;
  const PackedCode codes[] = {PackedCode::kFp8, PackedCode::kBf16, PackedCode::kFp4};
  const int outputs[] = {520, 24, 136};
  const DeviceArray<std::uint16_t> x(random_rows(std::int64_t{kMost} * kColumns, 3));
  const DeviceArray<std::int32_t> count({61});
  std::vector<std::unique_ptr<DeviceArray<std::uint8_t>>> weights;
  std::vector<std::unique_ptr<DeviceArray<std::uint16_t>>> fast, slow;
  std::vector<LinearMany> parts;
  for (int part = 0; part < 3; ++part) {
    const Weights packed = random_weights(codes[part], outputs[part], kColumns, 30 + part);
    const std::vector<std::uint16_t> poison(static_cast<std::size_t>(kMost) * outputs[part], kPoison);
    weights.push_back(std::make_unique<DeviceArray<std::uint8_t>>(packed.units));
    weights.push_back(std::make_unique<DeviceArray<std::uint8_t>>(packed.scales));
    fast.push_back(std::make_unique<DeviceArray<std::uint16_t>>(poison));
    slow.push_back(std::make_unique<DeviceArray<std::uint16_t>>(poison));
    LinearMany linear{packed.shape,  x.data(), kColumns,     1,    slow.back()->data(),
                      outputs[part], true,     count.data(), kMost};
    linear.weight.units = weights[weights.size() - 2]->data();
    linear.weight.scales = weights.back()->data();
    CUDA_CHECK(launch_linear_many_portable(linear, nullptr));
    linear.y = fast.back()->data();
    parts.push_back(linear);
  }
  for (const LinearTiling tiling : {LinearTiling{64, 0}, LinearTiling{16, 1}, LinearTiling{32, 3},
                                    LinearTiling{64, 2}, LinearTiling{64, 8}}) {
    LinearManyPlan plan;
    CUDA_CHECK(plan_linear_many(parts, tiling.row_tile, &plan));
    CUDA_CHECK(launch_linear_many(plan, tiling.split, kMost, multiprocessors(), nullptr));
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int part = 0; part < 3; ++part) {
      EXPECT_EQ(fast[part]->get(), slow[part]->get())
          << "part " << part << " tile " << tiling.row_tile << " split " << tiling.split;
      fast[part]->set(std::vector<std::uint16_t>(static_cast<std::size_t>(kMost) * outputs[part], kPoison));
    }
  }
}

TEST(LinearMany, NoRows) {
  NEED_HOPPER();
  const Weights weights = random_weights(PackedCode::kFp8, 128, 64, 1);
  const DeviceArray<std::uint8_t> units(weights.units), scales(weights.scales);
  const DeviceArray<std::uint16_t> x(random_rows(64 * 64, 2)),
      y(std::vector<std::uint16_t>(64 * 128, kPoison));
  const DeviceArray<std::int32_t> count({0});
  LinearMany linear{weights.shape, x.data(), 64, 1, y.data(), 128, true, count.data(), 64};
  linear.weight.units = units.data();
  linear.weight.scales = scales.data();
  LinearManyPlan plan;
  CUDA_CHECK(plan_linear_many(std::span(&linear, 1), 64, &plan));
  for (const int split : {0, 1, 3}) {
    CUDA_CHECK(launch_linear_many(plan, split, linear.most_rows, multiprocessors(), nullptr));
    CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(y.get(), std::vector<std::uint16_t>(64 * 128, kPoison)) << split;
  }
}

TEST(LinearMany, RefusesWhatItCannotDo) {
  NEED_HOPPER();
  const Weights weights = random_weights(PackedCode::kFp8, 256, 64, 1);
  const DeviceArray<std::uint16_t> x(random_rows(64 * 128, 2)), y(std::vector<std::uint16_t>(64 * 256, 0));
  const DeviceArray<std::int32_t> count({0});
  const LinearMany good{weights.shape, x.data(), 128, 2, y.data(), 256, true, count.data(), 64};
  LinearManyPlan plan;
  EXPECT_EQ(plan_linear_many(std::span(&good, 1), 64, &plan), cudaSuccess);
  LinearMany bad = good;
  bad.x_stride = 129;
  EXPECT_EQ(plan_linear_many(std::span(&bad, 1), 64, &plan), cudaErrorInvalidValue);
  bad = good;
  bad.groups = 4;  // 64 outputs a group
  EXPECT_EQ(plan_linear_many(std::span(&bad, 1), 64, &plan), cudaErrorInvalidValue);
  bad = good;
  bad.x = x.data() + 1;
  EXPECT_EQ(plan_linear_many(std::span(&bad, 1), 64, &plan), cudaErrorInvalidValue);
  EXPECT_EQ(plan_linear_many(std::span(&good, 1), 77, &plan), cudaErrorInvalidValue);
  ASSERT_EQ(plan_linear_many(std::span(&good, 1), 192, &plan), cudaSuccess);
  EXPECT_EQ(launch_linear_many(plan, 2, 64, multiprocessors(), nullptr), cudaErrorInvalidValue);
  ASSERT_EQ(plan_linear_many(std::span(&good, 1), 16, &plan), cudaSuccess);
  EXPECT_EQ(launch_linear_many(plan, 0, 64, multiprocessors(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(launch_linear_many(plan, kMostSplit + 1, 64, multiprocessors(), nullptr), cudaErrorInvalidValue);
}

cudaError_t gate_up_many(const ExpertsGateUp& experts) {
  ExpertsGateUpPlan plan;
  const cudaError_t error = plan_experts_gate_up_many(experts, &plan);
  return error != cudaSuccess ? error : launch_experts_gate_up_many(plan, nullptr);
}
cudaError_t down_many(const ExpertsDown& experts) {
  ExpertsDownPlan plan;
  const cudaError_t error = plan_experts_down_many(experts, &plan);
  return error != cudaSuccess ? error : launch_experts_down_many(plan, nullptr);
}

// Pairs dealt to experts at random so that expert e gets counts[e] of them.
struct Deal {
  std::vector<std::int32_t> first, slots;
};
Deal deal(const std::vector<int>& counts, std::uint64_t seed) {
  Deal result;
  const int pairs = std::accumulate(counts.begin(), counts.end(), 0);
  result.slots.resize(static_cast<std::size_t>(pairs));
  std::iota(result.slots.begin(), result.slots.end(), 0);
  std::shuffle(result.slots.begin(), result.slots.end(), std::mt19937_64(seed));
  result.first.push_back(0);
  for (const int count : counts) {
    const auto begin = result.slots.begin() + result.first.back();
    std::sort(begin, begin + count);
    result.first.push_back(result.first.back() + count);
  }
  return result;
}

// A stack of experts on the device.
struct Stack {
  std::vector<Weights> experts;
  DeviceArray<std::uint8_t> units, scales;

  static std::vector<std::uint8_t> joined(const std::vector<Weights>& experts,
                                          std::vector<std::uint8_t> Weights::*part) {
    std::vector<std::uint8_t> all;
    for (const Weights& expert : experts)
      all.insert(all.end(), (expert.*part).begin(), (expert.*part).end());
    return all;
  }
  explicit Stack(std::vector<Weights> of)
      : experts(std::move(of)),
        units(joined(experts, &Weights::units)),
        scales(joined(experts, &Weights::scales)) {}
  PackedMatrix matrix() const {
    PackedMatrix first = experts[0].shape;
    first.units = units.data();
    first.scales = scales.data();
    return first;
  }
};
Stack random_stack(PackedCode code, int n, int k, std::size_t experts, std::uint64_t seed) {
  std::vector<Weights> all;
  for (std::size_t e = 0; e < experts; ++e)
    all.push_back(random_weights(code, n, k, seed + e));
  return Stack(std::move(all));
}

void check_experts(PackedCode code, int hidden, int width, const std::vector<int>& counts, int top_k,
                   bool weighted) {
  SCOPED_TRACE("code " + std::to_string(static_cast<int>(code)) + " hidden " + std::to_string(hidden) +
               " width " + std::to_string(width));
  const Stack gate = random_stack(code, width, hidden, counts.size(), 100),
              up = random_stack(code, width, hidden, counts.size(), 200),
              down = random_stack(code, hidden, width, counts.size(), 300);
  const int pairs = std::accumulate(counts.begin(), counts.end(), 0), rows = (pairs + top_k - 1) / top_k;
  const std::int64_t stride = hidden + 8;
  std::vector<std::uint16_t> x = random_rows(rows * stride, 4);
  for (int row = 0; row < rows; ++row)
    for (std::int64_t column = hidden; column < stride; ++column)
      x[static_cast<std::size_t>(row * stride + column)] = kPoison;
  std::vector<float> factors(static_cast<std::size_t>(rows * top_k));
  for (std::size_t i = 0; i < factors.size(); ++i)
    factors[i] = 0.01f * static_cast<float>(mix(3, i, 0) % 200);
  const Deal dealt = deal(counts, 11);
  const DeviceArray<std::int32_t> first(dealt.first), slots(dealt.slots);
  const DeviceArray<std::uint16_t> x_device(x);
  const DeviceArray<float> factors_device(factors);
  const std::vector<std::uint16_t> t_poison(static_cast<std::size_t>(rows * top_k) * width, kPoison),
      y_poison(static_cast<std::size_t>(rows * top_k) * hidden, kPoison);
  const DeviceArray<std::uint16_t> t(t_poison), t_portable(t_poison), y(y_poison), y_portable(y_poison);
  const ExpertPairs list{first.data(), slots.data(), static_cast<int>(counts.size()), top_k};
  ExpertsGateUp gate_up{
      gate.matrix(), up.matrix(), list, x_device.data(), stride, weighted ? factors_device.data() : nullptr,
      7.0f,          t.data()};
  CUDA_CHECK(gate_up_many(gate_up));
  ExpertsDown project{down.matrix(), list, t.data(), y.data()};
  CUDA_CHECK(down_many(project));
  gate_up.t = t_portable.data();
  CUDA_CHECK(launch_experts_gate_up_portable(gate_up, nullptr));
  project.y = y_portable.data();
  CUDA_CHECK(launch_experts_down_portable(project, nullptr));
  CUDA_CHECK(cudaDeviceSynchronize());
  const auto t_fast = t.get(), y_fast = y.get();
  EXPECT_EQ(t_fast, t_portable.get());
  EXPECT_EQ(y_fast, y_portable.get());

  int wrong = 0, checked = 0;
  for (std::size_t e = 0; e < counts.size(); ++e)
    for (int i = dealt.first[e]; i < dealt.first[e + 1]; i += 1 + counts[e] / 3) {
      const auto pair = static_cast<std::size_t>(dealt.slots[static_cast<std::size_t>(i)]);
      const std::uint16_t* row =
          &x[pair / static_cast<std::size_t>(top_k) * static_cast<std::size_t>(stride)];
      for (int o = 0; o < width; ++o, ++checked) {
        const Product g = product(gate.experts[e], o, row), u = product(up.experts[e], o, row);
        const double gated = std::min(g.value, 7.0), upped = std::clamp(u.value, -7.0, 7.0);
        const double silu = gated / (1.0 + std::exp(-gated)), factor = weighted ? factors[pair] : 1.0;
        const double g_error = g.magnitude * 0x1p-18 + std::fabs(g.value) * 0x1p-8,
                     u_error = u.magnitude * 0x1p-18 + std::fabs(upped) * 0x1p-8;
        const double allowed =
            factor * (1.2 * g_error * (std::fabs(upped) + u_error) + std::fabs(silu) * u_error) +
            std::fabs(silu * upped * factor) * 0x1p-7 + 1e-30;
        const double value =
            from_bf16(t_fast[pair * static_cast<std::size_t>(width) + static_cast<std::size_t>(o)]);
        wrong += !(std::fabs(value - silu * upped * factor) <= allowed);
      }
      const std::uint16_t* t_row = &t_fast[pair * static_cast<std::size_t>(width)];
      for (int o = 0; o < hidden; ++o, ++checked) {
        const Product wanted = product(down.experts[e], o, t_row);
        const double value =
            from_bf16(y_fast[pair * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(o)]);
        wrong += !(std::fabs(value - wanted.value) <=
                   wanted.magnitude * 0x1p-18 + std::fabs(wanted.value) * 0x1p-8 + 1e-30);
      }
    }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(checked, 0);
  // Pairs past the list belong to nobody.
  EXPECT_TRUE(std::all_of(t_fast.begin() + std::int64_t{pairs} * width, t_fast.end(),
                          [](std::uint16_t v) { return v == kPoison; }));
}

TEST(ExpertsMany, EqualThePortableKernelsAndTheSums) {
  NEED_HOPPER();
  for (const PackedCode code : {PackedCode::kFp4, PackedCode::kFp8, PackedCode::kBf16}) {
    check_experts(code, 64, 64, {1}, 1, false);
    check_experts(code, 200, 72, {0, 5, 16, 0, 17, 32, 33}, 3, true);
    check_experts(code, 648, 264, {0, 64, 65, 96, 100, 112, 113, 128, 0}, 6, true);
    if (code == PackedCode::kFp4) check_experts(code, 2112, 1608, {129, 40, 150, 0, 161, 7}, 6, true);
    check_experts(code, 320, 136, {129, 144, 150, 160, 161, 170, 321, 0, 700, 3}, 6, false);
  }
}

// The same (row, expert) among other pairs, at other places of other tiles.
TEST(ExpertsMany, APairAloneIsThePairAmongOthers) {
  NEED_HOPPER();
  constexpr int kHidden = 512, kWidth = 128, kRows = 300;
  const Stack gate = random_stack(PackedCode::kFp4, kWidth, kHidden, 1, 1),
              up = random_stack(PackedCode::kFp4, kWidth, kHidden, 1, 2);
  const DeviceArray<std::uint16_t> x(random_rows(kRows * kHidden, 4));
  const std::vector<std::uint16_t> poison(static_cast<std::size_t>(kRows) * kWidth, kPoison);
  const DeviceArray<std::uint16_t> t(poison);
  const auto run = [&](const std::vector<std::int32_t>& pairs) {
    const DeviceArray<std::int32_t> first({0, static_cast<std::int32_t>(pairs.size())}), slots(pairs);
    CUDA_CHECK(gate_up_many({gate.matrix(),
                             up.matrix(),
                             {first.data(), slots.data(), 1, 1},
                             x.data(),
                             kHidden,
                             nullptr,
                             7.0f,
                             t.data()}));
    CUDA_CHECK(cudaDeviceSynchronize());
    return t.get();
  };
  std::vector<std::int32_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  const auto together = run(all);
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{20}, std::size_t{50}, std::size_t{90}, std::size_t{110}, std::size_t{125},
        std::size_t{140}, std::size_t{159}, std::size_t{200}}) {
    std::vector<std::int32_t> some = all;
    std::shuffle(some.begin(), some.end(), std::mt19937_64(size));
    some.resize(size);
    const auto result = run(some);
    for (const std::int32_t pair : some)
      EXPECT_TRUE(std::equal(result.begin() + pair * kWidth, result.begin() + (pair + 1) * kWidth,
                             together.begin() + pair * kWidth))
          << "pair " << pair << " among " << size;
  }
}

// Every bf16 gate value, against base/math.h.
TEST(ExpertsMany, SwiGluOfEveryGateValue) {
  NEED_HOPPER();
  constexpr int kRows = 65536, kHidden = 64, kWidth = 8;
  const auto pick = [](int column) {
    return make_weights(
        PackedCode::kBf16, kWidth, kHidden,
        [=](int output, int at) -> unsigned { return output == 0 && at == column ? 0x3f80u : 0u; },
        [](int, int) { return 127; });
  };
  const Stack gate({pick(0)}), up({pick(1)});
  std::vector<std::int32_t> pairs(kRows);
  std::iota(pairs.begin(), pairs.end(), 0);
  const DeviceArray<std::int32_t> first({0, kRows}), slots(pairs);
  const DeviceArray<std::uint16_t> t(std::vector<std::uint16_t>(std::size_t{kRows} * kWidth, kPoison));
  for (const float up_value : {1.0f, -0.40625f, 100.0f, 0x1p-30f})
    for (const float limit : {10.0f, 0x1p127f}) {
      std::vector<std::uint16_t> x(std::size_t{kRows} * kHidden, 0);
      for (std::size_t row = 0; row < kRows; ++row) {
        x[row * kHidden] = static_cast<std::uint16_t>(row);
        x[row * kHidden + 1] = to_bf16(up_value);
      }
      const DeviceArray<std::uint16_t> x_device(x);
      CUDA_CHECK(gate_up_many({gate.matrix(),
                               up.matrix(),
                               {first.data(), slots.data(), 1, 1},
                               x_device.data(),
                               kHidden,
                               nullptr,
                               limit,
                               t.data()}));
      CUDA_CHECK(cudaDeviceSynchronize());
      const auto result = t.get();
      int wrong = 0;
      for (std::size_t row = 0; row < kRows; ++row) {
        const float g = from_bf16(static_cast<std::uint16_t>(row));
        if (!std::isfinite(g)) continue;  // times the zero weights of other outputs: not this test's
        const float wanted = silu_f32(std::min(g, limit)) * std::clamp(up_value, -limit, limit);
        const std::uint16_t bits = to_bf16(wanted), got = result[row * kWidth];
        // The gate's own product flushes nothing, but 0 * g + ... is +0 for -0.
        const bool same = bits == got || ((bits & 0x7fffu) == 0 && (got & 0x7fffu) == 0);
        if (!same && ++wrong < 5)
          ADD_FAILURE() << "g " << g << ": " << from_bf16(got) << ", wanted " << wanted;
      }
      EXPECT_EQ(wrong, 0);
    }
}

}  // namespace
}  // namespace deepinfer::backend::cuda
