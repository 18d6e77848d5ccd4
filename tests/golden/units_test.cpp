// Single functions of the reference against transformers (README41.md, units.safetensors): what whole logits
// cannot see.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/common/record.h"
#include "backend/reference/arithmetic.h"
#include "backend/reference/engram.h"
#include "backend/reference/index.h"
#include "backend/reference/moe.h"
#include "backend/reference/residual.h"
#include "backend/reference/rotary.h"
#include "base/math.h"
#include "base/rope.h"
#include "support/golden_file.h"

namespace deepinfer::test {

namespace {

using backend::Panels;
namespace reference = backend::reference;

const GoldenFile& units() {
  static const GoldenFile file(golden_folder("tiny41") / "golden" / "units.safetensors");
  return file;
}

// |a - b| <= relative * |b| + absolute, element by element.
void expect_near(std::span<const float> a, std::span<const float> b, float relative, float absolute,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_LE(std::abs(a[i] - b[i]), relative * std::abs(b[i]) + absolute)
        << what << " " << i << ": " << a[i] << " instead of " << b[i];
}

Panels panels_of(const std::vector<float>& rows, int64_t n, int64_t k) {
  Panels panels;
  panels.n = n;
  panels.k = k;
  panels.values.assign(static_cast<size_t>(panels.panels() * k * Panels::kPanel), 0.0f);
  for (int64_t row = 0; row < n; ++row)
    for (int64_t c = 0; c < k; ++c)
      panels.values[static_cast<size_t>((row / Panels::kPanel * k + c) * Panels::kPanel +
                                        row % Panels::kPanel)] = rows[static_cast<size_t>(row * k + c)];
  return panels;
}

TEST(GoldenUnits, RmsNorm) {
  const std::vector<float> x = units().floats("rms.x");
  const std::vector<float> weight = units().floats("rms.weight");
  const std::vector<float> golden = units().floats("rms.y");
  std::vector<float> y(x.size());
  for (size_t row = 0; row < x.size(); row += weight.size())
    reference::rms_norm(std::span(x).subspan(row, weight.size()), weight, 1e-20f, false,
                        std::span(y).subspan(row, weight.size()));
  expect_near(y, golden, 1e-6f, 0.0f, "y");
}

TEST(GoldenUnits, HyperConnections) {
  const reference::HcShape shape{4, 32, 20, 1e-20f, 1e-6f};
  const std::vector<float> h = units().floats("mhc.h");
  const std::vector<float> sub_layer = units().floats("mhc.y");
  const std::vector<float> base = units().floats("mhc.base");
  const std::vector<float> scale = units().floats("mhc.scale");
  const Panels fn = panels_of(units().floats("mhc.fn"), 24, 128);
  const size_t rows = sub_layer.size() / 32;
  std::vector<float> pre(rows * 4), post(rows * 4), comb(rows * 16), collapsed(rows * 32),
      expanded(rows * 128);
  for (size_t row = 0; row < rows; ++row) {
    reference::hc_coefficients(shape, {&fn, base, scale}, &h[row * 128], &pre[row * 4], &post[row * 4],
                               &comb[row * 16]);
    reference::hc_collapse(shape, &h[row * 128], &pre[row * 4], false, &collapsed[row * 32]);
    reference::hc_expand(shape, &sub_layer[row * 32], &h[row * 128], &post[row * 4], &comb[row * 16], false,
                         &expanded[row * 128]);
  }
  expect_near(pre, units().floats("mhc.pre"), 4e-6f, 0, "pre");
  expect_near(post, units().floats("mhc.post"), 4e-6f, 0, "post");
  expect_near(comb, units().floats("mhc.comb"), 1e-5f, 1e-7f, "comb");
  expect_near(collapsed, units().floats("mhc.collapsed"), 1e-5f, 1e-5f, "collapsed");
  expect_near(expanded, units().floats("mhc.expanded"), 1e-5f, 1e-5f, "expanded");
}

void expect_quantised(const state::RecordLayout& layout, const std::string& name) {
  const std::vector<float> golden = units().floats(name);
  std::vector<float> x = units().floats("quant.x");
  const auto width = static_cast<size_t>(layout.channels);
  std::vector<std::byte> codes(static_cast<size_t>(layout.code_bytes()));
  std::vector<std::byte> scales(static_cast<size_t>(layout.scale_bytes()));
  for (size_t first = 0; first < x.size(); first += width) {
    const std::span row = std::span(x).subspan(first, width);
    std::vector<float> stored(width);
    backend::encode_record(layout, row, {codes.data(), nullptr, scales.data()});
    backend::decode_record(layout, {codes.data(), nullptr, scales.data()}, stored);
    backend::fake_quantise_record(layout, row);
    for (size_t i = 0; i < width; ++i) {
      ASSERT_EQ(row[i], golden[first + i]) << name << " row " << first / width << " channel " << i;
      ASSERT_EQ(stored[i], row[i]) << name << ": the record and the fake-quantised value differ";
    }
    // With power-of-two scales a stored value stays what it is when it is stored again (window rows are).
    if (layout.format == state::RecordFormat::kNvfp4) continue;
    std::vector<float> again = stored;
    backend::fake_quantise_record(layout, again);
    ASSERT_EQ(again, stored) << name;
  }
}

TEST(GoldenUnits, Quantisers) {
  using state::RecordFormat;
  expect_quantised({RecordFormat::kFp8Block, 32, 32, 32, false}, "quant.window_fp8");
  expect_quantised({RecordFormat::kMxfp4, 32, 0, 32, false}, "quant.index_fp4");
  expect_quantised({RecordFormat::kNvfp4, 32, 0, 16, false}, "quant.rows_fp4");
}

TEST(GoldenUnits, RopeTables) {
  const std::vector<int64_t> positions = units().longs("rope.positions");
  for (const bool compress : {false, true}) {
    const std::string name = compress ? "rope.compress" : "rope.main";
    const std::vector<float> frequencies =
        rope_frequencies({compress ? 160000.0 : 10000.0, 64, compress ? 16.0 : 1.0, 65536, 32.0, 1.0});
    EXPECT_EQ(frequencies, units().floats(name + ".inv_freq"));
    const std::vector<float> sines = units().floats(name + ".sin");
    const std::vector<float> cosines = units().floats(name + ".cos");
    std::vector<float> vectors = units().floats("rope.x");
    for (size_t p = 0; p < positions.size(); ++p) {
      std::vector<float> sine, cosine;
      for (size_t i = 0; i < frequencies.size(); ++i) {
        const SinCos angle = sincos_f32(static_cast<float>(positions[p]) * frequencies[i]);
        sine.push_back(angle.sin);
        cosine.push_back(angle.cos);
        EXPECT_NEAR(angle.sin, sines[p * frequencies.size() + i], 1.2e-7) << name << " " << positions[p];
        EXPECT_NEAR(angle.cos, cosines[p * frequencies.size() + i], 1.2e-7) << name << " " << positions[p];
      }
      reference::rotate(std::span(vectors).subspan(p * 512, 512), sine, cosine, false, false);
    }
    if (compress) expect_near(vectors, units().floats(name + ".y"), 1e-6f, 1e-6f, name);
  }
}

TEST(GoldenUnits, EngramRows) {
  const std::vector<int64_t> ids = units().longs("engram.ids");
  const std::vector<int32_t> live = units().ints("engram.live");
  const std::vector<int64_t> golden = units().longs("engram.rows");  // [position, layer, column]
  const std::vector<int64_t> primes = units().longs("engram.primes");
  const std::vector<int64_t> multipliers = units().longs("engram.multipliers");
  constexpr int64_t kCanonicalIds = 99092;
  for (size_t layer = 0; layer < 2; ++layer) {
    graph::EngramAttributes attributes;
    attributes.max_ngram = 4;
    attributes.heads = 8;
    attributes.multipliers.assign(multipliers.begin() + static_cast<int64_t>(layer) * 4,
                                  multipliers.begin() + static_cast<int64_t>(layer + 1) * 4);
    attributes.primes.assign(primes.begin() + static_cast<int64_t>(layer) * 24,
                             primes.begin() + static_cast<int64_t>(layer + 1) * 24);
    int64_t offset = 0;
    for (const int64_t prime : attributes.primes) {
      attributes.offsets.push_back(offset);
      offset += prime;
    }
    for (size_t p = 0; p < ids.size(); ++p) {
      std::vector<int64_t> back(4);
      std::vector<uint8_t> dead(4, 1);
      for (size_t k = 0; k < 4 && k <= p; ++k) {
        back[k] = ids[p - k] % kCanonicalIds;
        dead[k] = live[p - k] == 0;
      }
      std::vector<int32_t> rows(24);
      reference::engram_rows(attributes, back, dead, 2, rows);
      for (size_t column = 0; column < rows.size(); ++column)
        ASSERT_EQ(rows[column], golden[(p * 2 + layer) * 24 + column])
            << "position " << p << " column " << column;
    }
  }
}

TEST(GoldenUnits, Router) {
  const Panels gate = panels_of(units().floats("router.weight"), 12, 32);
  const std::vector<float> x = units().floats("router.x");
  const std::vector<int32_t> image = units().ints("router.image_mask");
  const std::vector<float> bias = units().floats("router.bias");
  const std::vector<float> image_bias = units().floats("router.bias_vl");
  const std::vector<int64_t> golden_ids = units().longs("router.ids");
  const std::vector<float> golden_weights = units().floats("router.weights");
  graph::GateAttributes attributes;
  attributes.experts = 12;
  attributes.top_k = 3;
  attributes.routed_scale = 1.5f;
  for (size_t row = 0; row < image.size(); ++row) {
    std::vector<float> z(12), s(12), weights(3);
    std::vector<int32_t> ids(3);
    reference::multiply_row(gate, &x[row * 32], z.data(), false);
    reference::router_scores(z, 1.0f, s);
    reference::gate_top_k(attributes, s, image[row] != 0 ? image_bias : bias, ids, weights);
    for (size_t i = 0; i < 3; ++i)
      ASSERT_EQ(ids[i], golden_ids[row * 3 + i]) << "row " << row;
    expect_near(weights, std::span(golden_weights).subspan(row * 3, 3), 2e-6f, 0, "weights");
  }
}

TEST(GoldenUnits, CandidateBlocks) {
  const std::vector<float> scores = units().floats("candidate.scores");
  const std::vector<int64_t> lengths = units().longs("candidate.lengths");
  const std::vector<int32_t> keep = units().ints("candidate.keep");
  constexpr size_t kRows = 43;
  for (size_t query = 0; query < lengths.size(); ++query) {
    std::vector<float> visible(scores.begin() + static_cast<int64_t>(query * kRows),
                               scores.begin() + static_cast<int64_t>(query * kRows) + lengths[query]);
    std::vector<int32_t> blocks(4), order;
    std::vector<float> block_scores;
    reference::candidate_blocks(visible, 8, blocks, block_scores, order);
    std::vector<int32_t> mask(kRows, 0);
    for (const int32_t block : blocks)
      for (size_t row = 0; block >= 0 && row < 8 && static_cast<size_t>(block) * 8 + row < kRows; ++row)
        mask[static_cast<size_t>(block) * 8 + row] = 1;
    for (size_t row = 0; row < kRows; ++row)
      ASSERT_EQ(mask[row], keep[query * kRows + row]) << "query " << query << " row " << row;
  }
}

}  // namespace

}  // namespace deepinfer::test
