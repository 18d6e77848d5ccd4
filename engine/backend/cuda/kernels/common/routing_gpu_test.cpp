// The choice of experts against sorting. Needs a GPU.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/kernels/common/gpu_world.h"

namespace deepinfer::backend::cuda::test {
namespace {

constexpr int kRows = 37, kSpare = 3;

enum class Draw { kNormal, kTies, kEqual, kSignedZeros, kNotNumbers };

std::vector<float> draw_values(Draw draw, size_t count, Random& random) {
  std::vector<float> values(count);
  for (float& value : values) {
    const double normal = random.normal();
    switch (draw) {
      case Draw::kNormal: value = static_cast<float>(normal); break;
      case Draw::kTies: value = static_cast<float>(std::round(normal * 2) / 2); break;
      case Draw::kEqual: value = 0.625f; break;
      case Draw::kSignedZeros: value = normal > 1 ? 1.0f : normal > 0 ? 0.0f : -0.0f; break;
      case Draw::kNotNumbers:
        value = normal > 1    ? std::numeric_limits<float>::quiet_NaN()
                : normal < -1 ? -std::numeric_limits<float>::infinity()
                              : static_cast<float>(normal);
        break;
    }
  }
  return values;
}

// Higher score + bias first, then the lower id; what is no number last.
std::vector<std::int32_t> highest(const float* scores, const float* bias, int experts, int top_k) {
  std::vector<float> values(static_cast<size_t>(experts));
  for (int e = 0; e < experts; ++e) {
    const float value = scores[e] + bias[e];
    values[static_cast<size_t>(e)] =
        value > -std::numeric_limits<float>::infinity() ? value : std::numeric_limits<float>::lowest();
  }
  std::vector<std::int32_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(top_k));
  return order;
}

struct Chosen {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> weights;  // bits
  bool operator==(const Chosen&) const = default;
};

class RoutingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }

  // `launch` fills ids and weights [kRows + kSpare, top_k]; rows past the count stay as they are.
  template <class Launch>
  static Chosen run(int top_k, const Launch& launch) {
    const size_t size = size_t{kRows + kSpare} * static_cast<size_t>(top_k);
    const DeviceArray<std::int32_t> ids(size);
    const DeviceArray<float> weights(size);
    launch(ids.data(), weights.data());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    Chosen chosen;
    chosen.ids = ids.host();
    for (const float weight : weights.host())
      chosen.weights.push_back(std::bit_cast<std::uint32_t>(weight));
    for (size_t i = size_t{kRows} * static_cast<size_t>(top_k); i < size; ++i)
      EXPECT_EQ(chosen.weights[i], 0xcdcdcdcdu) << "a row past the count was written";
    return chosen;
  }
};

TEST_F(RoutingTest, ChoicesAreThoseOfSortingInOneLaunchAndInTwo) {
  std::vector<std::int32_t> counts(kCounts, 0);
  counts[kTokenCount] = kRows;
  const DeviceArray<std::int32_t> device_counts(counts);
  std::vector<std::uint8_t> image(kRows);
  for (size_t row = 0; row < image.size(); ++row)
    image[row] = row % 3 == 1 ? 1 : 0;
  const DeviceArray<std::uint8_t> device_image(image);
  StepData step{};
  step.counts = device_counts.data();
  step.image = device_image.data();
  const RowSpace rows{RowAxis::kTokens, kTokenCount, 1, kRows + kSpare};
  Random random{11};
  for (const int experts : {1, 2, 31, 32, 33, 256, 384, 512, 513, 1024})
    for (const Draw draw :
         {Draw::kNormal, Draw::kTies, Draw::kEqual, Draw::kSignedZeros, Draw::kNotNumbers}) {
      const int top_k = std::min(experts, experts % 2 == 0 ? 6 : 32);
      SCOPED_TRACE(std::to_string(experts) + " experts, draw " + std::to_string(static_cast<int>(draw)));
      std::vector<float> z = draw_values(draw, size_t{kRows} * static_cast<size_t>(experts), random);
      z.resize(size_t{kRows + kSpare} * static_cast<size_t>(experts),
               std::numeric_limits<float>::quiet_NaN());
      const std::vector<float> bias = draw_values(draw, static_cast<size_t>(experts), random);
      const std::vector<float> image_bias = draw_values(draw, static_cast<size_t>(experts), random);
      const DeviceArray<float> device_z(z), device_bias(bias), device_image_bias(image_bias);
      const DeviceArray<float> device_scores(z.size());
      Gate gate;
      gate.experts = experts, gate.top_k = top_k;
      gate.routed_scale = 1.5f;
      gate.bias = device_bias.data(), gate.image_bias = device_image_bias.data();
      router_scores(step, rows, device_z.data(), experts, 0.75f, device_scores.data(), nullptr);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const std::vector<float> scores = device_scores.host();
      const Chosen apart = run(top_k, [&](std::int32_t* ids, float* weights) {
        gate_top_k(step, rows, gate, device_scores.data(), ids, weights, nullptr);
      });
      const Chosen together = run(top_k, [&](std::int32_t* ids, float* weights) {
        fused_gate(step, rows, gate, device_z.data(), 0.75f, ids, weights, {}, nullptr);
      });
      EXPECT_EQ(together, apart);
      for (int row = 0; row < kRows; ++row) {
        const float* own = scores.data() + static_cast<size_t>(row) * static_cast<size_t>(experts);
        const auto want = highest(own, image[static_cast<size_t>(row)] != 0 ? image_bias.data() : bias.data(),
                                  experts, top_k);
        const auto first = static_cast<std::ptrdiff_t>(row) * top_k;
        ASSERT_EQ(std::vector<std::int32_t>(apart.ids.begin() + first, apart.ids.begin() + first + top_k),
                  want)
            << "row " << row;
        float sum = 0;
        for (const std::int32_t id : want)
          sum += own[id];
        for (int i = 0; i < top_k; ++i) {
          const float weight = own[want[static_cast<size_t>(i)]] / (sum + 1e-20f) * 1.5f;
          const float got = std::bit_cast<float>(apart.weights[static_cast<size_t>(first + i)]);
          ASSERT_TRUE(got == weight || (std::isnan(got) && std::isnan(weight)))
              << "row " << row << " choice " << i << ": " << got << " is not " << weight;
        }
      }
    }
}

struct HostAssignment {
  std::vector<std::int32_t> first, slots, active;
  bool operator==(const HostAssignment&) const = default;
};
// An assignment in memory of its own, for so many pairs.
struct DeviceAssignment {
  DeviceArray<std::int32_t> counts, first, slots, active, active_count;
  DeviceAssignment(int experts, int pairs)
      : counts(static_cast<size_t>(experts)),
        first(static_cast<size_t>(experts + 1)),
        slots(static_cast<size_t>(pairs)),
        active(static_cast<size_t>(most_passes(experts, pairs))),
        active_count(1) {}
  Assignment assignment() const {
    return {counts.data(), first.data(), slots.data(), active.data(), active_count.data()};
  }
  HostAssignment host(int pairs) const {
    HostAssignment host{first.host(), slots.host(), active.host()};
    host.slots.resize(static_cast<size_t>(pairs));
    host.active.resize(static_cast<size_t>(active_count.host()[0]));
    return host;
  }
};

// By the gate's own launch, by one for few pairs, by two for many: what sorting gives.
TEST_F(RoutingTest, PairsAreAssignedByExpert) {
  Random random{13};
  const DeviceArray<std::uint8_t> image(std::vector<std::uint8_t>(256, 0));
  for (const int experts : {2, 33, 256, 384, 385, 512, 600})
    for (const auto& [count, most] :
         {std::pair{1, 1}, {1, 2}, {2, 2}, {3, 4}, {5, 8}, {8, 8}, {9, 16}, {200, 200}})
      for (const bool equal : {false, true}) {
        const int top_k = std::min(experts, 7), pairs = count * top_k;
        SCOPED_TRACE(std::to_string(count) + " rows of " + std::to_string(most) + ", " +
                     std::to_string(experts) + " experts" + (equal ? ", all rows equal" : ""));
        std::vector<std::int32_t> counts(kCounts, 0);
        counts[kTokenCount] = count;
        const DeviceArray<std::int32_t> device_counts(counts);
        StepData step{};
        step.counts = device_counts.data();
        step.image = image.data();
        const RowSpace rows{RowAxis::kTokens, kTokenCount, 1, most};
        std::vector<float> z = draw_values(Draw::kNormal, static_cast<size_t>(most * experts), random);
        for (size_t i = static_cast<size_t>(experts); equal && i < z.size(); ++i)
          z[i] = z[i % static_cast<size_t>(experts)];
        const DeviceArray<float> device_z(z), bias(std::vector<float>(static_cast<size_t>(experts), 0.0f));
        Gate gate;
        gate.experts = experts, gate.top_k = top_k;
        gate.bias = gate.image_bias = bias.data();
        const DeviceArray<std::int32_t> ids(static_cast<size_t>(most * top_k));
        const DeviceArray<float> weights(static_cast<size_t>(most * top_k));
        fused_gate(step, rows, gate, device_z.data(), 1.0f, ids.data(), weights.data(), {}, nullptr);
        const DeviceAssignment apart(experts, most * top_k);
        assign_experts(step, rows, ids.data(), experts, top_k, apart.assignment(), nullptr);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const std::vector<std::int32_t> chosen = ids.host();
        HostAssignment want;
        for (int e = 0; e < experts; ++e) {
          want.first.push_back(static_cast<std::int32_t>(want.slots.size()));
          for (int pair = 0; pair < pairs; ++pair)
            if (chosen[static_cast<size_t>(pair)] == e) want.slots.push_back(pair);
          const int own = static_cast<int>(want.slots.size()) - want.first.back();
          for (int pass = 0; pass * kPassPairs < own; ++pass)
            want.active.push_back(e | pass << kPassShift);
        }
        want.first.push_back(pairs);
        ASSERT_EQ(apart.host(pairs), want);
        if (!gate_can_assign(most, experts)) continue;
        const DeviceAssignment together(experts, most * top_k);
        const Assignment assignment = together.assignment();
        const DeviceArray<std::int32_t> other_ids(static_cast<size_t>(most * top_k));
        const DeviceArray<float> other_weights(static_cast<size_t>(most * top_k));
        fused_gate(step, rows, gate, device_z.data(), 1.0f, other_ids.data(), other_weights.data(),
                   {&assignment, {}}, nullptr);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(together.host(pairs), want);
        EXPECT_EQ(other_ids.host(), chosen);
        EXPECT_EQ(0, std::memcmp(other_weights.host().data(), weights.host().data(),
                                 static_cast<size_t>(pairs) * sizeof(float)));
      }
}

// In f32 by ascending id, then the shared expert; one rounding.
TEST_F(RoutingTest, ContributionsAreAddedByAscendingId) {
  Random random{12};
  for (const auto& [count, columns] :
       {std::pair{5, 300}, std::pair{80, 300}, std::pair{80, 2048}})  // few rows, many, in eights
    for (const int top_k : {1, 6, 8, 9}) {
      SCOPED_TRACE(std::to_string(count) + " rows of " + std::to_string(top_k) + " times " +
                   std::to_string(columns));
      std::vector<std::int32_t> counts(kCounts, 0);
      counts[kTokenCount] = count;
      const DeviceArray<std::int32_t> device_counts(counts);
      StepData step{};
      step.counts = device_counts.data();
      const int most = count + kSpare;
      std::vector<std::int32_t> ids;
      for (int row = 0; row < most; ++row) {
        std::vector<std::int32_t> all(384);
        std::iota(all.begin(), all.end(), 0);
        for (int i = 0; i < top_k; ++i) {
          std::swap(all[static_cast<size_t>(i)],
                    all[static_cast<size_t>(i) + random.next() % (all.size() - static_cast<size_t>(i))]);
          ids.push_back(all[static_cast<size_t>(i)]);
        }
      }
      std::vector<std::uint16_t> y(static_cast<size_t>(most * top_k * columns));
      std::vector<std::uint16_t> shared(static_cast<size_t>(most * columns));
      for (auto* values : {&y, &shared})
        for (auto& value : *values)
          value = bf16_bits(random.normal() * std::pow(10.0, 6 * random.uniform() - 3));
      const DeviceArray<std::int32_t> device_ids(ids);
      const DeviceArray<std::uint16_t> device_y(y), device_shared(shared), sum(shared.size());
      const auto values = [&](const DeviceArray<std::uint16_t>& array) {
        return Values{array.data(), true, columns};
      };
      expert_sum(step, {RowAxis::kTokens, kTokenCount, 1, most}, device_ids.data(), top_k, values(device_y),
                 values(device_shared), values(sum), nullptr);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const auto got = sum.host();
      for (int row = 0; row < most; ++row) {
        const std::int32_t* own = ids.data() + row * top_k;
        std::vector<int> order(static_cast<size_t>(top_k));
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](int a, int b) { return own[a] < own[b]; });
        for (int d = 0; d < columns; ++d) {
          float total = 0;
          for (const int i : order)
            total += static_cast<float>(bf16_value(y[static_cast<size_t>((row * top_k + i) * columns + d)]));
          total += static_cast<float>(bf16_value(shared[static_cast<size_t>(row * columns + d)]));
          const std::uint16_t want = row < count ? bf16_bits(static_cast<double>(total)) : 0xcdcd;
          ASSERT_EQ(got[static_cast<size_t>(row * columns + d)], want) << "row " << row << " channel " << d;
        }
      }
    }
}

// Eight channels a thread or one: the same bits.
TEST_F(RoutingTest, ActivationsOfManyRowsHaveTheBitsOfFew) {
  constexpr int kWidth = 2304, kFew = 50, kMany = 90;
  Random random{13};
  std::vector<std::uint16_t> g(size_t{kMany} * kWidth), u(g.size());
  for (auto* values : {&g, &u})
    for (auto& value : *values)
      value = bf16_bits(random.normal() * std::pow(10.0, 6 * random.uniform() - 3));
  g[5] = 0x7fc0, u[6] = 0xff80, g[7] = 0x8000;  // NaN, -inf, -0
  const DeviceArray<std::uint16_t> gates(g), ups(u), few(g.size()), many(g.size());
  std::vector<float> weights(kMany);
  for (float& weight : weights)
    weight = static_cast<float>(random.uniform());
  const DeviceArray<float> device_weights(weights);
  for (const bool weighted : {false, true}) {
    const auto run = [&](int rows, const DeviceArray<std::uint16_t>& t) {
      std::vector<std::int32_t> counts(kCounts, 0);
      counts[kTokenCount] = rows;
      const DeviceArray<std::int32_t> device_counts(counts);
      StepData step{};
      step.counts = device_counts.data();
      const auto values = [&](const DeviceArray<std::uint16_t>& array) {
        return Values{array.data(), true, kWidth};
      };
      swiglu(step, {RowAxis::kTokens, kTokenCount, 1, rows}, 1, 10.0f,
             weighted ? device_weights.data() : nullptr, values(gates), values(ups), values(t), nullptr);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      auto bits = t.host();
      bits.resize(size_t{kFew} * kWidth);
      return bits;
    };
    EXPECT_EQ(run(kMany, many), run(kFew, few));
  }
}

// Pairs grouped by expert, ascending within one, and the passes over experts that have some.
TEST_F(RoutingTest, PairsAreGroupedByExpert) {
  Random random{14};
  for (const auto& [rows, experts, top_k] :
       {std::tuple{3, 384, 6}, std::tuple{170, 384, 6}, std::tuple{200, 384, 6}, std::tuple{1000, 7, 2},
        std::tuple{1371, 700, 5}, std::tuple{4096, 384, 6}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(experts) + " experts");
    const int pairs = rows * top_k, spare = 5 * top_k;
    std::vector<std::int32_t> counts(kCounts, 0);
    counts[kTokenCount] = rows;
    const DeviceArray<std::int32_t> device_counts(counts);
    StepData step{};
    step.counts = device_counts.data();
    std::vector<std::int32_t> ids(static_cast<size_t>(pairs + spare));
    for (auto& id : ids)  // few of the experts are many's choice
      id = static_cast<std::int32_t>(random.next() %
                                     static_cast<unsigned>(random.next() % 3 == 0 ? 3 : experts));
    const DeviceArray<std::int32_t> device_ids(ids);
    const auto passes = static_cast<size_t>(most_passes(experts, pairs + spare));
    const DeviceArray<std::int32_t> of_experts(static_cast<size_t>(experts)),
        first(static_cast<size_t>(experts) + 1), slots(static_cast<size_t>(pairs + spare)), active(passes),
        active_count(size_t{1});
    assign_experts(step, {RowAxis::kTokens, kTokenCount, 1, rows + 5}, device_ids.data(), experts, top_k,
                   {of_experts.data(), first.data(), slots.data(), active.data(), active_count.data()},
                   nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<std::int32_t> want_slots, want_first = {0}, want_active;
    for (int e = 0; e < experts; ++e) {
      for (int pair = 0; pair < pairs; ++pair)
        if (ids[static_cast<size_t>(pair)] == e) want_slots.push_back(pair);
      const int own = static_cast<int>(want_slots.size()) - want_first.back();
      want_first.push_back(static_cast<int>(want_slots.size()));
      for (int pass = 0; pass * kPassPairs < own; ++pass)
        want_active.push_back(e | pass << kPassShift);
    }
    auto got_slots = slots.host(), got_active = active.host();
    got_slots.resize(want_slots.size());
    got_active.resize(want_active.size());
    EXPECT_EQ(got_slots, want_slots);
    EXPECT_EQ(first.host(), want_first);
    EXPECT_EQ(active_count.host()[0], static_cast<int>(want_active.size()));
    EXPECT_EQ(got_active, want_active);
  }
}

}  // namespace
}  // namespace deepinfer::backend::cuda::test
