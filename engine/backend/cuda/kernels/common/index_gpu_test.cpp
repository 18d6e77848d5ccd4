#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/cuda/kernels/common/gpu_world.h"
#include "backend/cuda/kernels/common/index_scores.h"
#include "backend/cuda/kernels/common/select.h"

namespace deepinfer::backend::cuda::test {
namespace {

constexpr RecordShape kFp4Keys{RecordCode::kMxfp4, 128, 0, 32, false};
constexpr RecordShape kPlainKeys{RecordCode::kBf16, 128, 0, 0, false};
constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Case {
  const char* name;
  int heads = 32;
  RecordShape keys = kFp4Keys;
  int ratio = 1;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

RandomRecord key_record(const Case& c, std::uint64_t id, std::int64_t row) {
  return random_record(c.keys, mixed(id, static_cast<std::uint64_t>(row), 11));
}

struct Step {
  Case c;
  std::vector<SequenceSpec> specs;
  PlacedRecord keys;
  StepMemory memory;
  DeviceArray<std::uint8_t> blocks;
  StepArrays arrays;
  std::vector<std::uint16_t> query_values, weight_values;
  DeviceArray<std::uint16_t> query, weights;
  std::int64_t most = 0;

  Step(const Case& which, const std::vector<SequenceSpec>& sequences)
      : c(which),
        specs(sequences),
        keys(placed(c.keys, 128 / c.ratio, 192)),
        memory(fill()),
        blocks(memory.blocks),
        arrays(specs, nullptr, 0, reinterpret_cast<std::byte*>(blocks.data()), memory.block_bytes),
        query_values(draw(static_cast<size_t>(c.heads) * 128, 21)),
        weight_values(draw(static_cast<size_t>(c.heads), 22)),
        query(query_values),
        weights(weight_values) {
    for (const SequenceSpec& spec : specs)
      most = std::max(most, (spec.start + spec.tokens) / c.ratio);
    most = std::max<std::int64_t>(most, 1);
  }
  StepMemory fill() {
    StepMemory m(specs, 0, (keys.end + 255) / 256 * 256);
    std::int64_t first_block = 0;
    for (const SequenceSpec& spec : specs) {
      for (std::int64_t row = 0; row < (spec.start + spec.tokens) / c.ratio; ++row)
        m.store_row(key_record(c, spec.id, row), keys.record.place, first_block, StepArrays::blocks_of(spec),
                    row);
      first_block += StepArrays::blocks_of(spec);
    }
    return m;
  }
  std::vector<std::uint16_t> draw(size_t width, std::uint64_t stream) const {
    std::vector<std::uint16_t> all;
    for (const RowName& name : arrays.names(RowAxis::kTokens)) {
      Random random{mixed(name.first, static_cast<std::uint64_t>(name.second), stream)};
      for (size_t i = 0; i < width; ++i)
        all.push_back(bf16_bits(random.normal()));
    }
    return all;
  }

  IndexScores scores(int first_row, int row_count) const {
    IndexScores index;
    index.step = arrays.data();
    index.queries = arrays.rows(RowAxis::kTokens, 0);
    index.first_row = first_row, index.row_count = row_count;
    index.query = query.data(), index.weights = weights.data();
    index.heads = c.heads, index.scale = 0x1p-6f;
    index.keys = keys.record, index.ratio = c.ratio;
    index.most_entries = most;
    index.stride = (most + 7) / 8 * 8;
    return index;
  }
  std::int64_t visible(size_t row) const {
    return (arrays.names(RowAxis::kTokens)[row].second + 1) / c.ratio;
  }
  size_t rows() const { return arrays.names(RowAxis::kTokens).size(); }

  cudaError_t launch(const IndexScores& index, IndexVariant variant) const {
    const int processors = device().multiProcessorCount;
    return variant == IndexVariant::kWarp
               ? launch_index_scores(index, processors, nullptr)
               : launch_index_scores_sm90(index, variant == IndexVariant::kManyQueries, processors, nullptr);
  }
  // Bits of the visible scores, a vector a row; batches of `batch` queries.
  std::vector<std::vector<std::uint32_t>> run(IndexVariant variant, int batch) const {
    std::vector<std::vector<std::uint32_t>> result;
    for (int first = 0; first < static_cast<int>(rows()); first += batch) {
      IndexScores index = scores(first, batch);
      DeviceArray<float> out(static_cast<size_t>(batch * index.stride));
      index.scores = out.data();
      EXPECT_EQ(launch(index, variant), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto values = out.host();
      for (int i = 0; i < batch; ++i) {
        const auto row = static_cast<size_t>(first + i);
        const std::int64_t seen = row < rows() ? visible(row) : 0;
        const float* at = values.data() + i * index.stride;
        if (row < rows()) {
          result.emplace_back();
          for (std::int64_t j = 0; j < seen; ++j)
            result.back().push_back(std::bit_cast<std::uint32_t>(at[j]));
        }
        for (std::int64_t j = seen; j < index.stride; ++j)
          EXPECT_EQ(std::bit_cast<std::uint32_t>(at[j]), 0xcdcdcdcdu) << "row " << row << " entry " << j;
      }
    }
    return result;
  }
};

std::vector<IndexVariant> variants(const Case& c) {
  const bool hopper = device().major == 9 && device().minor == 0;
  if (!hopper || (c.heads != 32 && c.heads != 64) || c.keys.code != RecordCode::kMxfp4)
    return {IndexVariant::kWarp};
  return {IndexVariant::kWarp, IndexVariant::kOneQuery, IndexVariant::kManyQueries};
}

const std::vector<SequenceSpec> kMixed = {
    {.id = 1, .start = 0, .tokens = 1},    {.id = 2, .start = 1, .tokens = 3},
    {.id = 3, .start = 700, .tokens = 21}, {.id = 4, .start = 127, .tokens = 2},
    {.id = 5, .start = 1500, .tokens = 1}, {.id = 6, .start = 0, .tokens = 40}};

class IndexTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(IndexTest, ScoresAreCloseToPlainAndEqualInEveryVariantAndBatch) {
  const Case& c = GetParam();
  const Step step(c, kMixed);
  const auto first = step.run(IndexVariant::kWarp, static_cast<int>(step.rows()));
  for (size_t row = 0; row < step.rows(); row += 5) {
    const RowName name = step.arrays.names(RowAxis::kTokens)[row];
    for (size_t j = 0; j < first[row].size(); ++j) {
      const auto key = key_record(c, name.first, static_cast<std::int64_t>(j)).values;
      double sum = 0, size = 0;
      for (int head = 0; head < c.heads; ++head) {
        const size_t h = row * static_cast<size_t>(c.heads) + static_cast<size_t>(head);
        double dot = 0, terms = 0;
        for (size_t i = 0; i < 128; ++i) {
          const double term = key[i] * bf16_value(step.query_values[h * 128 + i]);
          dot += term, terms += std::abs(term);
        }
        const double weight = bf16_value(step.weight_values[h]) * 0x1p-6;
        sum += std::max(dot, 0.0) * weight;
        size += terms * std::abs(weight);
      }
      ASSERT_NEAR(std::bit_cast<float>(first[row][j]), sum, 1e-5 * size + 1e-30)
          << "row " << row << " key " << j;
    }
  }
  for (const IndexVariant variant : variants(c))
    for (const int batch : {1, 7, 8, 64, 100})
      EXPECT_EQ(step.run(variant, batch), first)
          << "variant " << static_cast<int>(variant) << " batch " << batch;
}

TEST_P(IndexTest, CandidatesGiveTheSameScores) {
  const Case& c = GetParam();
  const Step step(c, kMixed);
  const auto all = step.run(IndexVariant::kWarp, static_cast<int>(step.rows()));
  constexpr int kColumns = 9, kBlock = 8;
  std::vector<std::int32_t> candidates;
  for (size_t row = 0; row < step.rows(); ++row) {
    const std::int64_t blocks = (step.visible(row) + kBlock - 1) / kBlock;
    for (std::int64_t i = 0; i < kColumns; ++i)  // spread over all of them, the last included
      candidates.push_back(
          i < blocks ? static_cast<std::int32_t>(blocks <= kColumns ? i : i * (blocks - 1) / (kColumns - 1))
                     : -1);
  }
  const DeviceArray<std::int32_t> device_candidates(candidates);
  for (const IndexVariant variant : variants(c)) {
    if (variant == IndexVariant::kManyQueries) continue;
    IndexScores index = step.scores(0, static_cast<int>(step.rows()));
    index.candidates = device_candidates.data();
    index.candidate_columns = kColumns, index.block_size = kBlock;
    index.most_entries = index.stride = kColumns * kBlock;
    DeviceArray<float> out(step.rows() * static_cast<size_t>(index.stride));
    index.scores = out.data();
    ASSERT_EQ(step.launch(index, variant), cudaSuccess);
    const auto values = out.host();
    for (size_t row = 0; row < step.rows(); ++row)
      for (int e = 0; e < kColumns * kBlock; ++e) {
        const std::int32_t block = candidates[row * kColumns + static_cast<size_t>(e / kBlock)];
        const std::int64_t j = std::int64_t{block} * kBlock + e % kBlock;
        const std::uint32_t got = std::bit_cast<std::uint32_t>(
            values[row * static_cast<size_t>(index.stride) + static_cast<size_t>(e)]);
        if (block < 0) {
          ASSERT_EQ(got, 0xcdcdcdcdu);
        } else if (j >= step.visible(row)) {
          ASSERT_EQ(got, std::bit_cast<std::uint32_t>(kNever));
        } else {
          ASSERT_EQ(got, all[row][static_cast<size_t>(j)]) << "row " << row << " key " << j;
        }
      }
  }
}

TEST_P(IndexTest, QueriesThatSeeEnoughAreLeftOut) {
  const Step step(GetParam(), kMixed);
  for (const IndexVariant variant : variants(GetParam())) {
    IndexScores index = step.scores(0, static_cast<int>(step.rows()));
    index.enough = 100;
    DeviceArray<float> out(step.rows() * static_cast<size_t>(index.stride));
    index.scores = out.data();
    ASSERT_EQ(step.launch(index, variant), cudaSuccess);
    const auto values = out.host();
    for (size_t row = 0; row < step.rows(); ++row)
      if (step.visible(row) > 0) {
        EXPECT_EQ(
            std::bit_cast<std::uint32_t>(values[row * static_cast<size_t>(index.stride)]) == 0xcdcdcdcdu,
            step.visible(row) <= 100)
            << "row " << row;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, IndexTest,
                         ::testing::Values(Case{.name = "heads32"},
                                           Case{.name = "heads32_ratio2", .ratio = 2},
                                           Case{.name = "heads64_ratio4", .heads = 64, .ratio = 4},
                                           Case{.name = "heads4", .heads = 4},
                                           Case{.name = "heads20", .heads = 20},
                                           Case{.name = "plain", .keys = kPlainKeys}),
                         [](const auto& entry) { return std::string(entry.param.name); });

// --- selection, against sorting

std::vector<std::int32_t> highest(const std::vector<float>& values, size_t wanted) {
  std::vector<std::int32_t> order;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != kNever) order.push_back(static_cast<std::int32_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), wanted));
  std::sort(order.begin(), order.end());
  order.resize(wanted, -1);
  return order;
}

enum class Draw { kNormal, kTies, kOneValue, kTinyRange, kSignedZeros, kSomeNever, kDescending };

std::vector<float> draw_scores(Draw draw, size_t count, std::uint64_t seed) {
  Random random{seed};
  std::vector<float> scores(count);
  for (size_t i = 0; i < count; ++i) {
    const double normal = random.normal();
    switch (draw) {
      case Draw::kNormal: scores[i] = static_cast<float>(normal); break;
      case Draw::kTies: scores[i] = static_cast<float>(std::round(normal * 4) / 4); break;
      case Draw::kOneValue: scores[i] = 0.375f; break;
      case Draw::kTinyRange: scores[i] = 1.0f + 0x1p-23f * static_cast<float>(random.next() % 3000); break;
      case Draw::kSignedZeros: scores[i] = normal > 1.5 ? 1.0f : normal > 0 ? 0.0f : -0.0f; break;
      case Draw::kSomeNever: scores[i] = normal > 0.5 ? static_cast<float>(-normal) : kNever; break;
      case Draw::kDescending: scores[i] = -static_cast<float>(i); break;
    }
  }
  return scores;
}

class SelectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Positions of one query each, ratio 1: visible rows are position + 1.
struct Queries {
  std::vector<SequenceSpec> specs;
  StepArrays arrays;
  explicit Queries(const std::vector<std::int64_t>& visible)
      : specs(make(visible)), arrays(specs, nullptr, 0, nullptr, 0) {}
  static std::vector<SequenceSpec> make(const std::vector<std::int64_t>& visible) {
    std::vector<SequenceSpec> result;
    for (const std::int64_t rows : visible)
      result.push_back({.id = result.size(), .start = rows - 1, .tokens = 1});
    return result;
  }
};

TEST_F(SelectionTest, RowsAsSortingChoosesThem) {
  for (const int columns : {1, 5, 512, 2048})
    for (const Draw draw : {Draw::kNormal, Draw::kTies, Draw::kOneValue, Draw::kTinyRange, Draw::kSignedZeros,
                            Draw::kSomeNever, Draw::kDescending}) {
      const std::vector<std::int64_t> visible = {1,    4,    511,  512,  513,   2049,
                                                 4095, 4096, 4097, 9000, 40000, 131072};
      const Queries queries(visible);
      const auto stride = static_cast<size_t>(131072);
      std::vector<float> scores(visible.size() * stride, 1e30f);  // past the visible rows: never taken
      std::vector<std::vector<float>> rows;
      for (size_t i = 0; i < visible.size(); ++i) {
        rows.push_back(draw_scores(draw, static_cast<size_t>(visible[i]),
                                   mixed(i, static_cast<std::uint64_t>(columns))));
        std::copy(rows[i].begin(), rows[i].end(), scores.begin() + static_cast<std::ptrdiff_t>(i * stride));
      }
      const DeviceArray<float> device_scores(scores);
      for (const int processors : {1, 132}) {  // one block a row, and clusters
        DeviceArray<std::int32_t> out(visible.size() * static_cast<size_t>(columns));
        Selection selection;
        selection.step = queries.arrays.data();
        selection.queries = queries.arrays.rows(RowAxis::kTokens, 0);
        selection.row_count = static_cast<int>(visible.size()) + 2;
        selection.scores = device_scores.data(), selection.stride = static_cast<std::int64_t>(stride);
        selection.out = out.data(), selection.columns = columns;
        selection.most_entries = 131072;
        ASSERT_EQ(launch_selection(selection, processors, nullptr), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const auto got = out.host();
        for (size_t i = 0; i < visible.size(); ++i) {
          auto want = highest(rows[i], static_cast<size_t>(columns));
          if (visible[i] <= columns) {  // all rows, unread
            for (int j = 0; j < columns; ++j)
              want[static_cast<size_t>(j)] = j < visible[i] ? j : -1;
          }
          ASSERT_EQ(std::vector<std::int32_t>(got.begin() + static_cast<std::ptrdiff_t>(i) * columns,
                                              got.begin() + static_cast<std::ptrdiff_t>(i + 1) * columns),
                    want)
              << "columns " << columns << " draw " << static_cast<int>(draw) << " visible " << visible[i];
        }
      }
    }
}

TEST_F(SelectionTest, CandidateBlocksAndRowsWithinThem) {
  constexpr int kBlock = 8;
  const std::vector<std::int64_t> visible = {3, 64, 65, 800, 4097, 50001};
  for (const int block_columns : {2, 16, 256})
    for (const Draw draw : {Draw::kNormal, Draw::kTies, Draw::kSomeNever}) {
      const Queries queries(visible);
      const size_t stride = 50008;
      std::vector<float> scores(visible.size() * stride, 1e30f);
      std::vector<std::vector<float>> rows;
      for (size_t i = 0; i < visible.size(); ++i) {
        rows.push_back(draw_scores(draw, static_cast<size_t>(visible[i]), mixed(i, 3)));
        std::copy(rows[i].begin(), rows[i].end(), scores.begin() + static_cast<std::ptrdiff_t>(i * stride));
      }
      const DeviceArray<float> device_scores(scores);
      DeviceArray<std::int32_t> blocks(visible.size() * static_cast<size_t>(block_columns));
      Selection selection;
      selection.step = queries.arrays.data();
      selection.queries = queries.arrays.rows(RowAxis::kTokens, 0);
      selection.row_count = static_cast<int>(visible.size());
      selection.scores = device_scores.data(), selection.stride = static_cast<std::int64_t>(stride);
      selection.block_size = kBlock;
      selection.out = blocks.data(), selection.columns = block_columns;
      selection.most_entries = static_cast<std::int64_t>(stride);
      ASSERT_EQ(launch_selection(selection, 132, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto got = blocks.host();

      // Compact scores of the candidates, then rows among them.
      const auto width = static_cast<size_t>(block_columns * kBlock);
      std::vector<float> compact(visible.size() * width, 1e30f);
      std::vector<std::vector<float>> masked;
      for (size_t i = 0; i < visible.size(); ++i) {
        std::vector<float> best;
        for (size_t first = 0; first < rows[i].size(); first += kBlock)
          best.push_back(*std::max_element(
              rows[i].begin() + static_cast<std::ptrdiff_t>(first),
              rows[i].begin() + static_cast<std::ptrdiff_t>(std::min(first + kBlock, rows[i].size()))));
        best.back() = std::numeric_limits<float>::infinity();
        const auto blocks_of_row = static_cast<std::int64_t>(best.size());
        auto want = highest(best, static_cast<size_t>(block_columns));
        if (blocks_of_row <= block_columns)
          for (int j = 0; j < block_columns; ++j)
            want[static_cast<size_t>(j)] = j < blocks_of_row ? j : -1;
        const std::vector<std::int32_t> mine(
            got.begin() + static_cast<std::ptrdiff_t>(i) * block_columns,
            got.begin() + static_cast<std::ptrdiff_t>(i + 1) * block_columns);
        ASSERT_EQ(mine, want) << "blocks " << block_columns << " draw " << static_cast<int>(draw)
                              << " visible " << visible[i];
        masked.emplace_back(rows[i].size(), kNever);
        for (size_t e = 0; e < width; ++e) {
          const std::int32_t block = mine[e / kBlock];
          const size_t j = static_cast<size_t>(block) * kBlock + e % kBlock;
          const bool real = block >= 0 && j < rows[i].size();
          if (real) masked[i][j] = rows[i][j];
          if (block >= 0 || e / kBlock < best.size()) compact[i * width + e] = real ? rows[i][j] : kNever;
        }
      }
      const DeviceArray<float> device_compact(compact);
      for (const int columns : {4, 100, 512}) {
        DeviceArray<std::int32_t> out(visible.size() * static_cast<size_t>(columns));
        Selection within = selection;
        within.scores = device_compact.data(), within.stride = static_cast<std::int64_t>(width);
        within.candidates = blocks.data(), within.candidate_columns = block_columns;
        within.out = out.data(), within.columns = columns;
        within.most_entries = static_cast<std::int64_t>(width);
        ASSERT_EQ(launch_selection(within, 132, nullptr), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const auto chosen = out.host();
        for (size_t i = 0; i < visible.size(); ++i) {
          auto want = highest(masked[i], static_cast<size_t>(columns));
          if (visible[i] <= columns && visible[i] <= block_columns * kBlock)
            for (int j = 0; j < columns; ++j)
              want[static_cast<size_t>(j)] = j < visible[i] ? j : -1;
          ASSERT_EQ(std::vector<std::int32_t>(chosen.begin() + static_cast<std::ptrdiff_t>(i) * columns,
                                              chosen.begin() + static_cast<std::ptrdiff_t>(i + 1) * columns),
                    want)
              << "columns " << columns << " of blocks " << block_columns << " draw " << static_cast<int>(draw)
              << " visible " << visible[i];
        }
      }
    }
}

}  // namespace
}  // namespace deepinfer::backend::cuda::test
