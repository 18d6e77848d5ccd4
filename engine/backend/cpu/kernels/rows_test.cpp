// Row kernels, attention and index scores of every set this machine has, against their plain twins, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/kernels/test_support.h"
#include "backend/cpu/kernels/twin.h"
#include "base/huge_buffer.h"
#include "base/math.h"
#include "tensor/quantise.h"

namespace deepinfer::backend::cpu {
namespace {

using testing::bits_equal;

std::vector<float> normals(std::size_t count, std::mt19937& random, float spread = 1.0f, bool bf16 = false) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> x(count);
  for (float& value : x)
    value = bf16 ? tensor::round_to_bf16(normal(random)) : normal(random);
  return x;
}

void expect_bits(const std::vector<float>& expected, const std::vector<float>& actual, const char* set) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_TRUE(bits_equal(expected[i], actual[i]) || (std::isnan(expected[i]) && std::isnan(actual[i])))
        << set << " element " << i << ": " << actual[i] << ", twin " << expected[i];
}

TEST(CpuSets, ChosenSetIsTheOneThatRuns) {
  for (const KernelSet* set : available_sets()) {
    const auto chosen = choose(set->name);
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(*chosen, set);
    EXPECT_EQ(set->self_report(), set->lanes * 32 + (set->has_bf16 ? 16 : 0)) << set->name;
  }
  EXPECT_EQ(*choose("auto"), available_sets().back());
  EXPECT_EQ(*choose(""), available_sets().back());
}

TEST(CpuSets, RefusesUnknownAndMissingSets) {
  const auto unknown = choose("mmx");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(unknown.error().remedy.find("baseline"), std::string::npos);
  const auto available = available_sets();
  for (const KernelSet* set : compiled_sets()) {
    if (std::find(available.begin(), available.end(), set) == available.end()) {
      EXPECT_FALSE(choose(set->name).ok());
    }
  }
}

TEST(CpuRows, ExponentialEqualsScalarBitForBit) {
  std::mt19937 random(1);
  std::vector<float> x = normals(4099, random, 40.0f);
  for (const float special :
       {0.0f, -0.0f, -105.0f, -104.0f, -87.5f, 88.7f, 89.0f, 200.0f, -1e30f, INFINITY, -INFINITY, NAN})
    x.push_back(special);
  std::vector<float> expected(x.size());
  std::transform(x.begin(), x.end(), expected.begin(), exp_f32);
  for (const KernelSet* set : available_sets()) {
    std::vector<float> y(x.size());
    set->exp(x.data(), static_cast<std::int64_t>(x.size()), y.data());
    expect_bits(expected, y, set->name);
  }
}

float mean_square_twin(const KernelSet& set, const std::vector<float>& x) {
  float stripe[16] = {};
  for (std::size_t i = 0; i < (x.size() + 15) / 16 * 16; ++i) {
    const float value = i < x.size() ? x[i] : 0.0f;
    stripe[i % 16] = twin::multiply_add(set, value, value, stripe[i % 16]);
  }
  for (int half = 8; half >= 1; half /= 2)
    for (int i = 0; i < half; ++i)
      stripe[i] += stripe[i + half];
  return stripe[0] / static_cast<float>(x.size());
}

TEST(CpuRows, RmsNorm) {
  std::mt19937 random(2);
  for (const KernelSet* set : available_sets())
    for (const std::size_t n : {1u, 15u, 16u, 31u, 128u, 512u, 1283u})
      for (const bool round : {false, true}) {
        const std::vector<float> x = normals(n, random, 3.0f);
        const std::vector<float> w = normals(n, random);
        const float factor = rsqrt_f32(mean_square_twin(*set, x) + 1e-20f);
        std::vector<float> expected(n);
        for (std::size_t i = 0; i < n; ++i) {
          expected[i] = w[i] * (x[i] * factor);
          if (round) expected[i] = tensor::round_to_bf16(expected[i]);
        }
        std::vector<float> y = x;
        set->rms_norm(y.data(), w.data(), static_cast<std::int64_t>(n), 1e-20f, round, y.data());
        expect_bits(expected, y, set->name);
      }
}

TEST(CpuRows, SwiGlu) {
  std::mt19937 random(3);
  for (const KernelSet* set : available_sets())
    for (const std::size_t n : {1u, 7u, 64u, 257u})
      for (const float limit : {0.0f, 0.5f, 10.0f}) {
        const std::vector<float> g = normals(n, random, 4.0f);
        const std::vector<float> u = normals(n, random, 4.0f);
        std::vector<float> expected(n);
        for (std::size_t i = 0; i < n; ++i) {
          float a = g[i];
          float b = u[i];
          if (limit > 0.0f) {
            a = std::min(a, limit);
            b = std::clamp(b, -limit, limit);
          }
          expected[i] = tensor::round_to_bf16(silu_f32(a) * b * 1.25f);
        }
        std::vector<float> t(n);
        set->swiglu(g.data(), u.data(), limit, 1.25f, true, static_cast<std::int64_t>(n), t.data());
        expect_bits(expected, t, set->name);
      }
}

TEST(CpuRows, HcCoefficients) {
  std::mt19937 random(4);
  constexpr int n = 4;
  const std::vector<float> base = normals(24, random, 0.5f);
  const float scale[3] = {0.5f, 0.7f, 1.3f};
  const float eps = 1e-6f;
  for (const KernelSet* set : available_sets())
    for (const std::size_t rows : {1u, 3u, 17u}) {
      const std::vector<float> m = normals(rows * 32, random, 2.0f);
      std::vector<float> pre(rows * n), post(rows * n), comb(rows * n * n), pre2(rows * n), post2(rows * n),
          comb2(rows * n * n);
      for (std::size_t r = 0; r < rows; ++r) {
        float a[24];
        for (int j = 0; j < 24; ++j)
          a[j] = m[r * 32 + j] * scale[j < 4 ? 0 : j < 8 ? 1 : 2] + base[j];
        float c[n][n];
        for (int i = 0; i < n; ++i) {
          float top = a[8 + 4 * i];
          for (int j = 1; j < n; ++j)
            top = std::max(top, a[8 + 4 * i + j]);
          for (int j = 0; j < n; ++j)
            c[i][j] = exp_f32(a[8 + 4 * i + j] - top);
          const float total = ((c[i][0] + c[i][1]) + c[i][2]) + c[i][3];
          for (int j = 0; j < n; ++j)
            c[i][j] = c[i][j] / total + eps;
        }
        for (int step = 0; step < 20; ++step) {
          if (step > 0)
            for (int i = 0; i < n; ++i) {
              const float total = (((c[i][0] + c[i][1]) + c[i][2]) + c[i][3]) + eps;
              for (int j = 0; j < n; ++j)
                c[i][j] /= total;
            }
          for (int j = 0; j < n; ++j) {
            const float total = (((c[0][j] + c[1][j]) + c[2][j]) + c[3][j]) + eps;
            for (int i = 0; i < n; ++i)
              c[i][j] /= total;
          }
        }
        for (int j = 0; j < n; ++j) {
          pre[r * n + j] = sigmoid_f32(a[j]) + eps;
          post[r * n + j] = 2.0f * sigmoid_f32(a[4 + j]);
          for (int i = 0; i < n; ++i)
            comb[r * n * n + i * n + j] = c[i][j];
        }
      }
      set->hc_coefficients(m.data(), 32, base.data(), scale, 20, eps, static_cast<std::int64_t>(rows),
                           pre2.data(), post2.data(), comb2.data());
      expect_bits(pre, pre2, set->name);
      expect_bits(post, post2, set->name);
      expect_bits(comb, comb2, set->name);
    }
}

TEST(CpuRows, CollapseAndExpand) {
  std::mt19937 random(5);
  for (const KernelSet* set : available_sets())
    for (const std::int64_t n : {5, 64, 131}) {
      const HcShape shape{4, n};
      const std::vector<float> h = normals(static_cast<std::size_t>(4 * n), random);
      const std::vector<float> y = normals(static_cast<std::size_t>(n), random);
      const std::vector<float> pre = normals(4, random);
      const std::vector<float> comb = normals(16, random);
      std::vector<float> x(static_cast<std::size_t>(n)), x2(x), out(h.size()), out2(h);
      for (std::int64_t d = 0; d < n; ++d) {
        float sum = pre[0] * h[static_cast<std::size_t>(d)];
        for (int i = 1; i < 4; ++i)
          sum = twin::multiply_add(*set, pre[static_cast<std::size_t>(i)],
                                   h[static_cast<std::size_t>(i * n + d)], sum);
        x[static_cast<std::size_t>(d)] = tensor::round_to_bf16(sum);
        for (int j = 0; j < 4; ++j) {
          float value = pre[static_cast<std::size_t>(j)] * y[static_cast<std::size_t>(d)];
          for (int i = 0; i < 4; ++i)
            value = twin::multiply_add(*set, comb[static_cast<std::size_t>(i * 4 + j)],
                                       h[static_cast<std::size_t>(i * n + d)], value);
          out[static_cast<std::size_t>(j * n + d)] = value;
        }
      }
      set->hc_collapse(h.data(), pre.data(), shape, true, x2.data());
      expect_bits(x, x2, set->name);
      set->hc_expand(y.data(), out2.data(), pre.data(), comb.data(), shape, false, out2.data());  // in place
      expect_bits(out, out2, set->name);
    }
}

TEST(CpuRows, DecodesRecordsExactly) {
  std::mt19937 random(6);
  constexpr std::size_t kChannels = 512;
  for (const KernelSet* set : available_sets())
    for (const tensor::BlockFormat format :
         {tensor::kFp8Group32, tensor::kFp8Group64, tensor::kNvfp4, tensor::kMxfp4}) {
      std::vector<float> row = normals(kChannels, random, 5.0f);
      for (std::size_t i = 0; i < 64; ++i)
        row[i] *= i < 32 ? 1e-3f : 0.0f;
      std::vector<std::uint8_t> codes(format.code_bytes(kChannels));
      std::vector<std::uint8_t> scales(format.scale_bytes(kChannels));
      tensor::encode_row(format, row, codes.data(), scales.data());
      std::vector<float> expected(kChannels), actual(kChannels);
      tensor::decode_row(format, codes.data(), scales.data(), expected);
      const int channels = static_cast<int>(kChannels);
      if (format.code == tensor::BlockCode::kFp8)
        set->decode_fp8(codes.data(), scales.data(), format.group, channels, actual.data());
      if (format.code == tensor::BlockCode::kNvfp4)
        set->decode_nvfp4(codes.data(), scales.data(), channels, actual.data());
      if (format.code == tensor::BlockCode::kMxfp4)
        set->decode_mxfp4(codes.data(), scales.data(), channels, actual.data());
      expect_bits(expected, actual, set->name);
    }
}

// Byte 0 is 2^-127, a subnormal that a plain shift of the exponent would lose.
TEST(CpuRows, DecodesEveryScale) {
  constexpr std::size_t kChannels = 32;
  for (const KernelSet* set : available_sets())
    for (const tensor::BlockFormat format : {tensor::kFp8Group32, tensor::kMxfp4})
      for (int byte = 0; byte < 255; ++byte) {
        const bool fp8 = format.code == tensor::BlockCode::kFp8;
        const std::vector<std::uint8_t> codes(format.code_bytes(kChannels), fp8 ? 0x39 : 0xb3);
        const std::vector<std::uint8_t> scale(1, static_cast<std::uint8_t>(byte));
        std::vector<float> expected(kChannels), actual(kChannels);
        tensor::decode_row(format, codes.data(), scale.data(), expected);
        if (fp8) set->decode_fp8(codes.data(), scale.data(), 32, kChannels, actual.data());
        if (!fp8) set->decode_mxfp4(codes.data(), scale.data(), kChannels, actual.data());
        expect_bits(expected, actual, set->name);
      }
}

struct AttentionCase {
  int heads;
  int dim;
  int count;
};

std::vector<float> attention_twin(const KernelSet& set, const AttentionCase& c, const std::vector<float>& q,
                                  const std::vector<float>& keys, const std::vector<float>& sinks,
                                  float scale, bool round) {
  const auto dim = static_cast<std::size_t>(c.dim);
  std::vector<float> out(static_cast<std::size_t>(c.heads) * dim, 0.0f);
  for (std::size_t h = 0; h < static_cast<std::size_t>(c.heads) && c.count > 0; ++h) {
    float top = -1e30f;
    float total = 0.0f;
    std::vector<float> sums(dim, 0.0f);
    for (int begin = 0; begin < c.count; begin += kAttentionTile) {
      const int end = std::min(c.count, begin + kAttentionTile);
      std::vector<float> s;
      float best = top;
      for (int j = begin; j < end; ++j) {
        // Up to 8 heads: 16 stripes and their tree. More: in order, which is one stripe.
        const std::size_t stripes = c.heads <= 8 ? 16 : 1;
        std::vector<float> dot(stripes, 0.0f);
        for (std::size_t i = 0; i < dim; ++i)
          dot[i % stripes] = twin::multiply_add(
              set, q[h * dim + i], keys[static_cast<std::size_t>(j) * dim + i], dot[i % stripes]);
        for (std::size_t half = stripes / 2; half >= 1; half /= 2)
          for (std::size_t i = 0; i < half; ++i)
            dot[i] += dot[i + half];
        s.push_back(dot[0] * scale);
        best = std::max(best, s.back());
      }
      const float rescale = exp_f32(top - best);
      top = best;
      total = total * rescale;
      if (begin > 0)
        for (float& sum : sums)
          sum *= rescale;
      for (int j = begin; j < end; ++j) {
        float p = exp_f32(s[static_cast<std::size_t>(j - begin)] - best);
        total += p;
        if (round) p = tensor::round_to_bf16(p);
        for (std::size_t i = 0; i < dim; ++i)
          sums[i] = twin::multiply_add(set, p, keys[static_cast<std::size_t>(j) * dim + i], sums[i]);
      }
    }
    total += exp_f32(sinks[h] - top);
    for (std::size_t i = 0; i < dim; ++i) {
      const float value = sums[i] / total;
      out[h * dim + i] = round ? tensor::round_to_bf16(value) : value;
    }
  }
  return out;
}

TEST(CpuAttention, EqualsTwinForAnySplitOfHeads) {
  std::mt19937 random(7);
  auto scratch = HugeBuffer::create(host_ledger(), "test", static_cast<std::size_t>(kAttentionScratchBytes));
  for (const KernelSet* set : available_sets())
    for (const AttentionCase& c :
         {AttentionCase{4, 64, 5}, AttentionCase{20, 32, 130}, AttentionCase{33, 48, 64},
          AttentionCase{16, 512, 67}, AttentionCase{2, 16, 0}, AttentionCase{1, 32, 3},
          AttentionCase{7, 80, 129}, AttentionCase{8, 512, 64}, AttentionCase{9, 16, 65}})
      for (const bool round : {false, true}) {
        const auto size = static_cast<std::size_t>(c.heads * c.dim);
        const std::vector<float> q = normals(size, random, 1.0f, true);
        const std::vector<float> keys =
            normals(static_cast<std::size_t>(c.count * c.dim), random, 1.0f, true);
        const std::vector<float> sinks = normals(static_cast<std::size_t>(c.heads), random);
        struct Keys {
          const float* rows;
          int dim;
        };
        const Keys source{keys.data(), c.dim};
        const auto copy = [](const void* context, int first, int count, float* out) {
          const auto& from = *static_cast<const Keys*>(context);
          std::copy_n(from.rows + static_cast<std::ptrdiff_t>(first) * from.dim, count * from.dim, out);
        };
        const std::vector<float> expected = attention_twin(*set, c, q, keys, sinks, 0.3f, round);
        for (const int split : {c.heads, 16, 3}) {
          std::vector<float> out(size, 9.0f);
          for (int begin = 0; begin < c.heads; begin += split) {
            AttentionRow row;
            row.q = q.data();
            row.heads = c.heads;
            row.dim = c.dim;
            row.keys = {copy, &source};
            row.count = c.count;
            row.sinks = sinks.data();
            row.scale = 0.3f;
            row.round_numerators = round;
            row.round_output = round;
            row.out = out.data();
            row.head_begin = begin;
            row.head_end = std::min(c.heads, begin + split);
            row.scratch = scratch->data();
            set->attention_row(row);
          }
          expect_bits(expected, out, set->name);
        }
      }
}

TEST(CpuIndex, ScoresEqualTwin) {
  std::mt19937 random(8);
  for (const KernelSet* set : available_sets())
    for (const int heads : {2, 5, 32}) {
      const int dim = 64;
      const std::vector<float> q = normals(static_cast<std::size_t>(heads * dim), random);
      const std::vector<float> w = normals(static_cast<std::size_t>(heads), random);
      const std::vector<float> keys = normals(static_cast<std::size_t>(13 * dim), random);
      const float* rows[16] = {};
      for (int r = 0; r < 13; ++r)
        rows[r] = keys.data() + static_cast<std::ptrdiff_t>(r) * dim;
      std::vector<float> panel(static_cast<std::size_t>(dim * 16));
      set->index_panel(rows, dim, panel.data());
      std::vector<float> scores(16), expected(16, 0.0f);
      set->index_scores({q.data(), w.data(), heads, dim}, panel.data(), scores.data());
      for (std::size_t r = 0; r < 13; ++r)
        for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
          float dot = 0.0f;
          for (std::size_t i = 0; i < static_cast<std::size_t>(dim); ++i)
            dot = twin::multiply_add(*set, q[h * dim + i], rows[r][i], dot);
          expected[r] = twin::multiply_add(*set, std::max(dot, 0.0f), w[h], expected[r]);
        }
      expect_bits(expected, scores, set->name);
    }
}

}  // namespace
}  // namespace deepinfer::backend::cpu
