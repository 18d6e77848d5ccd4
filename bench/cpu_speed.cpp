#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <span>

#include "backend/backend.h"
#include "bench/bench.h"
#include "bench/probe.h"
#include "bench/synthetic.h"

namespace deepinfer::bench {

namespace {

constexpr int kPromptTokens = 512;
constexpr int kDecodeContext = 128;  // tokens before the first timed one
constexpr int kDecodeSamples = 160;
constexpr int kStepsBetweenProbes = 2;  // the neighbours of a shared machine change several times a second
constexpr int kPrefillSamples = 5;
// A sample counts if the probes around it are within this share of the machine's best (cpu_notes: shared machines swing).
constexpr double kQuiet = 0.9;
constexpr int kProbesAtStart = 20;

// One sequence on a compiled synthetic model.
class Session {
 public:
  static Result<std::unique_ptr<Session>> create(Family family, const Options& options, int step_tokens,
                                                 int context) {
    auto session = std::unique_ptr<Session>(new Session);
    DI_ASSIGN(session->synthetic_, make_synthetic(family));
    backend::BackendOptions backend_options;
    backend_options.threads = options.threads;
    backend_options.kernels = options.kernels;
    DI_ASSIGN(session->backend_, backend::create("cpu", backend_options));
    backend::StepLimits limits;
    limits.tokens = step_tokens;
    limits.decoder_rows = step_tokens;
    limits.logit_rows = 1;
    limits.sequences = 1;
    limits.context = context;
    const state::Registry& registry = session->synthetic_->model.registry;
    DI_ASSIGN(session->executable_,
              session->backend_->compile(session->synthetic_->model.graph, registry, limits));
    const int blocks = (context + state::kBlockTokens - 1) / state::kBlockTokens;
    for (int b = 0; b < blocks; ++b) {
      DI_ASSIGN(std::byte * block, session->backend_->allocate(registry.block_bytes(), "kv blocks"));
      session->blocks_.push_back(block);
    }
    DI_ASSIGN(session->private_, session->backend_->allocate(registry.sequence_bytes(), "sequence state"));
    session->context_ = context;
    return session;
  }

  const Synthetic& synthetic() const { return *synthetic_; }
  int length() const { return length_; }
  void restart() { length_ = 0; }

  // Runs the next `tokens` tokens and returns the seconds they took.
  Result<double> step(int tokens) {
    std::vector<std::int32_t> ids, positions, sequence_of, decoder_rows;
    for (int i = 0; i < tokens; ++i) {
      ids.push_back(
          static_cast<std::int32_t>(random_() % static_cast<unsigned>(synthetic_->model.config.vocab - 3)) +
          3);
      positions.push_back(length_ + i);
      sequence_of.push_back(0);
      decoder_rows.push_back(i);
    }
    const std::int32_t last = tokens - 1;
    backend::SequenceSlice slice;
    slice.start = length_;
    slice.tokens = tokens;
    slice.decoder_rows = tokens;
    slice.blocks = blocks_;
    slice.private_state = private_;
    backend::StepInputs inputs;
    inputs.ids = ids;
    inputs.positions = positions;
    inputs.sequence_of = sequence_of;
    inputs.decoder_rows = decoder_rows;
    inputs.logit_rows = {&last, 1};
    inputs.sequences = {&slice, 1};
    const auto start = std::chrono::steady_clock::now();
    DI_TRY(executable_->run(inputs));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    length_ += tokens;
    return seconds;
  }

 private:
  std::unique_ptr<Synthetic> synthetic_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Executable> executable_;
  std::vector<std::byte*> blocks_;
  std::byte* private_ = nullptr;
  std::mt19937 random_{7};
  int context_ = 0;
  int length_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The probes' threads live beside the backend's own; both sleep when idle.
struct Machine {
  std::unique_ptr<backend::Parallel> parallel;
  const backend::cpu::KernelSet* set = nullptr;
  std::unique_ptr<MachineProbe> probe;
  double best_read = 0;
  double last_read = 0;
  double best_multiply_add = 0;

  static Result<std::unique_ptr<Machine>> create(const Options& options) {
    auto machine = std::make_unique<Machine>();
    DI_ASSIGN(machine->set, backend::cpu::choose(options.kernels));
    machine->parallel = std::make_unique<backend::Parallel>(ThreadPoolOptions{.threads = options.threads});
    DI_ASSIGN(MachineProbe probe, MachineProbe::create(*machine->parallel, *machine->set));
    machine->probe = std::make_unique<MachineProbe>(std::move(probe));
    for (int i = 0; i < kProbesAtStart; ++i)
      machine->look();
    return machine;
  }

  backend::cpu::Operand format() const {
    return set->has_bf16 ? backend::cpu::Operand::kBf16 : backend::cpu::Operand::kF32;
  }

  // True when the machine is as fast now as it was at its best.
  bool look() {
    const double read = last_read = probe->read();
    const double multiply = probe->multiply_add(format());
    best_read = std::max(best_read, read);
    best_multiply_add = std::max(best_multiply_add, multiply);
    return read >= kQuiet * best_read && multiply >= kQuiet * best_multiply_add;
  }

  std::string text(std::size_t counted, std::size_t samples) const {
    return fmt::format(
        "{} threads, kernels {}, best read {:.1f} GB/s, best multiply-add {:.0f} GFLOP/s, {} of {} samples "
        "with probes within {:.0f} % of these",
        parallel->workers(), set->name, best_read / 1e9, 2 * best_multiply_add / 1e9, counted, samples,
        100 * (1 - kQuiet));
  }
};

// Seconds of each sample, and of those taken while the machine was quiet (all, if none was: the conditions say so).
struct Samples {
  std::vector<double> quiet;
  std::vector<double>
      bytes_read;  // each sample's seconds times the read bandwidth around it: what a read would have done
  std::size_t taken = 0;
};

template <class Step>
Result<Samples> take_samples(Machine& machine, int count, int steps_between_probes, const Options& options,
                             std::string_view what, Step step) {
  Samples samples;
  std::vector<double> all;
  bool before = machine.look();
  double read_before = machine.last_read;
  std::vector<double> pending;
  for (int i = 0; i < count; ++i) {
    DI_ASSIGN(const double seconds, step());
    pending.push_back(seconds);
    all.push_back(seconds);
    if (static_cast<int>(pending.size()) == steps_between_probes || i + 1 == count) {
      const bool after = machine.look();
      for (const double each : pending)
        samples.bytes_read.push_back(each * (read_before + machine.last_read) / 2);
      read_before = machine.last_read;
      if (before && after) samples.quiet.insert(samples.quiet.end(), pending.begin(), pending.end());
      before = after;
      pending.clear();
    }
    if (options.progress) options.progress(what, static_cast<double>(i + 1) / count);
  }
  samples.taken = all.size();
  if (samples.quiet.empty()) {
    samples.quiet = all;
    samples.taken = 0;
  }
  return samples;
}

std::string conditions(const Session& session, const Machine& machine, const Samples& samples) {
  return session.synthetic().description + ", bf16, " +
         machine.text(samples.taken == 0 ? 0 : samples.quiet.size(),
                      std::max(samples.taken, samples.quiet.size()));
}

Result<void> decode_rows(Family family, const std::string& label, Machine& machine, const Options& options,
                         std::vector<Row>& rows) {
  const int count = options.samples > 0 ? options.samples : kDecodeSamples;
  DI_ASSIGN(auto session, Session::create(family, options, kDecodeContext, kDecodeContext + count + 4));
  DI_TRY(session->step(kDecodeContext));
  for (int i = 0; i < 3; ++i)
    DI_TRY(session->step(1));
  DI_ASSIGN(const Samples samples, take_samples(machine, count, kStepsBetweenProbes, options,
                                                "cpu-decode " + label, [&]() { return session->step(1); }));
  const double seconds = median(samples.quiet);
  const double best = *std::min_element(samples.quiet.begin(), samples.quiet.end());
  const auto bytes = static_cast<double>(session->synthetic().token_bytes);
  const std::string text =
      conditions(*session, machine, samples) + fmt::format(", {:.3f} GB of weights a token", bytes / 1e9);
  rows.push_back(
      {"cpu-decode " + label, bytes / seconds / 1e9, "GB/s", machine.best_read / 1e9, "median, " + text});
  rows.push_back({"cpu-decode " + label + " best", bytes / best / 1e9, "GB/s", machine.best_read / 1e9,
                  "best, " + text});
  rows.push_back({"cpu-decode " + label + " beside", 100 * bytes / median(samples.bytes_read), "% of read",
                  100, "median of each sample against the read bandwidth just before and after it, " + text});
  rows.push_back({"cpu-decode " + label + " tokens", 1 / seconds, "tokens/s", machine.best_read / bytes,
                  "median, " + text});
  return {};
}

Result<void> prefill_rows(Family family, const std::string& label, Machine& machine, const Options& options,
                          std::vector<Row>& rows) {
  const int count = options.samples > 0 ? options.samples : kPrefillSamples;
  DI_ASSIGN(auto session, Session::create(family, options, kPromptTokens, kPromptTokens));
  DI_TRY(session->step(16));
  DI_ASSIGN(const Samples samples, take_samples(machine, count, 1, options, "cpu-prefill " + label, [&]() {
              session->restart();
              return session->step(kPromptTokens);
            }));
  const double seconds = median(samples.quiet);
  const double work = static_cast<double>(session->synthetic().token_multiplies * kPromptTokens +
                                          session->synthetic().attention_multiplies(kPromptTokens));
  const std::string text = "median, " + conditions(*session, machine, samples) +
                           fmt::format(", {} tokens, matrices and attention counted", kPromptTokens);
  rows.push_back({"cpu-prefill " + label, 2 * work / seconds / 1e9, "GFLOP/s",
                  2 * machine.best_multiply_add / 1e9, text});
  rows.push_back({"cpu-prefill " + label + " tokens", kPromptTokens / seconds, "tokens/s",
                  machine.best_multiply_add / (work / kPromptTokens), text});
  return {};
}

}  // namespace

Result<std::vector<Row>> run_cpu_decode(const Options& options) {
  DI_ASSIGN(const auto machine, Machine::create(options));
  std::vector<Row> rows;
  DI_TRY(decode_rows(Family::kV4, "v4", *machine, options, rows));
  DI_TRY(decode_rows(Family::kV41, "v4.1", *machine, options, rows));
  return rows;
}

Result<std::vector<Row>> run_cpu_prefill(const Options& options) {
  DI_ASSIGN(const auto machine, Machine::create(options));
  std::vector<Row> rows;
  DI_TRY(prefill_rows(Family::kV4, "v4", *machine, options, rows));
  DI_TRY(prefill_rows(Family::kV41, "v4.1", *machine, options, rows));
  return rows;
}

}  // namespace deepinfer::bench
