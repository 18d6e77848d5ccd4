#include <cstdlib>

#include "backend/cuda/kernels/common/gpu_world.h"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda::test {
namespace {

enum class Place { kDevice, kPinned, kRegistered };

// Bytes where a kernel finds them, the first of them `shift` bytes past a multiple of 256.
class PlacedBytes {
 public:
  PlacedBytes(Place place, const std::vector<std::uint8_t>& bytes, size_t shift) : place_(place) {
    const size_t size = bytes.size() + shift;
    if (place == Place::kDevice) {
      EXPECT_EQ(cudaMalloc(&base_, size), cudaSuccess);
      EXPECT_EQ(cudaMemcpy(static_cast<std::byte*>(base_) + shift, bytes.data(), bytes.size(),
                           cudaMemcpyHostToDevice),
                cudaSuccess);
      seen_ = static_cast<const std::uint8_t*>(base_) + shift;
      return;
    }
    constexpr size_t kPage = 4096;
    if (place == Place::kPinned) {
      EXPECT_EQ(cudaHostAlloc(&base_, size, cudaHostAllocMapped), cudaSuccess);
    } else {
      const size_t whole = (size + kPage - 1) / kPage * kPage;
      base_ = std::aligned_alloc(kPage, whole);
      EXPECT_EQ(cudaHostRegister(base_, whole, cudaHostRegisterMapped), cudaSuccess);
    }
    std::memcpy(static_cast<std::byte*>(base_) + shift, bytes.data(), bytes.size());
    void* seen = nullptr;
    EXPECT_EQ(cudaHostGetDevicePointer(&seen, base_, 0), cudaSuccess);
    seen_ = static_cast<const std::uint8_t*>(seen) + shift;
  }
  ~PlacedBytes() {
    switch (place_) {
      case Place::kDevice: cudaFree(base_); break;
      case Place::kPinned: cudaFreeHost(base_); break;
      case Place::kRegistered:
        cudaHostUnregister(base_);
        std::free(base_);
        break;
    }
  }
  PlacedBytes(const PlacedBytes&) = delete;
  PlacedBytes& operator=(const PlacedBytes&) = delete;

  const std::uint8_t* seen() const { return seen_; }

 private:
  Place place_;
  void* base_ = nullptr;
  const std::uint8_t* seen_ = nullptr;
};

struct Case {
  int k = 256;
  size_t shift = 0;
};

class EngramGatherTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

template <class Element>
std::vector<Element> gathered(const StepArrays& arrays, Place place, const Case& c, std::int64_t n,
                              const std::vector<std::uint8_t>& codes, const std::vector<std::uint8_t>& scales,
                              const std::vector<std::int32_t>& indices, int columns) {
  const PlacedBytes data(place, codes, c.shift), scale(place, scales, c.shift);
  PlainMatrix table;
  table.code = PlainCode::kFp8Rows;
  table.data = data.seen();
  table.scales = scale.seen();
  table.n = n;
  table.k = c.k;
  const DeviceArray<std::int32_t> named(indices);
  const auto width = static_cast<size_t>(columns * c.k);
  const DeviceArray<Element> out((arrays.names(RowAxis::kTokens).size() + 2) * width);
  engram_gather(arrays.data(), arrays.rows(RowAxis::kTokens, 2), table, named.data(), columns,
                {out.data(), sizeof(Element) == 2, static_cast<std::int64_t>(width)}, nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return out.host();
}

// Rows are those of the table, the same bits wherever it lies, and however it is aligned.
TEST_P(EngramGatherTest, RowsFromTheHostAreThoseOfTheDevice) {
  const Case& c = GetParam();
  constexpr std::int64_t kRows = 3001;
  constexpr int kColumns = 5;
  Random random{static_cast<std::uint64_t>(c.k) + c.shift};
  std::vector<std::uint8_t> codes(static_cast<size_t>(kRows * c.k)), scales(codes.size() / 32);
  for (auto& code : codes) {
    code = static_cast<std::uint8_t>(random.next());
    if ((code & 0x7f) == 0x7f) code ^= 1;
  }
  for (auto& scale : scales)
    scale = static_cast<std::uint8_t>(110 + random.next() % 20);
  std::vector<SequenceSpec> specs;
  for (std::uint64_t id = 1; id <= 3; ++id)
    specs.push_back(
        {.id = id, .start = static_cast<std::int64_t>(id * 10), .tokens = static_cast<int>(id) * 7});
  const StepArrays arrays(specs, nullptr, 0, nullptr, 0);
  const size_t rows = arrays.names(RowAxis::kTokens).size();
  // Rows past the count name nothing: reading what they name would be a fault.
  std::vector<std::int32_t> indices((rows + 2) * kColumns, 1 << 30);
  for (size_t i = 0; i < rows * kColumns; ++i)
    indices[i] = i == 0 ? 0 : i == 1 ? kRows - 1 : static_cast<std::int32_t>(random.next() % kRows);
  std::vector<float> expected;
  for (size_t i = 0; i < rows * kColumns; ++i)
    for (int column = 0; column < c.k; ++column) {
      const auto at =
          static_cast<size_t>(indices[i]) * static_cast<size_t>(c.k) + static_cast<size_t>(column);
      expected.push_back(static_cast<float>(std::ldexp(e4m3(codes[at]), scales[at / 32] - 127)));
    }

  for (const Place place : {Place::kDevice, Place::kPinned, Place::kRegistered}) {
    SCOPED_TRACE(static_cast<int>(place));
    const auto wide = gathered<float>(arrays, place, c, kRows, codes, scales, indices, kColumns);
    const auto half = gathered<std::uint16_t>(arrays, place, c, kRows, codes, scales, indices, kColumns);
    ASSERT_EQ(wide.size(), half.size());
    for (size_t i = 0; i < wide.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(wide[i]);
      if (i >= expected.size()) {
        ASSERT_EQ(bits, 0xcdcdcdcdU) << "a row past the count was written";
        ASSERT_EQ(half[i], 0xcdcd) << "a row past the count was written";
        continue;
      }
      ASSERT_EQ(bits, std::bit_cast<std::uint32_t>(expected[i])) << i;
      ASSERT_EQ(half[i], bf16_bits(expected[i])) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EngramGatherTest,
                         ::testing::Values(Case{256, 0}, Case{256, 8}, Case{256, 4}, Case{256, 1},
                                           Case{32, 0}, Case{96, 0}, Case{96, 8}, Case{1024, 0}),
                         [](const auto& entry) {
                           return "k" + std::to_string(entry.param.k) + "_shift" +
                                  std::to_string(entry.param.shift);
                         });

}  // namespace
}  // namespace deepinfer::backend::cuda::test
