// Products of few rows on the GPU: weights that stream through blocks and clusters, against the kernel for 9 to 16 rows, bit for bit.
#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/kernels/common/gpu_world.h"
#include "backend/cuda/kernels/common/linear.h"

namespace deepinfer::backend::cuda::test {
namespace {

struct Case {
  const char* name;
  PlainCode code;
  int n, k;
  int groups = 1;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Case kCases[] = {
    {"many columns", PlainCode::kFp8Tile, 320, 8192},  // eight rows: a cluster
    {"an uneven number of chunks", PlainCode::kFp8Tile, 144, 6912},
    {"more tiles than blocks", PlainCode::kFp8Tile, 16384, 256},
    {"clusters with several tiles", PlainCode::kBf16, 2400, 5120},
    {"fp4", PlainCode::kFp4Rows, 304, 5120},
    {"columns of no whole chunk", PlainCode::kBf16, 40, 5000},
    {"columns of no whole copy", PlainCode::kBf16, 40, 5002},
    {"few columns", PlainCode::kFp8Tile, 512, 1280},
    {"groups", PlainCode::kFp8Tile, 512, 4096, 8},
    {"small groups", PlainCode::kBf16, 64, 512, 4},
};

class LinearFewTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

int multiprocessors() {
  int count = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  return count;
}

struct Weight {
  DeviceArray<std::uint8_t> data, scales, units, unit_scales;
  DeviceArray<int> bad;
  PackedMatrix packed;
};

Weight random_weight(const Case& c, Random& random) {
  PlainMatrix plain;
  plain.code = c.code;
  plain.n = c.n;
  plain.k = c.k;
  plain.tile = c.code == PlainCode::kFp8Tile ? 128 : 0;
  const auto n = static_cast<std::size_t>(c.n), k = static_cast<std::size_t>(c.k);
  const std::size_t codes = c.code == PlainCode::kBf16      ? n * k * 2
                            : c.code == PlainCode::kFp8Tile ? n * k
                                                            : n * k / 2;
  const std::size_t scale_bytes =
      c.code == PlainCode::kFp8Tile ? (n + 127) / 128 * ((k + 127) / 128) : n * (k / 32);
  std::vector<std::uint8_t> data(codes), scales(std::max<std::size_t>(scale_bytes, 16), 0);
  if (c.code == PlainCode::kBf16) {
    for (std::size_t i = 0; i < n * k; ++i) {
      const std::uint16_t bits = bf16_bits(0.05 * random.normal());
      data[2 * i] = static_cast<std::uint8_t>(bits);
      data[2 * i + 1] = static_cast<std::uint8_t>(bits >> 8);
    }
  } else {
    for (auto& byte : data) {
      byte = static_cast<std::uint8_t>(random.next() & 0xff);
      if (c.code == PlainCode::kFp8Tile && (byte & 0x7f) == 0x7f) byte = 0x30;
    }
    for (auto& byte : scales)
      byte = static_cast<std::uint8_t>(116 + random.next() % 8);
  }
  PackedMatrix packed;
  packed.code = packed_code(c.code);
  packed.n = c.n;
  packed.k = c.k;
  packed.k_padded = (c.k + kChunk - 1) / kChunk * kChunk;
  Weight weight{
      DeviceArray<std::uint8_t>(data),
      DeviceArray<std::uint8_t>(scales),
      DeviceArray<std::uint8_t>(static_cast<std::size_t>(packed.unit_bytes())),
      DeviceArray<std::uint8_t>(std::max<std::size_t>(static_cast<std::size_t>(packed.scale_bytes()), 16)),
      DeviceArray<int>(std::vector<int>{0}),
      packed};
  plain.data = weight.data.data();
  plain.scales = weight.scales.data();
  pack(plain, weight.packed, weight.units.data(), weight.unit_scales.data(), weight.bad.data(), nullptr);
  weight.packed.units = weight.units.data();
  weight.packed.scales = weight.unit_scales.data();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(weight.bad.host()[0], 0);
  return weight;
}

TEST_P(LinearFewTest, GivesTheBitsOfMoreRows) {
  const Case& c = GetParam();
  Random random{17};
  const Weight weight = random_weight(c, random);
  constexpr int kMost = 16;  // from 9 rows on another kernel multiplies
  const int columns = c.k * c.groups;
  // Rows that the step does not have are NaN: what comes of them is nobody's.
  for (const int rows : {1, 2, 3, 5, 8}) {
    SCOPED_TRACE(rows);
    const StepArrays arrays({{.id = 1, .start = 10, .tokens = rows}}, nullptr, 0, nullptr, 0);
    std::vector<std::uint16_t> input(static_cast<std::size_t>(kMost) * static_cast<std::size_t>(columns),
                                     0x7fc0);
    for (int i = 0; i < rows * columns; ++i)
      input[static_cast<std::size_t>(i)] = bf16_bits(random.normal());
    const DeviceArray<std::uint16_t> x(input);
    const std::size_t outputs = static_cast<std::size_t>(kMost) * static_cast<std::size_t>(c.n);
    const DeviceArray<std::uint16_t> expected(outputs), got(outputs);
    const auto product = [&](int most, const DeviceArray<std::uint16_t>& y) {
      LinearParts parts;
      parts.part[parts.count++] = {weight.packed, Values{y.data(), true, c.n}, c.groups};
      RowSpace space = arrays.rows(RowAxis::kTokens, 0);
      space.most = most;
      linear_few(arrays.data(), space, parts, Values{x.data(), true, columns}, multiprocessors(), nullptr);
    };
    product(kMost, expected);
    product(rows == 3 ? 4 : rows == 5 ? 8 : rows, got);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto wanted = expected.host();
    EXPECT_EQ(got.host(), wanted);
    EXPECT_NE(wanted[0], 0xcdcd);
    EXPECT_EQ(wanted.back(), 0xcdcd) << "a row past the count was written";
  }
}

// Parts that share an input, of all codes, as one launch and each by itself.
TEST(LinearFewParts, InOneLaunch) {
  if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  Random random{18};
  const Case cases[] = {{"gate", PlainCode::kBf16, 384, 5120},
                        {"shared", PlainCode::kFp8Tile, 2304, 5120},
                        {"other", PlainCode::kFp4Rows, 48, 5120}};
  std::vector<Weight> weights;
  for (const Case& c : cases)
    weights.push_back(random_weight(c, random));
  for (const int rows : {1, 8}) {
    SCOPED_TRACE(rows);
    const StepArrays arrays({{.id = 1, .start = 10, .tokens = rows}}, nullptr, 0, nullptr, 0);
    std::vector<std::uint16_t> input(static_cast<std::size_t>(rows) * 5120);
    for (auto& value : input)
      value = bf16_bits(random.normal());
    const DeviceArray<std::uint16_t> x(input);
    std::vector<DeviceArray<std::uint16_t>> together, alone;
    LinearParts parts;
    for (const Weight& weight : weights) {
      const std::size_t outputs = static_cast<std::size_t>(rows) * static_cast<std::size_t>(weight.packed.n);
      together.emplace_back(outputs);
      alone.emplace_back(outputs);
      parts.part[parts.count++] = {weight.packed, Values{together.back().data(), true, weight.packed.n}};
      LinearParts one;
      one.part[one.count++] = {weight.packed, Values{alone.back().data(), true, weight.packed.n}};
      linear_few(arrays.data(), arrays.rows(RowAxis::kTokens, 0), one, Values{x.data(), true, 5120},
                 multiprocessors(), nullptr);
    }
    linear_few(arrays.data(), arrays.rows(RowAxis::kTokens, 0), parts, Values{x.data(), true, 5120},
               multiprocessors(), nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_EQ(together[i].host(), alone[i].host()) << cases[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LinearFewTest, ::testing::ValuesIn(kCases), [](const auto& entry) {
  std::string name = entry.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

}  // namespace
}  // namespace deepinfer::backend::cuda::test
