// Values inside the model, layer by layer, on the reference backend. V4.1: each layer is fed the golden streams and
// pre-mix of the layer before (gate 4 of README41.md). V4: one pass (section 4 of README4.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "backend/common/executor.h"
#include "backend/reference/table.h"
#include "support/device.h"
#include "support/golden_file.h"

namespace deepinfer::test {

namespace {

// Golden values that replace what a node computed, and how far they were from it.
struct Forced {
  std::vector<float> values;
  std::string name;
  std::vector<float> computed;
};
using ForcedValues = std::map<graph::ValueId, Forced>;

double rms(std::span<const float> values) {
  double sum = 0;
  int64_t count = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    sum += static_cast<double>(value) * value;
    ++count;
  }
  return count == 0 ? 0 : std::sqrt(sum / static_cast<double>(count));
}

// Largest |a - b|; equal infinities agree, anything else that is not finite is infinitely far.
double distance_of(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!std::isfinite(difference)) return INFINITY;
    largest = std::max(largest, difference);
  }
  return largest;
}

backend::PrepareKernel forcing(const backend::PrepareKernel& inner, ForcedValues& forced) {
  return
      [inner, &forced](backend::PrepareContext& context, const graph::Node& node) -> Result<backend::Kernel> {
        DI_ASSIGN(backend::Kernel kernel, inner(context, node));
        return backend::Kernel([kernel, &forced](const backend::NodeRun& run) {
          kernel(run);
          for (const graph::ValueId id : run.node->outputs) {
            const auto found = forced.find(id);
            if (found == forced.end()) continue;
            const backend::FloatRows rows = run.floats(id);
            const std::span<float> computed(rows.data, static_cast<size_t>(rows.rows * rows.columns));
            found->second.computed.assign(computed.begin(), computed.end());
            std::copy(found->second.values.begin(), found->second.values.end(), computed.begin());
          }
        });
      };
}

backend::SeamTensor seam_of(Device& device, const std::string& name) {
  auto result = device.executable().seam(name);
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return std::move(result).value();
}

// Rows may leave the gate only where a code flipped: a flipped window code reaches the `window` queries after it, a
// flipped query code one row of scores. Golden windows end before most rows and hold no index queries, so the cause itself
// is not always visible; its reach is bounded instead.
constexpr double kNear = 1e-4;        // relative to the golden rms
constexpr double kFlipReach = 5e-2;   // the same, for rows behind a flipped code
constexpr size_t kFlippedLayers = 2;  // layers that may have such rows
constexpr int kFlippedCodes = 3;      // stored values that may differ in all

// What went by, for the log.
struct Seen {
  double worst = 0;
  std::string worst_name;
  int codes = 0;
  int seams = 0;
  std::set<std::string> flipped_layers;
  void add(const std::string& name, double difference) {
    if (difference > worst) {
      worst = difference;
      worst_name = name;
    }
  }
};

int differing(std::span<const float> a, std::span<const float> b) {
  int count = 0;
  for (size_t i = 0; i < a.size(); ++i)
    count += std::abs(a[i] - b[i]) > 1e-6f * std::abs(b[i]);
  return count;
}

class TeacherForced {
 public:
  TeacherForced(const std::string& set, const std::string& prompt)
      : golden_(golden_folder(set) / "golden" / ("seams_" + prompt + ".safetensors")),
        prompts_(golden_folder(set) / "golden" / "prompts.safetensors"),
        prompt_(prompt),
        device_(options(set)) {
    for (const graph::Seam& seam : device_.model().graph->seams)
      if ((seam.name.starts_with("h.") || seam.name.starts_with("P.")) && golden_.has(seam.name))
        forced_[seam.value] = {golden_.floats(seam.name), seam.name, {}};
    backend::OpTable table = backend::reference::op_table();
    for (const graph::Op op : {graph::Op::kHcExpand, graph::Op::kHcCoefficients})
      table[op] = forcing(table[op], forced_);
    auto compiled =
        backend::Executor::compile(device_.model().graph, device_.model().registry, device_.limits(), table,
                                   std::make_shared<backend::Parallel>(ThreadPoolOptions{}));
    if (!compiled.ok()) throw std::runtime_error(compiled.error().message());
    device_.replace_executable(std::move(compiled).value());
  }

  void run_and_compare() {
    Sequence sequence(device_, prompts_.ints(prompt_ + ".ids"));
    if (prompts_.has(prompt_ + ".image_mask")) {
      const auto rows = prompts_.floats(prompt_ + ".span_rows");
      const auto hidden = static_cast<size_t>(device_.model().config.hidden);
      size_t next = 0;
      for (const int32_t flag : prompts_.ints(prompt_ + ".image_mask")) {
        if (flag != 0) {
          const auto first = rows.begin() + static_cast<int64_t>(next++ * hidden);
          sequence.embeds[static_cast<int64_t>(sequence.image.size())] = {
              first, first + static_cast<int64_t>(hidden)};
        }
        sequence.image.push_back(static_cast<uint8_t>(flag));
      }
    }
    run_all(device_, sequence);
    for (const auto& [id, forced] : forced_) {
      ASSERT_EQ(forced.computed.size(), forced.values.size()) << forced.name << " was never computed";
      check_near(forced.name, forced.computed, forced.values);
    }
    for (const std::string& name : golden_.names())
      if (!name.starts_with("h.") && !name.starts_with("P.")) compare(name);
    EXPECT_LE(seen_.codes, kFlippedCodes);
    EXPECT_LE(seen_.flipped_layers.size(), kFlippedLayers);
    std::cout << "[ values   ] " << prompt_ << ": " << seen_.seams << " seams, worst " << seen_.worst
              << " of its rms (" << seen_.worst_name << "), " << seen_.codes << " codes differ, "
              << seen_.flipped_layers.size() << " layers with rows behind a flip\n";
  }

 private:
  static DeviceOptions options(const std::string& set) {
    DeviceOptions result;
    result.set = set;
    result.seams = true;
    result.tokens = 256;
    result.context = 256;
    return result;
  }

  // Row by row against the rms of the whole golden tensor.
  void check_near(const std::string& name, std::span<const float> mine, std::span<const float> golden) {
    ASSERT_EQ(mine.size(), golden.size()) << name;
    const size_t tokens = prompts_.ints(prompt_ + ".ids").size();
    const size_t width = golden.size() / tokens;
    const double scale = std::max(rms(golden), 1e-30);
    int flipped = 0;
    for (size_t row = 0; row < tokens; ++row) {
      const double difference =
          distance_of(mine.subspan(row * width, width), golden.subspan(row * width, width)) / scale;
      seen_.add(name, difference);
      EXPECT_LE(difference, kFlipReach) << name << " row " << row;
      flipped += difference > kNear;
    }
    const bool scores = name.ends_with(".scores");
    EXPECT_LE(flipped, scores ? 1 : device_.model().config.window) << name;
    const size_t first = name.find('.') + 1;
    if (flipped > 0) seen_.flipped_layers.insert(name.substr(first, name.find('.', first) - first));
    ++seen_.seams;
  }

  // Golden names are kind.layer or kind.layer.part.
  void compare(const std::string& name) {
    const std::string kind = name.substr(0, name.find('.'));
    if (kind == "attn" || kind == "moe" || kind == "o")
      check_near(name, seam_of(device_, name).f32, golden_.floats(name));
    else if (kind == "router" || kind == "engram")
      compare_choice(name);
    else if (kind == "rows" || kind == "keys" || kind == "window")
      compare_stored(name);
    else if (kind == "index")
      compare_index(name);
    else
      ADD_FAILURE() << "nothing compares " << name;
  }

  void compare_choice(const std::string& name) {
    if (name.ends_with(".ids") || name.ends_with(".rows")) {
      EXPECT_EQ(seam_of(device_, name).i32, golden_.ints(name)) << name;
      ++seen_.seams;
    } else if (name.ends_with(".weights")) {
      check_near(name, seam_of(device_, name).f32, golden_.floats(name));
    } else {
      compare_engram_delta(name);
    }
  }

  // What the module adds: its result minus the streams it started from, which were forced.
  void compare_engram_delta(const std::string& name) {
    ASSERT_TRUE(name.ends_with(".delta")) << name;
    const int layer = std::stoi(name.substr(name.find('.') + 1));
    std::vector<float> delta = seam_of(device_, "engram." + std::to_string(layer) + ".after").f32;
    const std::string streams = "h." + std::to_string(layer - 1);
    const std::vector<float> before =
        golden_.has(streams) ? golden_.floats(streams) : seam_of(device_, streams).f32;
    ASSERT_EQ(delta.size(), before.size());
    for (size_t i = 0; i < delta.size(); ++i)
      delta[i] -= before[i];
    check_near(name, delta, golden_.floats(name));
  }

  void compare_stored(const std::string& name) {
    const std::vector<float> golden = golden_.floats(name);
    std::vector<float> mine = seam_of(device_, name).f32;
    ASSERT_GE(mine.size(), golden.size()) << name;
    if (name.starts_with("window."))
      mine.erase(mine.begin(), mine.end() - static_cast<int64_t>(golden.size()));
    ASSERT_EQ(mine.size(), golden.size()) << name;
    seen_.codes += differing(mine, golden);
    ++seen_.seams;
  }

  void compare_index(const std::string& name) {
    const std::string layer = name.substr(6, name.find('.', 6) - 6);
    const int64_t rows = golden_.shape(name)[1];
    if (name.ends_with(".scores")) {
      compare_scores(name, std::stoi(layer));
      return;
    }
    // Selections: row ids; candidates: block ids. Golden: one flag a row.
    const backend::SeamTensor mine = seam_of(device_, name);
    const int64_t width = name.ends_with(".selected") ? 1 : device_.model().config.candidate_block_size;
    const std::vector<int32_t> golden = golden_.ints(name);
    std::vector<int32_t> flags(golden.size(), 0);
    for (int64_t row = 0; row < mine.shape[0]; ++row) {
      for (int64_t i = 0; i < mine.shape[1]; ++i) {
        const int64_t first = mine.i32[static_cast<size_t>(row * mine.shape[1] + i)] * width;
        for (int64_t j = first; first >= 0 && j < std::min(first + width, rows); ++j)
          flags[static_cast<size_t>(row * rows + j)] = 1;
      }
    }
    if (width > 1) keep_visible(flags, rows);
    std::vector<int32_t> expected = golden;
    if (width > 1) keep_visible(expected, rows);
    EXPECT_EQ(flags, expected) << name;
    ++seen_.seams;
  }

  // Candidate flags of rows that a query cannot see mean nothing.
  void keep_visible(std::vector<int32_t>& flags, int64_t rows) const {
    const auto queries = static_cast<int64_t>(flags.size()) / rows;
    for (int64_t query = 0; query < queries; ++query)
      for (int64_t row = query + 1; row < rows; ++row)
        flags[static_cast<size_t>(query * rows + row)] = 0;
  }

  // Golden scores have the causal and the candidate mask in them, ours only the first.
  void compare_scores(const std::string& name, int layer) {
    const std::vector<float> golden = golden_.floats(name);
    const int64_t rows = golden_.shape(name)[1];
    const backend::SeamTensor mine = seam_of(device_, name);
    const bool masked = device_.model().config.layer[static_cast<size_t>(layer)].candidates ==
                        model::CandidateRole::kConsumes;
    ASSERT_EQ(mine.shape[1], rows) << name;
    std::vector<float> compared = mine.f32;
    for (size_t i = 0; i < golden.size(); ++i)
      if (masked && golden[i] == -INFINITY) compared[i] = -INFINITY;
    check_near(name, compared, golden);
  }

  GoldenFile golden_;
  GoldenFile prompts_;
  std::string prompt_;
  Device device_;
  ForcedValues forced_;
  Seen seen_;
};

TEST(GoldenSeams, Tiny41Prompt200) {
  TeacherForced("tiny41", "p200").run_and_compare();
}

TEST(GoldenSeams, Tiny41Image) {
  TeacherForced("tiny41", "pimg").run_and_compare();
}

TEST(GoldenSeams, Mini41Prompt129) {
  TeacherForced("mini41", "p129").run_and_compare();
}

// --- V4

class OnePass {
 public:
  OnePass(const std::string& set, const std::string& prompt)
      : golden_(golden_folder(set) / "golden" / "seams.safetensors"),
        prompts_(golden_folder(set) / "golden" / "logits.safetensors"),
        positions_(golden_.ints("positions")),
        device_(options(set)),
        sequence_(device_, prompts_.ints(prompt + ".ids")) {}

  void run_and_compare() {
    run_all(device_, sequence_);
    for (const std::string& name : golden_.names()) {
      if (name == "positions") continue;
      if (name.ends_with("router_ids"))
        compare_sets(name);
      else if (name.ends_with("index_sel"))
        compare_sets(name);
      else if (name.ends_with("router_weights"))
        compare_router_weights(name);
      else
        compare_floats(name);
    }
    std::cout << "[ values   ] " << seen_.seams << " seams, worst " << seen_.worst << " (" << seen_.worst_name
              << ")\n";
  }

 private:
  static constexpr double kGate = 5e-5;  // absolute

  static DeviceOptions options(const std::string& set) {
    DeviceOptions result;
    result.set = set;
    result.kv_quant = false;
    result.seams = true;
    result.tokens = 320;
    result.context = 320;
    return result;
  }

  void check(const std::string& name, std::span<const float> mine, std::span<const float> golden) {
    ASSERT_EQ(mine.size(), golden.size()) << name;
    double largest = 0;
    for (size_t i = 0; i < mine.size(); ++i) {
      ASSERT_TRUE(std::isfinite(mine[i])) << name;
      largest = std::max(largest, std::abs(static_cast<double>(mine[i]) - golden[i]));
    }
    EXPECT_LE(largest, kGate) << name;
    seen_.add(name, largest);
    ++seen_.seams;
  }

  // Tensors whose first dimension is the list of stored positions hold those rows only; rows of compressed layers hold
  // all rows. Scores are unmasked in the golden: columns that a query does not see are left out.
  void compare_floats(const std::string& name) {
    const backend::SeamTensor mine = seam_of(device_, name);
    std::vector<float> golden = golden_.floats(name);
    const auto width = static_cast<int64_t>(golden.size()) / golden_.shape(name)[0];
    const bool every_row = name.ends_with(".rows") || name.ends_with(".index_keys");
    std::vector<float> picked;
    if (every_row) {
      picked = mine.f32;
    } else {
      for (const int32_t position : positions_) {
        const auto first = mine.f32.begin() + position * width;
        picked.insert(picked.end(), first, first + width);
      }
    }
    for (size_t i = 0; name.ends_with(".index_scores") && i < picked.size(); ++i)
      if (picked[i] == -INFINITY) picked[i] = golden[i] = 0;
    check(name, picked, golden);
  }

  static std::vector<std::set<int32_t>> sets_of(std::span<const int32_t> values, int64_t width) {
    std::vector<std::set<int32_t>> rows;
    for (size_t first = 0; first < values.size(); first += static_cast<size_t>(width)) {
      rows.emplace_back();
      for (size_t i = first; i < first + static_cast<size_t>(width); ++i)
        if (values[i] >= 0) rows.back().insert(values[i]);
    }
    return rows;
  }

  void compare_sets(const std::string& name) {
    const backend::SeamTensor mine = seam_of(device_, name);
    EXPECT_EQ(sets_of(mine.i32, mine.shape[1]), sets_of(golden_.ints(name), golden_.shape(name)[1])) << name;
    ++seen_.seams;
  }

  // The golden's weights are in ascending order of expert id.
  void compare_router_weights(const std::string& name) {
    const backend::SeamTensor mine = seam_of(device_, name);
    const std::string ids_name = name.substr(0, name.size() - 7) + "ids";
    const backend::SeamTensor ids = seam_of(device_, ids_name);
    const auto k = static_cast<size_t>(mine.shape[1]);
    std::vector<float> sorted;
    for (size_t first = 0; first < mine.f32.size(); first += k) {
      std::map<int32_t, float> row;
      for (size_t i = first; i < first + k; ++i)
        row[ids.i32[i]] = mine.f32[i];
      for (const auto& [id, weight] : row)
        sorted.push_back(weight);
    }
    check(name, sorted, golden_.floats(name));
  }

  GoldenFile golden_;
  GoldenFile prompts_;
  std::vector<int32_t> positions_;
  Device device_;
  Sequence sequence_;
  Seen seen_;
};

TEST(GoldenSeams, Tiny4Prompt300) {
  OnePass("tiny4", "p300").run_and_compare();
}

TEST(GoldenSeams, Mini4Prompt129) {
  OnePass("mini4", "p129").run_and_compare();
}

}  // namespace

}  // namespace deepinfer::test
