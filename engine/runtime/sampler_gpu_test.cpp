// The cuda backend's sampler against this room's, which is why the test stands here. Needs a GPU.
#ifdef DEEPINFER_HAS_CUDA

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "backend/cuda/kernels/common/gpu_world.h"
#include "backend/cuda/kernels/common/sampler.h"
#include "runtime/sampler.h"

namespace deepinfer::backend::cuda::test {
namespace {

using runtime::Sampler;
using runtime::SamplingParams;
using Logits = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Pattern {
  const char* name;
  void (*fill)(Random& random, Logits& row, const std::vector<std::uint8_t>& never);
};

void fill_normal(Random& random, Logits& row, double deviation) {
  for (float& logit : row)
    logit = static_cast<float>(deviation * random.normal());
}
size_t any(Random& random, const Logits& row) {
  return random.next() % row.size();
}
// An id that counts; 0 where none does.
size_t any_counting(Random& random, const Logits& row, const std::vector<std::uint8_t>& never) {
  const size_t first = any(random, row);
  for (size_t i = 0; i < row.size(); ++i)
    if (never[(first + i) % row.size()] == 0) return (first + i) % row.size();
  return 0;
}

const Pattern kPatterns[] = {
    {"normal", [](Random& random, Logits& row, const auto&) { fill_normal(random, row, 3); }},
    {"peaked",
     [](Random& random, Logits& row, const auto&) {
       fill_normal(random, row, 2);
       for (int i = 0; i < 5; ++i)
         row[any(random, row)] += static_cast<float>(12 + 2 * i);
     }},
    {"quarters",
     [](Random& random, Logits& row, const auto&) {
       for (float& logit : row)
         logit = static_cast<float>(std::round(8 * random.normal()) / 4);
     }},
    {"near each other",
     [](Random& random, Logits& row, const auto&) {
       for (float& logit : row)
         logit = std::bit_cast<float>(std::bit_cast<std::uint32_t>(17.0f) +
                                      static_cast<std::uint32_t>(random.next() % 40));
     }},
    {"equal", [](Random&, Logits& row, const auto&) { std::fill(row.begin(), row.end(), -2.5f); }},
    {"mostly removed",
     [](Random& random, Logits& row, const auto& never) {
       fill_normal(random, row, 3);
       for (float& logit : row)
         if (random.next() % 10 != 0) logit = -kInfinity;
       row[any_counting(random, row, never)] = 1.5f;
     }},
    {"one left",
     [](Random& random, Logits& row, const auto& never) {
       std::fill(row.begin(), row.end(), -kInfinity);
       row[any_counting(random, row, never)] = -700.0f;
     }},
    {"wide",
     [](Random& random, Logits& row, const auto&) {
       for (float& logit : row)
         logit = static_cast<float>(random.normal() * std::pow(10.0, 60 * random.uniform() - 40));
     }},
    {"zeros of both signs",
     [](Random& random, Logits& row, const auto&) {
       for (float& logit : row)
         logit = random.next() % 3 == 0 ? 0.0f : random.next() % 2 == 0 ? -0.0f : -1e-3f;
     }},
    {"two not finite",
     [](Random& random, Logits& row, const auto& never) {
       fill_normal(random, row, 3);
       row[any_counting(random, row, never)] = random.next() % 2 == 0 ? kNan : -kNan;
       row[any_counting(random, row, never)] = kInfinity;
     }},
    {"not finite where it does not count",
     [](Random& random, Logits& row, const auto& never) {
       fill_normal(random, row, 3);
       for (size_t id = 0; id < row.size(); ++id)
         if (never[id] != 0) row[id] = random.next() % 2 == 0 ? kNan : kInfinity;
     }},
    {"nothing", [](Random&, Logits& row, const auto&) { std::fill(row.begin(), row.end(), -kInfinity); }},
};

std::vector<SamplingParams> all_parameters() {
  std::vector<SamplingParams> all;
  for (const double temperature : {0.0, 1e-6, 0.7, 1.0, 5.0})
    for (const int top_k : {0, 1, 40, 1000})
      for (const double top_p : {1.0, 0.1, 0.9})
        for (const double min_p : {0.0, 0.03}) {
          SamplingParams params;
          params.temperature = temperature;
          params.top_k = top_k;
          params.top_p = top_p;
          params.min_p = min_p;
          params.logprobs = all.size() % 3 != 0;
          all.push_back(params);
        }
  return all;
}

struct Asked {
  std::string name;
  Logits logits;
  std::unique_ptr<Sampler> sampler;
  std::int64_t position = 0;
};

// Rows on the device, in the order in which they are given.
struct DeviceRows {
  std::vector<std::int32_t> counts;
  std::vector<SampleRow> samples;
  std::vector<float> logits;

  // `places[i]`: the row of logits of sample i, ascending; others hold NaN.
  DeviceRows(const std::vector<const Asked*>& asked, const std::vector<int>& places) {
    const size_t vocab = asked[0]->logits.size();
    counts.assign(kCounts, 0);
    counts[kSampleCount] = static_cast<std::int32_t>(asked.size());
    logits.assign(static_cast<size_t>(places.back() + 1) * vocab, kNan);
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto row = asked[i]->sampler->on_device(asked[i]->position);
      EXPECT_TRUE(row.has_value());
      samples.push_back(*row);
      samples.back().row = places[i];
      std::copy(asked[i]->logits.begin(), asked[i]->logits.end(),
                logits.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(places[i]) * vocab));
    }
  }
};

DeviceArray<std::uint32_t> words_of(const std::vector<std::uint8_t>& never) {
  std::vector<std::uint32_t> words(never_words(static_cast<int>(never.size())), 0);
  for (size_t id = 0; id < never.size(); ++id)
    if (never[id] != 0) words[id / 32] |= 1u << (id % 32);
  return DeviceArray<std::uint32_t>(words);
}

constexpr int kSpare = 3;  // rows of a launch past the count

std::vector<Sampled> run(const DeviceRows& rows, const std::vector<std::uint8_t>& never) {
  const DeviceArray<std::int32_t> counts(rows.counts);
  const DeviceArray<SampleRow> samples(rows.samples);
  const DeviceArray<float> logits(rows.logits);
  const DeviceArray<std::uint32_t> words = words_of(never);
  const DeviceArray<RowHighest> highest{std::vector<RowHighest>(rows.samples.size() + kSpare)};
  const DeviceArray<Sampled> sampled(rows.samples.size() + kSpare);
  StepData step{};
  step.counts = counts.data();
  step.samples = samples.data();
  sample_rows(step, static_cast<int>(rows.samples.size()) + kSpare, logits.data(),
              static_cast<int>(never.size()), words.data(), highest.data(), sampled.data(), nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess)
      << "launching " << rows.samples.size() << " rows of " << never.size();
  const cudaError_t ended = cudaDeviceSynchronize();
  EXPECT_EQ(ended, cudaSuccess) << cudaGetErrorString(ended);
  for (const RowHighest& left : highest.host())
    EXPECT_TRUE(left.key == 0 && left.arrived == 0) << "the workspace is for the next launch";
  auto results = sampled.host();
  for (size_t i = rows.samples.size(); i < results.size(); ++i) {
    std::uint64_t first;
    std::memcpy(&first, &results[i], sizeof first);
    EXPECT_EQ(first, 0xcdcdcdcdcdcdcdcdu) << "an answer past the count was written";
  }
  results.resize(rows.samples.size());
  return results;
}

std::string text(const Sampled& sampled) {
  char line[200];
  std::snprintf(line, sizeof line, "outcome %d, id %d, logit %a, top %a, exp sum %a",
                static_cast<int>(sampled.outcome), sampled.id, static_cast<double>(sampled.logit),
                static_cast<double>(sampled.top), sampled.exp_sum);
  return line;
}

std::vector<std::uint8_t> some_never(int vocab, Random& random) {
  std::vector<std::uint8_t> never(static_cast<size_t>(vocab), 0);
  if (vocab < 3) return never;
  for (auto& flag : never)
    flag = random.next() % 20 == 0 ? 1 : 0;
  never.back() = 1;
  never[1] = 0;
  return never;
}

// What the search for a cut's lowest logit must bear: weights that say nothing of logits, and targets at both ends.
std::vector<SamplingParams> extreme_filters() {
  std::vector<SamplingParams> all;
  for (const double temperature : {1e-300, 1e-25, 1e-12, 0.02, 1.0, 100.0, 1e25, 1e300})
    for (const double top_p : {1e-9, 0.5, 0.95, 0.9999999})
      for (const int top_k : {0, 2, 100'000}) {
        SamplingParams params;
        params.temperature = temperature;
        params.top_p = top_p;
        params.top_k = top_k;
        params.min_p = all.size() % 5 == 0 ? 0.9 : 0.0;
        all.push_back(params);
      }
  return all;
}

std::vector<Asked> rows_of(int vocab, int count, int first_pattern,
                           const std::shared_ptr<const std::vector<std::uint8_t>>& never, Random& random,
                           const std::vector<SamplingParams>& parameters = all_parameters()) {
  std::vector<Asked> rows;
  for (int i = 0; i < count; ++i) {
    const auto& params = parameters[static_cast<size_t>(i) % parameters.size()];
    const auto& pattern = kPatterns[static_cast<size_t>(first_pattern + i) % std::size(kPatterns)];
    Asked asked;
    asked.name = std::string(pattern.name) + ", temperature " + std::to_string(params.temperature) +
                 ", top_k " + std::to_string(params.top_k) + ", top_p " + std::to_string(params.top_p) +
                 ", min_p " + std::to_string(params.min_p);
    asked.logits.resize(static_cast<size_t>(vocab));
    pattern.fill(random, asked.logits, *never);
    asked.sampler = std::make_unique<Sampler>(params, random.next(), never, std::vector<std::int32_t>{});
    asked.position = static_cast<std::int64_t>(random.next() % 100000);
    rows.push_back(std::move(asked));
  }
  return rows;
}

// What the host knows about an id, for a failure.
std::string about(const Asked& asked, std::int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= asked.logits.size()) return "no id " + std::to_string(id);
  const float logit = asked.logits[static_cast<size_t>(id)];
  const auto higher =
      std::count_if(asked.logits.begin(), asked.logits.end(), [&](float each) { return each > logit; });
  const auto equal = std::count(asked.logits.begin(), asked.logits.end(), logit);
  char line[160];
  std::snprintf(line, sizeof line, "id %d: logit %a (%.9g), %td higher, %td equal", id,
                static_cast<double>(logit), static_cast<double>(logit), higher, equal);
  return line;
}

void expect_as_host(const Asked& asked, const Sampled& sampled) {
  runtime::SamplerScratch scratch;
  const auto expected = asked.sampler->sample(asked.logits, asked.position, scratch);
  const auto got = asked.sampler->take(sampled, asked.position);
  ASSERT_EQ(got.ok(), expected.ok()) << text(sampled) << "; the host: "
                                     << (expected.ok() ? "id " + std::to_string(expected->id)
                                                       : expected.error().message());
  if (!expected.ok()) {
    EXPECT_EQ(got.error().message(), expected.error().message());
    return;
  }
  EXPECT_EQ(got->id, expected->id) << text(sampled) << "\n  the device's " << about(asked, got->id)
                                   << "\n  the host's   " << about(asked, expected->id) << "\n  draw "
                                   << asked.sampler->on_device(asked.position)->uniform;
  if (got->id == expected->id)
    EXPECT_NEAR(got->logprob, expected->logprob,
                1e-6 * std::max(1.0, std::fabs(static_cast<double>(expected->logprob))))
        << text(sampled);
}

class SamplerGpuTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Every pattern with every set of parameters, mixed in one launch; and each row the same bits in other company.
TEST_P(SamplerGpuTest, ChoosesAsTheHostDoes) {
  const int vocab = GetParam();
  ASSERT_TRUE(can_sample(vocab));
  Random random{static_cast<std::uint64_t>(vocab)};
  const auto never = std::make_shared<const std::vector<std::uint8_t>>(some_never(vocab, random));
  const int turns = vocab > 100'000 ? 2 : static_cast<int>(std::size(kPatterns));
  for (int turn = 0; turn < turns && !HasFatalFailure(); ++turn) {
    const auto rows = rows_of(vocab, 120, turn, never, random);
    std::vector<const Asked*> all;
    std::vector<int> places;
    for (const Asked& asked : rows) {
      places.push_back(static_cast<int>(all.size()));
      all.push_back(&asked);
    }
    const std::vector<Sampled> together = run(DeviceRows(all, places), *never);
    int failures = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", turn " + std::to_string(turn) + ", row " +
                   std::to_string(i) + ": " + rows[i].name);
      expect_as_host(rows[i], together[i]);
      if (HasFailure() && ++failures == 10) FAIL() << "and perhaps more";
    }
    // Every third row, from the last to the first, with rows between that nobody asks for.
    std::vector<const Asked*> some;
    std::vector<size_t> which;
    std::vector<int> others;
    for (size_t i = rows.size(); i-- > 0;) {
      if (i % 3 != 0) continue;
      others.push_back(2 * static_cast<int>(some.size()) + 1);
      some.push_back(&rows[i]);
      which.push_back(i);
    }
    const std::vector<Sampled> apart = run(DeviceRows(some, others), *never);
    for (size_t i = 0; i < some.size(); ++i)
      ASSERT_EQ(std::memcmp(&apart[i], &together[which[i]], sizeof(Sampled)), 0)
          << rows[which[i]].name << "\n  with all: " << text(together[which[i]])
          << "\n  with some: " << text(apart[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SamplerGpuTest,
                         ::testing::Values(1, 2, 3, 97, 128, 129, 1024, 4099, 12'292, 129'280, 129'283,
                                           300'000),
                         [](const auto& entry) { return "of_" + std::to_string(entry.param); });

TEST_F(SamplerGpuTest, FiltersAtTheExtremes) {
  const auto parameters = extreme_filters();
  for (const int vocab : {3, 300, 20'000}) {
    Random random{static_cast<std::uint64_t>(vocab)};
    const auto never = std::make_shared<const std::vector<std::uint8_t>>(some_never(vocab, random));
    for (int turn = 0; turn < static_cast<int>(std::size(kPatterns)); ++turn) {
      const auto rows = rows_of(vocab, static_cast<int>(parameters.size()), turn, never, random, parameters);
      std::vector<const Asked*> all;
      std::vector<int> places;
      for (const Asked& asked : rows) {
        places.push_back(static_cast<int>(all.size()));
        all.push_back(&asked);
      }
      const std::vector<Sampled> sampled = run(DeviceRows(all, places), *never);
      for (size_t i = 0; i < rows.size() && !HasFailure(); ++i) {
        SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", turn " + std::to_string(turn) + ", row " +
                     std::to_string(i) + ": " + rows[i].name);
        expect_as_host(rows[i], sampled[i]);
      }
    }
  }
}

// Draws over a whole row, so that each tile is drawn from.
TEST_F(SamplerGpuTest, DrawsReachEveryTile) {
  constexpr int kVocab = 129'280;
  const auto never =
      std::make_shared<const std::vector<std::uint8_t>>(static_cast<size_t>(kVocab), std::uint8_t{0});
  Random random{77};
  SamplingParams params;
  params.temperature = 3;
  std::vector<Asked> rows;
  for (int i = 0; i < 256; ++i) {
    Asked asked;
    asked.name = "draw " + std::to_string(i);
    asked.logits.resize(kVocab);
    fill_normal(random, asked.logits, 1);
    asked.sampler = std::make_unique<Sampler>(params, 9, never, std::vector<std::int32_t>{});
    asked.position = i;
    rows.push_back(std::move(asked));
  }
  std::vector<const Asked*> all;
  std::vector<int> places;
  for (const Asked& asked : rows) {
    places.push_back(static_cast<int>(all.size()));
    all.push_back(&asked);
  }
  const auto sampled = run(DeviceRows(all, places), *never);
  std::vector<bool> eighths(8);
  for (size_t i = 0; i < rows.size() && !HasFailure(); ++i) {
    SCOPED_TRACE(rows[i].name);
    expect_as_host(rows[i], sampled[i]);
    eighths[static_cast<size_t>(sampled[i].id) * 8 / kVocab] = true;
  }
  EXPECT_EQ(std::count(eighths.begin(), eighths.end(), true), 8);
}

// A captured launch holds no value of a step: counts and parameters are read when it runs.
TEST_F(SamplerGpuTest, ACapturedLaunchReadsItsStep) {
  constexpr int kVocab = 5000, kMost = 24;
  Random random{5};
  const auto never = std::make_shared<const std::vector<std::uint8_t>>(some_never(kVocab, random));
  const DeviceArray<std::uint32_t> words = words_of(*never);
  const DeviceArray<std::int32_t> counts{std::vector<std::int32_t>(kCounts, 0)};
  const DeviceArray<SampleRow> samples(size_t{kMost});
  const DeviceArray<float> logits(size_t{kMost} * kVocab);
  const DeviceArray<RowHighest> highest{std::vector<RowHighest>(kMost)};
  const DeviceArray<Sampled> sampled(size_t{kMost});
  StepData step{};
  step.counts = counts.data();
  step.samples = samples.data();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t captured = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  sample_rows(step, kMost, logits.data(), kVocab, words.data(), highest.data(), sampled.data(), stream);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&captured, graph, 0), cudaSuccess);
  for (const int count : {1, kMost, 0, 7}) {
    SCOPED_TRACE(count);
    const auto rows = rows_of(kVocab, std::max(count, 1), count, never, random);
    std::vector<const Asked*> all;
    std::vector<int> places;
    for (const Asked& asked : rows) {
      places.push_back(static_cast<int>(all.size()));
      all.push_back(&asked);
    }
    DeviceRows given(all, places);
    given.counts[kSampleCount] = count;
    const auto put = [](void* to, const auto& from) {
      ASSERT_EQ(cudaMemcpy(to, from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice),
                cudaSuccess);
    };
    put(counts.data(), given.counts);
    put(samples.data(), given.samples);
    put(logits.data(), given.logits);
    ASSERT_EQ(cudaMemset(sampled.data(), 0xcd, sampled.bytes()), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(captured, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const auto results = sampled.host();
    for (int i = 0; i < kMost; ++i) {
      const auto at = static_cast<size_t>(i);
      if (i < count) {
        SCOPED_TRACE(rows[at].name);
        expect_as_host(rows[at], results[at]);
      } else {
        ASSERT_EQ(static_cast<std::uint32_t>(results[at].id), 0xcdcdcdcdu) << "row " << i << " was answered";
      }
    }
  }
  (void)cudaGraphExecDestroy(captured);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace deepinfer::backend::cuda::test

#endif  // DEEPINFER_HAS_CUDA
