#include "backend/cuda/kernels/common/sparse_attention.h"

#include <algorithm>

#include "backend/cuda/kernels/common/gpu_world.h"

namespace deepinfer::backend::cuda::test {
namespace {

constexpr RecordShape kFp8Window{RecordCode::kFp8, 512, 512, 32, false};
constexpr RecordShape kFp8Tail{RecordCode::kFp8, 512, 448, 64, false};
constexpr RecordShape kPlain{RecordCode::kBf16, 512, 0, 0, false};
constexpr RecordShape kFp4Rows{RecordCode::kNvfp4, 512, 0, 16, false};

struct Case {
  const char* name;
  int heads = 64;
  RecordShape ring = kFp8Window;
  RecordShape rows = kFp4Rows;
  bool has_rows = true;
  int ratio = 1;
  int columns = 512;  // 0: all visible rows
  int window = 128;
  RowAxis queries = RowAxis::kTokens;
  RowAxis window_axis = RowAxis::kTokens;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

enum Stream : std::uint64_t { kWindowStream = 1, kRowStream, kQueryStream, kSelectionStream };

RandomRecord window_record(const Case& c, std::uint64_t id, std::int64_t position) {
  return random_record(c.ring, mixed(id, static_cast<std::uint64_t>(position), kWindowStream));
}
RandomRecord global_record(const Case& c, std::uint64_t id, std::int64_t row) {
  return random_record(c.rows, mixed(id, static_cast<std::uint64_t>(row), kRowStream));
}
std::vector<std::uint16_t> query_of(const Case& c, const RowName& name) {
  Random random{mixed(name.first, static_cast<std::uint64_t>(name.second), kQueryStream)};
  std::vector<std::uint16_t> q(static_cast<size_t>(c.heads) * 512);
  for (auto& value : q)
    value = bf16_bits(random.normal() * 0.7);
  return q;
}
std::vector<float> sinks_of(const Case& c) {
  Random random{77};
  std::vector<float> sinks(static_cast<size_t>(c.heads));
  for (auto& sink : sinks)
    sink = static_cast<float>(3 * random.normal());
  return sinks;
}
// Some selections are shorter than they could be.
std::vector<std::int32_t> selection_of(const Case& c, const RowName& name) {
  Random random{mixed(name.first, static_cast<std::uint64_t>(name.second), kSelectionStream)};
  const std::int64_t visible = (name.second + 1) / c.ratio;
  std::vector<std::int32_t> rows;
  const auto want =
      static_cast<double>(std::min<std::int64_t>(visible, c.columns)) * (name.second % 5 == 4 ? 0.6 : 1.0);
  for (std::int64_t row = 0; row < visible; ++row)
    if (random.uniform() * static_cast<double>(visible - row) < want - static_cast<double>(rows.size()))
      rows.push_back(static_cast<std::int32_t>(row));
  rows.resize(static_cast<size_t>(c.columns), -1);
  return rows;
}

struct Step {
  Case c;
  std::vector<SequenceSpec> specs;
  PlacedRecord ring, rows;
  StepMemory memory;
  DeviceArray<std::uint8_t> state, blocks;
  StepArrays arrays;
  DeviceArray<std::uint16_t> q, window_rows;
  DeviceArray<std::int32_t> selection;
  DeviceArray<float> sinks;

  Step(const Case& which, const std::vector<SequenceSpec>& sequences)
      : c(which),
        specs(sequences),
        ring(placed(c.ring, c.window + 8, 64)),
        rows(placed(c.rows, 128 / c.ratio, 128)),
        memory(fill()),
        state(memory.state),
        blocks(memory.blocks),
        arrays(specs, reinterpret_cast<std::byte*>(state.data()), memory.state_bytes,
               reinterpret_cast<std::byte*>(blocks.data()), memory.block_bytes),
        q(queries()),
        window_rows(step_rows()),
        selection(selections()),
        sinks(sinks_of(c)) {}

  StepMemory fill() {
    StepMemory m(specs, (ring.end + 255) / 256 * 256, (rows.end + 255) / 256 * 256);
    std::int64_t first_block = 0;
    for (size_t s = 0; s < specs.size(); ++s) {
      const SequenceSpec& spec = specs[s];
      const int ring_rows = ring.record.place.rows;
      for (std::int64_t p = std::max<std::int64_t>(0, spec.start - ring_rows); p < spec.start; ++p)
        store_record(window_record(c, spec.id, p), ring.record.place, m.state, s * m.state_bytes,
                     p % ring_rows);
      if (c.has_rows)
        for (std::int64_t row = 0; row < (spec.start + spec.tokens) / c.ratio; ++row)
          m.store_row(global_record(c, spec.id, row), rows.record.place, first_block,
                      StepArrays::blocks_of(spec), row);
      first_block += StepArrays::blocks_of(spec);
    }
    return m;
  }
  std::vector<std::uint16_t> queries() const {
    std::vector<std::uint16_t> all;
    for (const RowName& name : arrays.names(c.queries)) {
      const auto one = query_of(c, name);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  std::vector<std::uint16_t> step_rows() const {
    std::vector<std::uint16_t> all;
    for (const RowName& name : arrays.names(c.window_axis))
      for (const double value : window_record(c, name.first, name.second).values)
        all.push_back(bf16_bits(value));
    return all;
  }
  std::vector<std::int32_t> selections() const {
    std::vector<std::int32_t> all(1, -1);
    if (c.columns == 0 || !c.has_rows) return all;
    all.clear();
    for (const RowName& name : arrays.names(c.queries)) {
      const auto one = selection_of(c, name);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  SparseAttention attention(const DeviceArray<std::uint16_t>& o, int spare) const {
    SparseAttention a;
    a.step = arrays.data();
    a.queries = arrays.rows(c.queries, spare);
    a.window_axis = c.window_axis;
    a.q = q.data(), a.window_rows = window_rows.data(), a.o = o.data();
    a.sinks = sinks.data();
    a.scale = 0.044194173f;
    a.heads = c.heads, a.window = c.window;
    a.ring = ring.record;
    a.has_rows = c.has_rows, a.rows = rows.record, a.ratio = c.ratio;
    a.selection = selection.data(), a.columns = c.columns;
    a.most_keys = c.window;
    std::int64_t context = 0;
    for (const SequenceSpec& spec : specs)
      context = std::max(context, spec.start + spec.tokens);
    if (c.has_rows) a.most_keys += c.columns > 0 ? c.columns : context / c.ratio;
    return a;
  }

  // workspace_queries 0: the fused variant.
  static void launch(const SparseAttention& a, int workspace_queries) {
    if (workspace_queries == 0) {
      EXPECT_EQ(launch_fused_attention(a, device().multiProcessorCount, nullptr), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      return;
    }
    const std::int64_t bytes = split_partition(a).query_bytes * workspace_queries;
    DeviceArray<std::uint8_t> workspace(static_cast<size_t>(bytes));
    EXPECT_EQ(launch_split_attention(a, workspace.data(), bytes, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // Outputs by row name. workspace_queries 0: the fused variant.
  std::map<RowName, std::vector<std::uint16_t>> run(int workspace_queries, int spare = 0) const {
    const size_t width = static_cast<size_t>(c.heads) * 512;
    const size_t count = arrays.names(c.queries).size();
    DeviceArray<std::uint16_t> o((count + static_cast<size_t>(spare)) * width);
    launch(attention(o, spare), workspace_queries);
    const auto values = o.host();
    std::map<RowName, std::vector<std::uint16_t>> result;
    for (size_t i = 0; i < count; ++i)
      result[arrays.names(c.queries)[i]] = {values.begin() + static_cast<std::ptrdiff_t>(i * width),
                                            values.begin() + static_cast<std::ptrdiff_t>((i + 1) * width)};
    for (size_t i = count * width; i < values.size(); ++i)
      EXPECT_EQ(values[i], 0xcdcd) << "a row past the count was written";
    return result;
  }
};

// The softmax in fp64, nothing rounded.
std::vector<double> plain(const Case& c, const SequenceSpec& spec, const RowName& name) {
  const auto [id, position] = name;
  const std::int64_t floor =
      c.window_axis == RowAxis::kTokens ? spec.window_floor : spec.decoder_window_floor;
  std::vector<std::vector<double>> keys;
  for (std::int64_t p = std::max({std::int64_t{0}, floor, position - c.window + 1}); p <= position; ++p)
    keys.push_back(window_record(c, id, p).values);
  if (c.has_rows && c.columns == 0)
    for (std::int64_t row = 0; row < (position + 1) / c.ratio; ++row)
      keys.push_back(global_record(c, id, row).values);
  else if (c.has_rows)
    for (const std::int32_t row : selection_of(c, name))
      if (row >= 0) keys.push_back(global_record(c, id, row).values);
  const auto q = query_of(c, name);
  const auto sinks = sinks_of(c);
  std::vector<double> o(static_cast<size_t>(c.heads) * 512);
  for (int head = 0; head < c.heads; ++head) {
    std::vector<double> logits;
    double largest = sinks[static_cast<size_t>(head)];
    for (const auto& key : keys) {
      double dot = 0;
      for (size_t i = 0; i < 512; ++i)
        dot += key[i] * bf16_value(q[static_cast<size_t>(head) * 512 + i]);
      logits.push_back(dot * static_cast<double>(0.044194173f));
      largest = std::max(largest, logits.back());
    }
    double total = std::exp(sinks[static_cast<size_t>(head)] - largest);
    double* out = o.data() + static_cast<size_t>(head) * 512;
    for (size_t k = 0; k < keys.size(); ++k) {
      const double weight = std::exp(logits[k] - largest);
      total += weight;
      for (size_t i = 0; i < 512; ++i)
        out[i] += weight * keys[k][i];
    }
    for (size_t i = 0; i < 512; ++i)
      out[i] /= total;
  }
  return o;
}

void expect_close(const std::vector<std::uint16_t>& got, const std::vector<double>& want,
                  const std::string& where) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = bf16_value(got[i]) - want[i];
    error += difference * difference;
    size += want[i] * want[i];
  }
  // Rounding of numerators and of the output: each at most 2^-9 of its value.
  EXPECT_LE(std::sqrt(error / size), 0x1p-8) << where;
}

std::string row_text(const RowName& name) {
  return "sequence " + std::to_string(name.first) + " position " + std::to_string(name.second);
}

// One query of each sequence, at positions that try every edge of the list.
std::vector<SequenceSpec> decode_step(const Case& c, int rows) {
  constexpr std::int64_t kPositions[] = {0,   1,   2,   62,  63,  64,  126,  127,
                                         128, 129, 135, 136, 500, 640, 1300, 2600};
  std::vector<SequenceSpec> specs;
  for (int i = 0; i < rows; ++i) {
    SequenceSpec spec;
    spec.id = static_cast<std::uint64_t>(i) + 1;
    spec.start = kPositions[i % 16] + i / 16 * 37;
    if (i % 7 == 6 && spec.start > 60) spec.window_floor = spec.decoder_window_floor = spec.start - 40;
    specs.push_back(spec);
  }
  (void)c;
  return specs;
}

const Case kCases[] = {
    {.name = "V4.1 ratio 1"},
    {.name = "V4.1 ratio 2", .ratio = 2},
    {.name = "window only", .has_rows = false, .columns = 0},
    {.name = "V4 CSA", .ring = kFp8Tail, .rows = kFp8Tail, .ratio = 4},
    {.name = "V4 HCA", .ring = kFp8Tail, .rows = kFp8Tail, .ratio = 128, .columns = 0},
    {.name = "all rows, ratio 2", .ratio = 2, .columns = 0},
    {.name = "plain records", .ring = kPlain, .rows = kPlain, .columns = 128},
    {.name = "4 heads", .heads = 4, .columns = 64},
    {.name = "20 heads", .heads = 20, .columns = 64},
    {.name = "40 heads", .heads = 40, .columns = 100},
    {.name = "128 heads", .heads = 128, .columns = 64},
    {.name = "decoder rows", .columns = 64, .queries = RowAxis::kDecoder, .window_axis = RowAxis::kDecoder},
    {.name = "cut layer", .columns = 64, .queries = RowAxis::kDecoder, .window_axis = RowAxis::kTokens},
};

class SparseAttentionTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
  static bool hopper() { return device().major == 9 && device().minor == 0; }
  static void expect_rotations_inside(const Case& c, int queries);
};

TEST_P(SparseAttentionTest, DecodeIsCloseToPlainAndEqualInEveryVariantAndBatch) {
  const Case& c = GetParam();
  const auto specs = decode_step(c, 20);
  const Step step(c, specs);
  const auto split = step.run(64, 3);
  for (const SequenceSpec& spec : specs) {
    const RowName name{spec.id, spec.start};
    expect_close(split.at(name), plain(c, spec, name), row_text(name));
  }
  EXPECT_EQ(step.run(3), split) << "batches of three queries";
  if (hopper()) {
    EXPECT_EQ(step.run(0, 3), split) << "fused";
  }
  for (const size_t i : {size_t{0}, size_t{5}, size_t{9}, size_t{14}}) {
    const Step alone(c, {specs[i]});
    const RowName name{specs[i].id, specs[i].start};
    EXPECT_EQ(alone.run(1).at(name), split.at(name)) << row_text(name);
    if (hopper()) {
      EXPECT_EQ(alone.run(0).at(name), split.at(name)) << row_text(name);
    }
  }
}

// Blocks take one, two or four head tiles, as the number of queries says.
TEST_P(SparseAttentionTest, EverySplitOfHeadsIsEqual) {
  const Case& c = GetParam();
  const auto specs = decode_step(c, 34);
  const auto all = Step(c, specs).run(64);
  for (const int queries : {1, 2, 4, 6, 8, 13, 16, 17}) {
    // Other sequences each time, the last ones first: those of the longest lists.
    const int first = std::max(0, 34 - 2 * queries);
    const std::vector<SequenceSpec> some(specs.begin() + first, specs.begin() + first + queries);
    const Step step(c, some);
    for (const auto& [name, values] : step.run(queries, 0))
      ASSERT_EQ(values, all.at(name)) << queries << " queries, " << row_text(name);
    // Rows that are not there, and a workspace of fewer queries than the step has.
    for (const auto& [name, values] : step.run((queries + 1) / 2, 2))
      ASSERT_EQ(values, all.at(name)) << queries << " queries in two launches, " << row_text(name);
  }
}

TEST_P(SparseAttentionTest, ChunksDoNotShow) {
  const Case& c = GetParam();
  // Floors and the decoder's start belong to the sequence, not to the chunk.
  const SequenceSpec whole{.id = 9,
                           .start = 90,
                           .tokens = 210,
                           .decoder_from = 170,
                           .window_floor = 20,
                           .decoder_window_floor = 170};
  const SequenceSpec other{.id = 4, .start = 700, .tokens = 1};
  const Step step(c, {other, whole});
  const auto together = step.run(hopper() ? 0 : 64);
  EXPECT_EQ(step.run(17), together);
  for (const int cut : {1, 64, 150, 209}) {
    SequenceSpec first = whole, second = whole;
    first.tokens = cut;
    second.start += cut, second.tokens -= cut;
    for (const auto& part : {first, second}) {
      const Step alone(c, {part});
      if (alone.arrays.names(c.queries).empty()) continue;
      for (const auto& [name, values] : alone.run(7))
        ASSERT_EQ(values, together.at(name)) << row_text(name) << " cut " << cut;
    }
  }
  for (const std::int64_t position : {200, 299}) {
    const RowName name{whole.id, position};
    expect_close(together.at(name), plain(c, whole, name), row_text(name));
  }
}

TEST_P(SparseAttentionTest, ManyQueriesOfAPersistentGridAreEqual) {
  const Case& c = GetParam();
  if (!hopper()) GTEST_SKIP() << "the fused variant needs compute capability 9.0";
  const Step step(c, decode_step(c, 300));
  EXPECT_EQ(step.run(0), step.run(100));
}

TEST_P(SparseAttentionTest, RotationsInsideGiveTheBitsOfRotationsBeside) {
  const Case& c = GetParam();
  for (const int queries : {2, 7, 20})
    expect_rotations_inside(c, queries);
}

void SparseAttentionTest::expect_rotations_inside(const Case& c, int queries) {
  const Step step(c, decode_step(c, queries));
  const DeviceArray<Angle> angles(token_angles(step.arrays, kRotatedPairs));
  const Rotation forward{angles.data(), nullptr, kRotatedPairs, false};
  const Rotation inverse{angles.data(), nullptr, kRotatedPairs, true};
  const size_t width = static_cast<size_t>(c.heads) * 512;
  const size_t size = step.arrays.names(c.queries).size() * width;
  const auto values = [&](const DeviceArray<std::uint16_t>& array) {
    return Values{array.data(), true, static_cast<std::int64_t>(width)};
  };
  const DeviceArray<std::uint16_t> turned(size), attended(size), beside(size), inside(size);
  const RowSpace rows = step.arrays.rows(c.queries, 0);
  for (const int workspace_queries : {64, 0}) {
    if (workspace_queries == 0 && !hopper()) continue;
    rope(step.arrays.data(), rows, forward, values(step.q), c.heads, values(turned), nullptr);
    SparseAttention a = step.attention(attended, 0);
    a.q = turned.data();
    Step::launch(a, workspace_queries);
    rope(step.arrays.data(), rows, inverse, values(attended), c.heads, values(beside), nullptr);
    SparseAttention b = step.attention(inside, 0);
    b.q_rotation = forward, b.o_rotation = inverse;
    Step::launch(b, workspace_queries);
    EXPECT_NE(beside.host(), attended.host());
    EXPECT_EQ(inside.host(), beside.host())
        << queries << (workspace_queries == 0 ? " queries, fused" : " queries, split");
  }
}

TEST(SparseAttentionRefusals, ShapesOutsideTheContract) {
  SparseAttention a;
  a.heads = 129, a.window = 128, a.most_keys = 128;
  EXPECT_EQ(launch_split_attention(a, nullptr, 1 << 30, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(launch_fused_attention(a, 132, nullptr), cudaErrorInvalidValue);
  a.heads = 64;
  EXPECT_EQ(launch_split_attention(a, nullptr, split_partition(a).query_bytes - 1, nullptr),
            cudaErrorInvalidValue);
}

INSTANTIATE_TEST_SUITE_P(Cases, SparseAttentionTest, ::testing::ValuesIn(kCases), [](const auto& entry) {
  std::string name = entry.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char letter) { return std::isalnum(letter) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace deepinfer::backend::cuda::test
