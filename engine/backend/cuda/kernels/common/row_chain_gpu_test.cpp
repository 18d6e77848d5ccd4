#include "backend/cuda/kernels/common/row_chain.h"

#include <algorithm>

#include "backend/cuda/kernels/common/gpu_world.h"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda::test {
namespace {

struct Case {
  const char* name;
  int size = 512;
  int vectors = 1;
  bool norm = true;
  bool weighted = true;
  int pairs = 32;
  bool hadamard = false;
  bool quantises = false;
  RecordShape shape{};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Case kCases[] = {
    {.name = "window rows", .quantises = true, .shape = {RecordCode::kFp8, 512, 512, 32, false}},
    {.name = "window rows with a tail", .quantises = true, .shape = {RecordCode::kFp8, 512, 448, 64, false}},
    {.name = "queries normed a head", .vectors = 64, .weighted = false},
    {.name = "index query",
     .size = 128,
     .vectors = 32,
     .norm = false,
     .hadamard = true,
     .quantises = true,
     .shape = {RecordCode::kMxfp4, 128, 0, 32, false}},
    {.name = "short rows in NVFP4",
     .size = 128,
     .vectors = 3,
     .norm = false,
     .pairs = 16,
     .hadamard = true,
     .quantises = true,
     .shape = {RecordCode::kNvfp4, 128, 0, 16, false}},
    {.name = "short rows in FP8",
     .size = 128,
     .vectors = 5,
     .norm = false,
     .pairs = 64,
     .quantises = true,
     .shape = {RecordCode::kFp8, 128, 128, 128, false}},
    {.name = "short rows in FP8 with a tail",
     .size = 128,
     .vectors = 5,
     .norm = false,
     .quantises = true,
     .shape = {RecordCode::kFp8, 128, 64, 32, false}},
    {.name = "short rows", .size = 128, .vectors = 7, .norm = false, .pairs = 6, .hadamard = true},
    {.name = "small heads", .size = 24, .vectors = 3, .weighted = false, .pairs = 4},
    {.name = "index keys", .size = 128, .hadamard = true},
};

class RowChainTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

// One launch gives the bits of the single operations one after the other.
TEST_P(RowChainTest, GivesTheBitsOfItsParts) {
  const Case& c = GetParam();
  std::vector<SequenceSpec> specs;
  for (std::uint64_t id = 1; id <= 3; ++id)
    specs.push_back(
        {.id = id, .start = static_cast<std::int64_t>(id * 1000), .tokens = static_cast<int>(id) * 3});
  const StepArrays arrays(specs, nullptr, 0, nullptr, 0);
  const size_t width = static_cast<size_t>(c.size) * static_cast<size_t>(c.vectors);
  const size_t size = arrays.names(RowAxis::kTokens).size() * width;
  Random random{5};
  // Rows past the count are there to be read, not to be written.
  std::vector<std::uint16_t> input(size + 2 * width);
  for (auto& value : input)
    value = bf16_bits(random.normal());
  std::vector<float> weight(static_cast<size_t>(c.size));
  for (auto& value : weight)
    value = static_cast<float>(bf16_value(bf16_bits(1 + 0.2 * random.normal())));
  const DeviceArray<std::uint16_t> v(input);
  const DeviceArray<float> weights(weight);
  const DeviceArray<Angle> angles(token_angles(arrays, c.pairs));
  const auto values = [&](const DeviceArray<std::uint16_t>& array) {
    return Values{array.data(), true, static_cast<std::int64_t>(width)};
  };

  RowChain chain;
  chain.size = c.size;
  chain.norm = c.norm;
  chain.norm_weight = c.weighted ? weights.data() : nullptr;
  chain.norm_eps = 1e-6f;
  chain.rotates = true;
  chain.rotation = {angles.data(), nullptr, c.pairs, false};
  chain.hadamard = c.hadamard;
  chain.quantises = c.quantises;
  chain.shape = c.shape;

  const StepData step = arrays.data();
  const RowSpace rows = arrays.rows(RowAxis::kTokens, 2);
  const DeviceArray<std::uint16_t> a(size + 2 * width), b(size + 2 * width);
  const DeviceArray<std::uint16_t>* last = &v;
  const auto next = [&] { return last == &a ? &b : &a; };
  if (c.norm) {
    rms_norm(step, rows, values(*last), chain.norm_weight, c.vectors, chain.norm_eps, values(*next()),
             nullptr);
    last = next();
  }
  rope(step, rows, chain.rotation, values(*last), c.vectors, values(*next()), nullptr);
  last = next();
  if (c.hadamard) {
    hadamard(step, rows, values(*last), c.size, values(*next()), nullptr);
    last = next();
  }
  if (c.quantises) {
    fake_quantise(step, rows, c.shape, values(*last), values(*next()), nullptr);
    last = next();
  }
  const DeviceArray<std::uint16_t> once(size + 2 * width);
  row_chain(step, rows, chain, values(v), values(once), {}, nullptr);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  auto expected = last->host(), got = once.host();
  for (size_t i = size; i < got.size(); ++i)
    ASSERT_EQ(got[i], 0xcdcd) << "a row past the count was written";
  expected.resize(size);
  got.resize(size);
  input.resize(size);
  EXPECT_EQ(got, expected);
  EXPECT_NE(got, input);
}

// A norm beside gives the bits of the norm alone and leaves the chain's; 2304 columns are a launch of their own.
TEST_P(RowChainTest, TakesANormAlong) {
  const Case& c = GetParam();
  const StepArrays arrays({{.id = 1, .start = 500, .tokens = 5}}, nullptr, 0, nullptr, 0);
  const StepData step = arrays.data();
  const RowSpace rows = arrays.rows(RowAxis::kTokens, 3);
  constexpr std::size_t kRows = 8;
  Random random{6};
  const auto random_rows = [&](std::size_t width) {
    std::vector<std::uint16_t> bits(kRows * width);
    for (auto& value : bits)
      value = bf16_bits(random.normal());
    return DeviceArray<std::uint16_t>(bits);
  };
  const auto width = static_cast<std::size_t>(c.size) * static_cast<std::size_t>(c.vectors);
  const DeviceArray<std::uint16_t> v = random_rows(width), alone(kRows * width);
  const DeviceArray<Angle> angles(token_angles(arrays, c.pairs));
  const auto values = [&](const DeviceArray<std::uint16_t>& array, std::size_t columns) {
    return Values{array.data(), true, static_cast<std::int64_t>(columns)};
  };
  RowChain chain;
  chain.size = c.size;
  chain.norm = c.norm;
  chain.norm_eps = 1e-6f;
  chain.rotates = true;
  chain.rotation = {angles.data(), nullptr, c.pairs, false};
  row_chain(step, rows, chain, values(v, width), values(alone, width), {}, nullptr);
  for (const std::size_t columns : {24U, 1280U, 2048U, 2304U}) {
    SCOPED_TRACE(columns);
    const DeviceArray<std::uint16_t> x = random_rows(columns), expected(kRows * columns);
    const DeviceArray<float> weight(std::vector<float>(columns, 1.25f));
    const DeviceArray<std::uint16_t> beside(kRows * columns), chained(kRows * width);
    rms_norm(step, rows, values(x, columns), weight.data(), 1, 1e-5f, values(expected, columns), nullptr);
    const NormBeside norm{values(x, columns), values(beside, columns), weight.data(), 1e-5f};
    row_chain(step, rows, chain, values(v, width), values(chained, width), norm, nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(beside.host(), expected.host());
    EXPECT_EQ(chained.host(), alone.host());
    EXPECT_NE(beside.host(), x.host());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RowChainTest, ::testing::ValuesIn(kCases), [](const auto& entry) {
  std::string name = entry.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

}  // namespace
}  // namespace deepinfer::backend::cuda::test
