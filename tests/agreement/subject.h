// A model on a backend with its caches, and the requests that are run on it in many ways.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "runtime/load.h"
#include "runtime/step.h"

namespace deepinfer::agreement {

struct Variant {
  std::string set;      // golden checkpoint: "tiny41"
  std::string backend;  // "cpu", "reference"
  std::string kernels;  // instruction set of the cpu backend; empty: the best
  graph::Precision precision = graph::Precision::kF32;
  int threads = 1;
  int window = 0;  // rows of the sliding windows in place of the checkpoint's; 0: the checkpoint's
  model::Activations activations = model::Activations::kBf16;
  std::string name() const;  // "tiny41_cpu_avx2_bf16", "tiny41_cpu_bf16_fp8"
};

void PrintTo(const Variant& variant, std::ostream* out);

// What a core is made for.
struct Sizes {
  int sequences = 10;
  int step_tokens = 512;
  std::int64_t context = 512;
  std::int64_t blocks = 0;  // 0: all sequences at full length
};

// A core of its own whose pools are poisoned when made and freed. The opened checkpoint is shared by all of a variant.
// Throws std::runtime_error with the message of what failed.
runtime::Core make_core(const Variant& variant, const Sizes& sizes = {});

// Every kernel set of the cpu backend that this machine has, and the reference, in both precisions and with FP8
// activations in the one that is served; without `all_kernels` only the best set.
std::vector<Variant> variants_of(const std::string& set, bool all_kernels);

// A request: its ids and where it starts.
struct Case {
  std::string name;  // "replay from 128"
  std::vector<std::int32_t> ids;
  sched::Start start;
  runtime::EmbedRows embeds = {};  // rows of an image span; none for text

  bool has_image() const { return !embeds.empty(); }
};

// Logits of the positions from start.decoder_from on, [rows, vocab].
using Rows = std::vector<float>;

class Subject {
 public:
  explicit Subject(const Variant& variant, const Sizes& sizes = {});  // throws as make_core

  const runtime::CoreInfo& info() const { return core_.info; }
  cache::Store& store() { return *core_.store; }
  runtime::StepRunner& runner() { return runner_; }

  // Requests of `tokens` ids, drawn from `seed`: exact, and on a model with a decoder half cold replay, and replay after
  // a hit at every block below `tokens`; then exact, and replay from 128, with an image span across position 128.
  std::vector<Case> cases(int tokens, std::uint32_t seed) const;
  std::vector<Case> cases(const std::vector<std::int32_t>& ids) const;
  // A sequence at the request's first position. For a hit: the blocks of a cold run in steps of `prefix_chunk`.
  cache::Sequence open(const Case& request, std::int64_t prefix_chunk = 512);
  // Computes up to position `end` in steps of `chunk`, alone, appending logits to `rows` (may be null).
  void advance(cache::Sequence& sequence, const Case& request, std::int64_t end, std::int64_t chunk,
               Rows* rows);
  // The whole request in the largest steps, alone: what every other way of running it must give. Cached by name and ids.
  const Rows& expected(const Case& request);
  // The part of `expected` for positions [from, to).
  std::span<const float> expected(const Case& request, std::int64_t from, std::int64_t to);

 private:
  runtime::Core core_;
  runtime::StepRunner runner_;
  std::map<std::pair<std::string, std::vector<std::int32_t>>, Rows> expected_;
};

// One per variant and process.
Subject& subject(const Variant& variant);

// Empty when equal bit for bit, else where the first difference is. `first_position` is that of the first row.
std::string difference(std::span<const float> expected, std::span<const float> actual,
                       std::int64_t first_position, int vocab);

}  // namespace deepinfer::agreement
