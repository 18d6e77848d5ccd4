// Logits and greedy continuations of every golden prompt, in f32: the gates 1 to 3 of README41.md and section 5 of
// README4.md.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "golden/compare.h"
#include "golden/flips.h"
#include "support/device.h"
#include "support/golden_file.h"

namespace deepinfer::test {

namespace {

constexpr int kGreedySteps = 48;

struct Case {
  std::string backend;
  std::string set;
  std::string prompt;
  double max = 0;
  double median_max = 0;  // 0: no gate
  double mean = 0;
  double kl_mean = 0;
  double top1 = 0;
  bool flips = false;     // README41.md allows a flipped code (gate 2)
  double greedy_gap = 0;  // greedy ids must agree while the golden's best leads by more than this
};

void PrintTo(const Case& entry, std::ostream* out) {
  *out << entry.backend << " " << entry.set << " " << entry.prompt;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.backend + "_" + info.param.set + "_" + info.param.prompt;
}

void print(const Case& entry, const std::string& what, const Distance& d) {
  std::cout << "[ values   ] " << entry.backend << " " << entry.set << " " << entry.prompt << " " << what
            << ": max " << d.max << " median " << d.median_max << " mean " << d.mean << " KL " << d.kl_mean
            << " top-1 " << 100 * d.top1 << " %\n";
}

// The golden's lead over our id at the first step where they differ; 0 when all agree. From there on the two runs
// are different texts.
float greedy_lead(const std::vector<int32_t>& ids, const std::vector<int32_t>& golden,
                  const std::vector<float>& golden_rows) {
  const size_t vocab = golden_rows.size() / golden.size();
  for (size_t step = 0; step < golden.size(); ++step) {
    if (ids[step] == golden[step]) continue;
    const std::span row(golden_rows.data() + step * vocab, vocab);
    return row[static_cast<size_t>(golden[step])] - row[static_cast<size_t>(ids[step])];
  }
  return 0;
}

Sequence prompt_sequence(Device& device, const GoldenFile& golden, const std::string& prompt) {
  Sequence sequence(device, golden.ints(prompt + ".ids"));
  if (!golden.has(prompt + ".image_mask")) return sequence;
  for (const int32_t flag : golden.ints(prompt + ".image_mask"))
    sequence.image.push_back(static_cast<uint8_t>(flag));
  const std::vector<float> rows = golden.floats(prompt + ".span_rows");
  const auto hidden = static_cast<int64_t>(golden.shape(prompt + ".span_rows")[1]);
  int64_t next = 0;
  for (size_t p = 0; p < sequence.image.size(); ++p) {
    if (sequence.image[p] == 0) continue;
    sequence.embeds[static_cast<int64_t>(p)] = {rows.begin() + next * hidden,
                                                rows.begin() + (next + 1) * hidden};
    ++next;
  }
  EXPECT_EQ(next * hidden, static_cast<int64_t>(rows.size()));
  return sequence;
}

// A run that leaves the gate passes only if the difference starts at one stored code on a boundary, seen by comparison
// with the reference backend, which must meet the gate itself on the same ids: the prompt, and the golden continuation
// where `continued` (in one step: chunks give the same bits, tests/agreement).
bool is_legitimate_flip(const Case& entry, DeviceOptions options, const GoldenFile& prompts, bool continued) {
  if (entry.backend == "reference" || !entry.flips) return false;
  options.seams = true;
  Device device(options);
  options.backend = "reference";
  options.kernels.clear();
  Device oracle(options);
  const auto vocab = static_cast<int64_t>(device.model().config.vocab);
  std::vector<float> golden = prompts.floats(entry.prompt + ".logits");
  Sequence mine = prompt_sequence(device, prompts, entry.prompt);
  Sequence other = prompt_sequence(oracle, prompts, entry.prompt);
  if (continued) {
    const std::vector<int32_t> ids = prompts.ints(entry.prompt + ".greedy_ids");
    const std::vector<float> rows = prompts.floats(entry.prompt + ".greedy_logits");
    for (Sequence* sequence : {&mine, &other})
      sequence->ids.insert(sequence->ids.end(), ids.begin(), ids.end() - 1);
    golden.insert(golden.end(), rows.begin() + vocab, rows.end());
  }
  run_all(device, mine);
  const Distance d = distance(golden, run_all(oracle, other), static_cast<size_t>(vocab));
  constexpr int kFewCodes = 3;
  const Flip flip = first_flip(*device.model().graph, device.executable(), oracle.executable(), kFewCodes);
  std::cout << "[ flip     ] " << flip.text << "; reference within the gate: " << (d.max <= entry.max)
            << "\n";
  return flip.explained && d.max <= entry.max;
}

class GoldenLogits : public testing::TestWithParam<Case> {};

TEST_P(GoldenLogits, Agree) {
  const Case& entry = GetParam();
  if (const std::string absent = why_absent(entry.backend); !absent.empty()) GTEST_SKIP() << absent;
  const bool v4 = entry.set.ends_with("4");
  const auto folder = golden_folder(entry.set) / "golden";
  const GoldenFile prompts(folder / (v4 ? "logits.safetensors" : "prompts.safetensors"));
  const GoldenFile greedy_file(folder / (v4 ? "greedy.safetensors" : "prompts.safetensors"));
  DeviceOptions options;
  options.set = entry.set;
  options.backend = entry.backend;
  options.kv_quant = !v4;
  options.context = static_cast<int64_t>(prompts.ints(entry.prompt + ".ids").size()) + kGreedySteps;
  options.tokens = static_cast<int>(options.context);
  Device device(options);
  Sequence sequence = prompt_sequence(device, prompts, entry.prompt);

  const std::vector<float> logits = run_all(device, sequence);
  const std::vector<float> golden = prompts.floats(entry.prompt + ".logits");
  const auto vocab = static_cast<size_t>(device.model().config.vocab);
  const Distance d = distance(golden, logits, vocab);
  print(entry, "prompt", d);
  if (!(d.max <= entry.max) && is_legitimate_flip(entry, options, prompts, false)) return;
  EXPECT_LE(d.max, entry.max);
  if (entry.median_max > 0) EXPECT_LE(d.median_max, entry.median_max);
  if (entry.mean > 0) EXPECT_LE(d.mean, entry.mean);
  if (entry.kl_mean > 0) EXPECT_LE(d.kl_mean, entry.kl_mean);
  if (entry.top1 > 0) EXPECT_GE(d.top1, entry.top1);

  std::vector<float> rows;
  const std::vector<float> last(logits.end() - static_cast<int64_t>(vocab), logits.end());
  const std::vector<int32_t> ids = run_greedy(device, sequence, last, kGreedySteps, rows);
  const std::string ids_name = entry.prompt + (v4 ? ".ids" : ".greedy_ids");
  const std::string rows_name = entry.prompt + (v4 ? ".logits" : ".greedy_logits");
  const std::vector<float> golden_rows = greedy_file.floats(rows_name);
  const float lead = greedy_lead(ids, greedy_file.ints(ids_name), golden_rows);
  if (lead > entry.greedy_gap && is_legitimate_flip(entry, options, prompts, true)) return;
  EXPECT_LE(lead, entry.greedy_gap) << "a greedy id differs";
  const Distance greedy = distance(golden_rows, rows, vocab);
  print(entry, "greedy", greedy);
  if (v4) EXPECT_LE(greedy.max, entry.max);
}

std::vector<Case> cases(const std::string& backend) {
  std::vector<Case> all;
  for (const std::string prompt : {"p1", "p2", "p15", "p16", "p17", "pimg"})
    all.push_back({backend, "tiny41", prompt, 1e-3, 5e-5, 0, 0, 0, false, 0});
  for (const std::string prompt : {"p33", "p200", "p333"})
    all.push_back({backend, "tiny41", prompt, 1e-2, 1e-4, 0, 0, 0, true, 1e-2});
  all.push_back({backend, "mini41", "p5", 1e-3, 5e-5, 0, 0, 0, false, 0});
  all.push_back({backend, "mini41", "p129", 0.1, 0, 5e-3, 0, 0.99, false, 1e-2});
  all.push_back({backend, "mini41", "p700", INFINITY, 0, 2e-2, 1e-3, 0.99, false, 1e-2});
  for (const std::string prompt :
       {"p1", "p2", "p4", "p5", "p16", "p17", "p127", "p128", "p129", "p300", "p517"})
    all.push_back({backend, "tiny4", prompt, 5e-5, 0, 0, 0, 0, false, 0});
  for (const std::string prompt : {"p5", "p129", "p400"})
    all.push_back({backend, "mini4", prompt, 5e-5, 0, 0, 0, 0, false, 0});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Reference, GoldenLogits, testing::ValuesIn(cases("reference")), case_name);
INSTANTIATE_TEST_SUITE_P(Cpu, GoldenLogits, testing::ValuesIn(cases("cpu")), case_name);
INSTANTIATE_TEST_SUITE_P(Cuda, GoldenLogits, testing::ValuesIn(cases("cuda")), case_name);

}  // namespace

}  // namespace deepinfer::test
