#include "backend/cuda/kernels/common/hc_site.h"

#include <algorithm>
#include <array>
#include <limits>

#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/kernels/common/gpu_world.h"

namespace deepinfer::backend::cuda::test {
namespace {

constexpr int kStreams = 4, kMixes = 24;

// --- what the kernels read of fn (no GPU)

// The terms of a weight, from their place among the words.
std::array<float, 3> terms_of(const std::vector<std::uint32_t>& words, int output, int stream, int channel) {
  std::array<float, 3> terms{};
  for (int term = 0; term < 3; ++term) {
    const int within = channel % 32;
    const int unit = ((channel / 32 * kStreams + stream) * 3 + output / 8) * 3 + term;
    const int lane = output % 8 * 4 + within / 8;
    const std::uint32_t word = words.at(static_cast<size_t>((unit * 32 + lane) * 4 + within % 8 / 2));
    terms[static_cast<size_t>(term)] =
        std::bit_cast<float>(channel % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
  return terms;
}

TEST(SiteTerms, AddUpToTheWeight) {
  constexpr int kHidden = 64;
  const float special[] = {0.0f,
                           -0.0f,
                           1.0f,
                           std::numeric_limits<float>::max(),
                           -std::numeric_limits<float>::max(),
                           0x1.fffffep-110f,
                           0x1p-126f,
                           1.0f + 0x1p-23f,
                           -(1.0f + 0x1p-8f),
                           0x1.ffp+3f};
  std::vector<float> fn(kMixes * kStreams * kHidden);
  Random random{3};
  for (size_t i = 0; i < fn.size(); ++i)
    fn[i] = i < std::size(special)
                ? special[i]
                : static_cast<float>(std::ldexp(random.normal(), static_cast<int>(random.next() % 150) - 75));
  const std::vector<std::uint32_t> words = site_terms(fn, kHidden);
  ASSERT_EQ(static_cast<std::int64_t>(words.size()), site_term_words(kHidden));
  for (int output = 0; output < kMixes; ++output)
    for (int stream = 0; stream < kStreams; ++stream)
      for (int channel = 0; channel < kHidden; ++channel) {
        const auto [first, second, third] = terms_of(words, output, stream, channel);
        const float weight = fn[static_cast<size_t>((output * kStreams + stream) * kHidden + channel)];
        ASSERT_EQ(static_cast<double>(first) + second + third, static_cast<double>(weight));
      }
}

TEST(SiteTerms, LoseOnlyWhatABf16CannotHoldOfTheSmallest) {
  std::vector<float> fn(kMixes * kStreams * 32);
  Random random{4};
  for (float& weight : fn)
    weight = static_cast<float>(random.normal() * 1e-40);
  const std::vector<std::uint32_t> words = site_terms(fn, 32);
  for (int output = 0; output < kMixes; ++output)
    for (int channel = 0; channel < 32; ++channel) {
      const auto [first, second, third] = terms_of(words, output, 1, channel);
      const float weight = fn[static_cast<size_t>((output * kStreams + 1) * 32 + channel)];
      ASSERT_LT(std::abs(static_cast<double>(first) + second + third - weight), 0x1p-133);
    }
}

// --- the site

enum class Weights { kUsual, kZero, kHuge, kTiny, kSubnormal, kCancelling };

struct Case {
  const char* name;
  int hidden;
  bool expands = true;
  bool given = true;  // collapsed by the mix of the site before
  bool norms = true;  // else the coefficients alone
  Weights weights = Weights::kUsual;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Case kCases[] = {
    {.name = "hidden_64", .hidden = 64},
    {.name = "hidden_64_own_mix", .hidden = 64, .expands = false, .given = false},
    {.name = "hidden_352_of_a_range_and_a_part", .hidden = 352},
    {.name = "hidden_512", .hidden = 512},
    {.name = "hidden_512_own_mix", .hidden = 512, .given = false},
    {.name = "hidden_512_first", .hidden = 512, .expands = false},
    {.name = "hidden_512_coefficients", .hidden = 512, .expands = false, .given = false, .norms = false},
    {.name = "hidden_4096_own_mix", .hidden = 4096, .given = false},
    {.name = "hidden_4096_own_mix_first", .hidden = 4096, .expands = false, .given = false},
    {.name = "hidden_5120", .hidden = 5120},
    {.name = "hidden_5120_first", .hidden = 5120, .expands = false},
    {.name = "hidden_5120_coefficients", .hidden = 5120, .expands = false, .given = false, .norms = false},
    {.name = "hidden_7168_own_mix", .hidden = 7168, .given = false},
    {.name = "zero_weights", .hidden = 512, .weights = Weights::kZero},
    {.name = "huge_weights", .hidden = 512, .weights = Weights::kHuge},
    {.name = "tiny_weights", .hidden = 512, .weights = Weights::kTiny},
    {.name = "subnormal_weights", .hidden = 512, .weights = Weights::kSubnormal},
    {.name = "cancelling_weights", .hidden = 512, .expands = false, .weights = Weights::kCancelling},
};

constexpr int kMostRows = 2048;
constexpr float kRmsEps = 1e-6f, kHcEps = 1e-6f, kNormEps = 1e-5f;
constexpr int kIterations = 20;

// Uniform in [-1, 1), multiples of 2^-15 rounded to bf16.
std::vector<std::uint16_t> random_rows(size_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> values(count);
  for (size_t i = 0; i < count; i += 4) {
    const std::uint64_t bits = mixed(i, seed);
    for (size_t k = 0; k < 4 && i + k < count; ++k)
      values[i + k] = bf16_bits(static_cast<double>(static_cast<std::int16_t>(bits >> (16 * k))) * 0x1p-15);
  }
  return values;
}
std::vector<float> random_floats(size_t count, double scale, std::uint64_t seed) {
  Random random{seed};
  std::vector<float> values(count);
  for (float& value : values)
    value = static_cast<float>(scale * random.normal());
  return values;
}
float rounded(float value) {
  return static_cast<float>(bf16_value(bf16_bits(value)));
}
double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

struct Outputs {
  DeviceArray<std::uint16_t> streams, collapsed, normed;
  DeviceArray<float> pre, post, comb;
  Outputs(size_t rows, size_t hidden, const std::vector<std::uint16_t>& streams_before)
      : streams(streams_before),
        collapsed(rows * hidden),
        normed(rows * hidden),
        pre(rows * 4),
        post(rows * 4),
        comb(rows * 16) {}
};
struct HostOutputs {
  std::vector<std::uint16_t> streams, collapsed, normed;
  std::vector<float> pre, post, comb;
  explicit HostOutputs(const Outputs& outputs)
      : streams(outputs.streams.host()),
        collapsed(outputs.collapsed.host()),
        normed(outputs.normed.host()),
        pre(outputs.pre.host()),
        post(outputs.post.host()),
        comb(outputs.comb.host()) {}
};

template <class T>
void expect_same_rows(const char* what, const std::vector<T>& got, const std::vector<T>& alone, int rows,
                      size_t width) {
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    ASSERT_EQ(std::memcmp(got.data() + row * width, alone.data() + row * width, width * sizeof(T)), 0)
        << what << " of row " << row << " of " << rows << " differs from the row alone";
}

class ResidualSiteTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
    processors_ = device().multiProcessorCount;
    const Case& c = GetParam();
    hidden_ = static_cast<size_t>(c.hidden);
    const size_t width = kStreams * hidden_;
    h_ = random_rows(kMostRows * width, 1);
    if (c.weights == Weights::kCancelling)
      for (size_t i = 1; i < h_.size(); i += 2)
        h_[i] = h_[i - 1] ^ 0x8000;
    y_ = random_rows(kMostRows * hidden_, 2);
    post_in_ = random_floats(kMostRows * 4, 0.5, 3);
    comb_in_ = random_floats(kMostRows * 16, 0.4, 4);
    pre_in_ = random_floats(kMostRows * 4, 0.5, 5);
    const double usual = 1 / std::sqrt(static_cast<double>(width));
    scale_ = {0.7f, -1.1f, 1.3f};
    double size = usual, factor = 1;
    if (c.weights == Weights::kZero) size = 0;
    if (c.weights == Weights::kHuge) size = usual * 0x1p110, factor = 0x1p-110;
    if (c.weights == Weights::kTiny) size = usual * 0x1p-90, factor = 0x1p90;
    if (c.weights == Weights::kSubnormal) size = 1e-40;
    if (c.weights == Weights::kCancelling) factor = 0x1p14;
    fn_ = random_floats(kMixes * width, size, 6);
    if (c.weights == Weights::kCancelling) {
      // The first term of each is 1, the second 2^-8: pairs of channels cancel in all but the third.
      Random random{8};
      for (float& weight : fn_)
        weight = 1.0f + 0x1p-8f + static_cast<float>(random.next() % 256) * 0x1p-23f;
    }
    for (float& each : scale_)
      each *= static_cast<float>(factor);
    base_ = random_floats(kMixes, 1, 7);
    norm_weight_ = random_floats(hidden_, 1, 9);
  }

  struct Inputs {
    DeviceArray<std::uint32_t> terms;
    DeviceArray<float> base, scale, norm_weight, post_in, comb_in, pre_in;
    DeviceArray<std::uint16_t> h, y;
    DeviceArray<std::int32_t> all_counts;  // tables for counts 0 .. kMostRows
    const std::int32_t* counts(int count) const {
      return all_counts.data() + static_cast<ptrdiff_t>(count) * kCounts;
    }
  };
  // What a site reads of one before it, and how the launches share the work.
  struct Neighbours {
    const Outputs* before = nullptr;  // null: the site reads the inputs
    bool defers = false, early = false;
  };
  // Rows first .. first + count - 1 as a step of `count` rows, in a launch for `spare` more.
  void run(const Outputs& outputs, int first, int count, int spare, float* workspace, const Inputs& inputs,
           const Neighbours& neighbours) {
    const auto at = static_cast<size_t>(first);
    ResidualSite site;
    const Case& c = GetParam();
    site.shape = {kStreams, c.hidden, kIterations, kRmsEps, kHcEps};
    site.terms = inputs.terms.data();
    site.base = inputs.base.data();
    site.scale = inputs.scale.data();
    const auto rows_of = [&](const DeviceArray<std::uint16_t>& array, size_t width) {
      return Values{array.data() + at * width, true, static_cast<std::int64_t>(width)};
    };
    site.streams = rows_of(outputs.streams, 4 * hidden_);
    if (c.expands) {
      site.h = rows_of(inputs.h, 4 * hidden_);
      site.y = rows_of(inputs.y, hidden_);
      site.post_in = inputs.post_in.data() + at * 4;
      site.comb_in = inputs.comb_in.data() + at * 16;
    }
    if (c.given) site.pre_in = inputs.pre_in.data() + at * 4;
    if (const Outputs* const before = neighbours.before; before != nullptr) {
      site.h = rows_of(before->streams, 4 * hidden_);
      site.post_in = before->post.data() + at * 4;
      site.comb_in = before->comb.data() + at * 16;
      if (c.given) site.pre_in = before->pre.data() + at * 4;
    }
    site.defers = neighbours.defers;
    site.early = neighbours.early;
    site.pre = outputs.pre.data() + at * 4;
    site.post = outputs.post.data() + at * 4;
    site.comb = outputs.comb.data() + at * 16;
    if (c.norms) {
      site.norm_weight = inputs.norm_weight.data();
      site.norm_eps = kNormEps;
      site.collapsed = rows_of(outputs.collapsed, hidden_);
      site.normed = rows_of(outputs.normed, hidden_);
    }
    StepData step{};
    step.counts = inputs.counts(count);
    residual_site(step, {RowAxis::kTokens, kTokenCount, 1, count + spare}, site, processors_, workspace,
                  nullptr);
  }

  Inputs on_device() const {
    std::vector<std::int32_t> counts((kMostRows + 1) * kCounts, -1);
    for (size_t count = 0; count <= kMostRows; ++count)
      counts[count * kCounts + kTokenCount] = static_cast<std::int32_t>(count);
    return {DeviceArray<std::uint32_t>(site_terms(fn_, GetParam().hidden)),
            DeviceArray<float>(base_),
            DeviceArray<float>(scale_),
            DeviceArray<float>(norm_weight_),
            DeviceArray<float>(post_in_),
            DeviceArray<float>(comb_in_),
            DeviceArray<float>(pre_in_),
            DeviceArray<std::uint16_t>(h_),
            DeviceArray<std::uint16_t>(y_),
            DeviceArray<std::int32_t>(counts)};
  }
  // Streams before the launch: what it reads where it does not expand, else poison.
  std::vector<std::uint16_t> streams_before() const {
    return GetParam().expands ? std::vector<std::uint16_t>(h_.size(), 0xcdcd) : h_;
  }

  void expect_right(const HostOutputs& got, size_t row) const;

  int processors_ = 0;
  size_t hidden_ = 0;
  std::vector<std::uint16_t> h_, y_;
  std::vector<float> post_in_, comb_in_, pre_in_, fn_, base_, scale_, norm_weight_;
};

// Streams and x are the same operations in the same order, so the same bits. The rest against f64:
//   a mix: the terms are exact. A step of the tensor cores adds 16 products and what there is, each cut off at 2^-24 of the largest
//     or below, so at most 17 * 2^-24 of the sum of magnitudes; sums in f32 after that add less. A chain has 8 steps, of which
//     each cuts off of what it has: 2^-17 of the sum of magnitudes bounds it, and that of the smaller terms' chains.
//   pre, post: a sigmoid's slope is at most 1/4, and it is good to 2^-21.
//   comb: each of 40 divisions of a row or column sum is good to 2^-21 and stays so, since each line is divided anew: 2^-16.
//     A change of the exponents by e changes each entry by at most 2 e of itself at the start, and less of it as lines are
//     divided: 4 e.
//   normed: the factor is good to 2^-18; then a rounding to bf16.
void ResidualSiteTest::expect_right(const HostOutputs& got, size_t row) const {
  const Case& c = GetParam();
  const size_t width = 4 * hidden_;
  std::vector<float> streams(width);
  for (size_t d = 0; d < hidden_; ++d)
    for (size_t j = 0; j < 4; ++j) {
      const auto before = [&](size_t i) {
        return static_cast<float>(bf16_value(h_[row * width + i * hidden_ + d]));
      };
      float& value = streams[j * hidden_ + d];
      if (!c.expands) {
        value = before(j);
        continue;
      }
      float sum = 0.0f;
      for (size_t i = 0; i < 4; ++i)
        sum += comb_in_[row * 16 + i * 4 + j] * before(i);
      value = rounded(post_in_[row * 4 + j] * static_cast<float>(bf16_value(y_[row * hidden_ + d])) + sum);
    }
  for (size_t i = 0; i < width; ++i)
    ASSERT_EQ(bf16_value(got.streams[row * width + i]), static_cast<double>(streams[i]))
        << "stream " << i / hidden_ << ", channel " << i % hidden_ << " of row " << row;

  double squares = 0;
  for (const float value : streams)
    squares += static_cast<double>(value) * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + kRmsEps);
  double logits[kMixes], errors[kMixes];
  for (size_t o = 0; o < kMixes; ++o) {
    double sum = 0, magnitude = 0, last = 0;
    for (size_t i = 0; i < width; ++i) {
      const double weight = fn_[o * width + i];
      sum += streams[i] * weight;
      magnitude += std::abs(streams[i] * weight);
      last += std::abs(streams[i] * 0x1p-126);  // subnormal weights may be taken as zeros
    }
    // What cancels is exact in the chains of the larger terms, as all their products are multiples of 2^-15 of the largest.
    // Those of the smallest are below 2^-15.
    if (c.weights == Weights::kCancelling) magnitude = static_cast<double>(width) * 0x1p-15;
    const double scale = scale_[o < 4 ? 0 : o < 8 ? 1 : 2];
    logits[o] = sum * factor * scale + base_[o];
    errors[o] = (magnitude * 0x1p-17 + last) * factor * std::abs(scale) +
                0x1p-18 * (1 + std::abs(sum * factor * scale));
  }
  double worst = 0;
  for (size_t o = 0; o < 4; ++o) {
    EXPECT_NEAR(got.pre[row * 4 + o], sigmoid(logits[o]) + kHcEps, errors[o] / 4 + 0x1p-21) << "pre " << o;
    EXPECT_NEAR(got.post[row * 4 + o], 2 * sigmoid(logits[4 + o]), errors[4 + o] / 2 + 0x1p-20)
        << "post " << o;
  }
  double comb[4][4];
  for (size_t i = 0; i < 4; ++i) {
    double total = 0, largest = logits[8 + 4 * i];
    for (size_t j = 1; j < 4; ++j)
      largest = std::max(largest, logits[8 + 4 * i + j]);
    for (size_t j = 0; j < 4; ++j) {
      worst = std::max(worst, errors[8 + 4 * i + j]);
      total += comb[i][j] = std::exp(logits[8 + 4 * i + j] - largest);
    }
    for (double& entry : comb[i])
      entry = entry / total + kHcEps;
  }
  const auto divide = [&](bool columns) {
    for (size_t i = 0; i < 4; ++i) {
      double total = kHcEps;
      for (size_t k = 0; k < 4; ++k)
        total += columns ? comb[k][i] : comb[i][k];
      for (size_t k = 0; k < 4; ++k)
        (columns ? comb[k][i] : comb[i][k]) /= total;
    }
  };
  divide(true);
  for (int iteration = 1; iteration < kIterations; ++iteration)
    divide(false), divide(true);
  for (size_t i = 0; i < 16; ++i)
    EXPECT_NEAR(got.comb[row * 16 + i], comb[i / 4][i % 4], 4 * worst + 0x1p-16) << "comb " << i;
  if (!c.norms) return;

  // By the mix that the site itself made, where it uses that.
  double squares_of_x = 0;
  std::vector<float> x(hidden_);
  for (size_t d = 0; d < hidden_; ++d) {
    float sum = 0.0f;
    for (size_t i = 0; i < 4; ++i)
      sum += (c.given ? pre_in_ : got.pre)[row * 4 + i] * streams[i * hidden_ + d];
    x[d] = rounded(sum);
    squares_of_x += static_cast<double>(x[d]) * x[d];
    ASSERT_EQ(bf16_value(got.collapsed[row * hidden_ + d]), static_cast<double>(x[d]))
        << "x, channel " << d << " of row " << row;
  }
  const double norm = 1 / std::sqrt(squares_of_x / static_cast<double>(hidden_) + kNormEps);
  for (size_t d = 0; d < hidden_; ++d) {
    const double expected = norm_weight_[d] * (x[d] * norm);
    ASSERT_NEAR(bf16_value(got.normed[row * hidden_ + d]), expected,
                (0x1p-8 + 0x1p-17) * std::abs(expected) + 0x1p-133)
        << "normed, channel " << d << " of row " << row;
  }
}

TEST_P(ResidualSiteTest, EachRowIsRightAndTheSameInEveryLaunch) {
  const Case& c = GetParam();
  const Inputs inputs = on_device();
  const DeviceArray<float> workspace(
      static_cast<size_t>(residual_site_workspace({kStreams, c.hidden}, kMostRows)));
  const Outputs alone_outputs(kMostRows, hidden_, streams_before());
  for (int row = 0; row < kMostRows; ++row)
    run(alone_outputs, row, 1, 0, workspace.data(), inputs, {});
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const HostOutputs alone(alone_outputs);
  for (const size_t row : {0, 1, 7, 8, 15, 16, 500, 2047}) {
    expect_right(alone, row);
    if (HasFatalFailure()) return;
  }
  struct Launched {
    int rows, spare;
  };
  // Each kind of launch, with and without rows that it covers in vain, and tiles that are not full.
  for (const Launched launched : {Launched{1, 7},
                                  {3, 0},
                                  {16, 0},
                                  {17, 15},
                                  {64, 0},
                                  {50, 20},
                                  {128, 0},
                                  {200, 56},
                                  {257, 0},
                                  {1000, 500},
                                  {2048, 0}}) {
    const auto [rows, spare] = launched;
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(rows + spare));
    const Outputs outputs(kMostRows, hidden_, streams_before());
    run(outputs, 0, rows, spare, workspace.data(), inputs, {});
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const HostOutputs got(outputs);
    expect_same_rows("streams", got.streams, alone.streams, rows, 4 * hidden_);
    expect_same_rows("pre", got.pre, alone.pre, rows, 4);
    expect_same_rows("post", got.post, alone.post, rows, 4);
    expect_same_rows("comb", got.comb, alone.comb, rows, 16);
    if (c.norms) {
      expect_same_rows("x", got.collapsed, alone.collapsed, rows, hidden_);
      expect_same_rows("normed", got.normed, alone.normed, rows, hidden_);
    }
    if (HasFatalFailure()) return;
    const auto past = static_cast<size_t>(rows);
    const auto poisoned = [&](const auto& values, size_t width, auto poison) {
      return std::all_of(values.begin() + static_cast<ptrdiff_t>(past * width), values.end(),
                         [&](auto value) { return std::memcmp(&value, &poison, sizeof value) == 0; });
    };
    const auto poison = std::bit_cast<float>(0xcdcdcdcdu);
    EXPECT_TRUE(!c.expands || poisoned(got.streams, 4 * hidden_, std::uint16_t{0xcdcd}));
    EXPECT_TRUE(poisoned(got.collapsed, hidden_, std::uint16_t{0xcdcd}));
    EXPECT_TRUE(poisoned(got.normed, hidden_, std::uint16_t{0xcdcd}));
    EXPECT_TRUE(poisoned(got.pre, 4, poison) && poisoned(got.post, 4, poison) &&
                poisoned(got.comb, 16, poison));
  }
}

constexpr std::pair<int, int> kFewRows[] = {{1, 0},  {3, 4},   {8, 0},  {9, 3},
                                            {16, 0}, {40, 24}, {64, 0}, {65, 0}};

// Two sites, a launch that waits between them.
TEST_P(ResidualSiteTest, AnEarlySiteIsTheSame) {
  const Case& c = GetParam();
  if (!c.expands) GTEST_SKIP() << "it reads no site before it";
  const Inputs inputs = on_device();
  const DeviceArray<float> workspace(
      static_cast<size_t>(residual_site_workspace({kStreams, c.hidden}, kMostRows)));
  const DeviceArray<float> between(kMostRows * 4);
  for (const auto& [rows, spare] : kFewRows) {
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(rows + spare));
    const auto second_of = [&, rows = rows, spare = spare](bool early) {
      const Outputs first(kMostRows, hidden_, streams_before()), second(kMostRows, hidden_, streams_before());
      run(first, 0, rows, spare, workspace.data(), inputs, {});
      StepData step{};
      step.counts = inputs.counts(rows);
      hc_first_pre(step, {RowAxis::kTokens, kTokenCount, 1, rows + spare}, kStreams, between.data(), nullptr);
      run(second, 0, rows, spare, workspace.data(), inputs, {.before = &first, .early = early});
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      return HostOutputs(second);
    };
    const HostOutputs late = second_of(false), early = second_of(true);
    expect_same_rows("streams", early.streams, late.streams, rows, 4 * hidden_);
    expect_same_rows("pre", early.pre, late.pre, rows, 4);
    expect_same_rows("post", early.post, late.post, rows, 4);
    expect_same_rows("comb", early.comb, late.comb, rows, 16);
    if (c.norms) expect_same_rows("normed", early.normed, late.normed, rows, hidden_);
    if (HasFatalFailure()) return;
  }
}

// A gate does the iterations that a site has left, alone and while it assigns.
TEST_P(ResidualSiteTest, AGateIteratesAsTheSiteDoes) {
  const Inputs inputs = on_device();
  const DeviceArray<float> workspace(
      static_cast<size_t>(residual_site_workspace({kStreams, GetParam().hidden}, kMostRows)));
  constexpr int kExperts = 40, kTopK = 3;
  const DeviceArray<float> z(random_floats(kMostRows * kExperts, 1, 21)),
      bias(random_floats(kExperts, 1, 22));
  const DeviceArray<std::uint8_t> image(std::vector<std::uint8_t>(kMostRows, 0));
  const DeviceArray<std::int32_t> ids(kMostRows * kTopK), words(4096);
  const DeviceArray<float> weights(kMostRows * kTopK);
  Gate gate;
  gate.experts = kExperts, gate.top_k = kTopK;
  gate.bias = gate.image_bias = bias.data();
  const Assignment assignment{words.data(), words.data() + 1000, words.data() + 2000, words.data() + 3000,
                              words.data() + 4000};
  for (const auto& [rows, spare] : kFewRows) {
    if (rows + spare > kMostFewSiteRows) continue;
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(rows + spare));
    const Outputs own(kMostRows, hidden_, streams_before()), left(kMostRows, hidden_, streams_before());
    run(own, 0, rows, spare, workspace.data(), inputs, {});
    run(left, 0, rows, spare, workspace.data(), inputs, {.defers = true});
    StepData step{};
    step.counts = inputs.counts(rows);
    step.image = image.data();
    GateAlso also;
    also.mix = {left.comb.data(), kIterations, kHcEps};
    if (gate_can_assign(rows + spare, kExperts)) also.assignment = &assignment;
    fused_gate(step, {RowAxis::kTokens, kTokenCount, 1, rows + spare}, gate, z.data(), 1.0f, ids.data(),
               weights.data(), also, nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(std::memcmp(left.comb.host().data(), own.comb.host().data(), own.comb.bytes()), 0);
    EXPECT_EQ(std::memcmp(left.normed.host().data(), own.normed.host().data(), own.normed.bytes()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ResidualSiteTest, ::testing::ValuesIn(kCases),
                         [](const auto& entry) { return std::string(entry.param.name); });

}  // namespace
}  // namespace deepinfer::backend::cuda::test
