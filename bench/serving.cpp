#include "bench/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "bench/forward_work.h"
#include "bench/probe.h"
#include "bench/synthetic.h"
#include "service/turn.h"

namespace deepinfer::bench {
namespace {

using Clock = std::chrono::steady_clock;
using runtime::Mode;

constexpr std::int64_t kPromptBlocks = 32;
constexpr std::int64_t kLongPrompt = kPromptBlocks * state::kBlockTokens;
constexpr std::int64_t kHit = kLongPrompt - state::kBlockTokens;
constexpr int kTtftSamples = 5;

constexpr int kBatchSamples = 5;
constexpr int kBatches[] = {1, 4, 16, 64};
constexpr int kHostSequences = 16;
constexpr double kLimitHostPercent = 2;
constexpr int kProbesAtStart = 5;  // touch the buffer for the first time
constexpr std::size_t kLeastProbeBytes = std::size_t{8} << 20;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A request of a batch, in tokens.
struct Lengths {
  int prompt = 64;
  int answer = 64;
};

struct Shape {
  int sequences = 1;
  std::int64_t context = 0;
  std::int64_t blocks = 0;  // 0: all sequences at full length
  int snapshots = -1;       // -1: no prefix cache
};

// An engine, and the graph that it runs.
struct Served {
  std::string name;
  std::unique_ptr<Synthetic> synthetic;  // has the weights, if they come from no model directory
  model::Config config;
  std::shared_ptr<const graph::Graph> graph;
  std::unique_ptr<runtime::Engine> engine;

  static Result<Served> open(const std::filesystem::path& directory, const Options& options,
                             const Shape& shape) {
    DI_ASSIGN(const auto token_map, service::token_map_for(directory));
    DI_ASSIGN(model::Model model, model::load(directory, {}, token_map));
    return open(directory.filename().string(), std::move(model), options, shape);
  }

  static Result<Served> open(Family family, const Options& options, const Shape& shape) {
    DI_ASSIGN(auto synthetic, make_synthetic(family));
    DI_ASSIGN(Served served, open(synthetic->description, synthetic->model, options, shape));
    served.synthetic = std::move(synthetic);
    return served;
  }

  static Result<Served> open(std::string name, model::Model model, const Options& options,
                             const Shape& shape) {
    Served served;
    served.name = std::move(name);
    served.graph = model.graph;
    runtime::LoadOptions load;
    load.backend_options.threads = options.threads;
    load.backend_options.kernels = options.kernels;
    load.max_sequences = shape.sequences;
    load.max_model_len = shape.context;
    load.blocks = shape.blocks;
    runtime::EngineOptions engine;
    engine.step_log = true;
    if (shape.snapshots >= 0) {
      load.prefix = {true, shape.snapshots, Mode::kExact};
      engine.prefix.enabled = true;
      engine.prefix.snapshots = shape.snapshots;
    }
    DI_ASSIGN(auto loaded, runtime::load(std::move(model), load));
    served.config = std::move(loaded.config);
    DI_ASSIGN(served.engine, runtime::Engine::create(std::move(loaded.core), std::move(engine)));
    return served;
  }

  runtime::Request request(std::mt19937& random, std::int64_t prompt, std::int64_t answer) const {
    runtime::Request made;
    for (std::int64_t i = 0; i < prompt; ++i)
      made.prompt.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(config.vocab)));
    made.max_tokens = answer;
    made.ignore_eos = true;
    made.sampling.temperature = 0;
    return made;
  }

  std::string machine() const {
    const auto& info = engine->info();
    return fmt::format("{}, {}, precision {}", name, info.backend.description, info.precision);
  }
};

Result<runtime::Finish> wait_for_finish(runtime::Stream& stream) {
  for (;;) {
    auto event = stream.next();
    if (!std::holds_alternative<runtime::Finish>(event)) continue;
    auto finish = std::get<runtime::Finish>(std::move(event));
    if (finish.error.has_value()) return *finish.error;
    return finish;
  }
}

// Milliseconds to the first token, and that so many tokens came from the cache.
Result<double> first_token_ms(runtime::Engine& engine, const runtime::Request& request,
                              std::int64_t expected_hit) {
  const auto start = Clock::now();
  DI_ASSIGN(auto stream, engine.submit(request));
  stream.next();
  const double ms = 1e3 * seconds_between(start, Clock::now());
  DI_ASSIGN(const runtime::Finish finish, wait_for_finish(stream));
  if (finish.usage.cached_tokens != expected_hit) {
    return make_error(ErrorKind::kInternal, fmt::format("a hit of {} tokens, expected {}",
                                                        finish.usage.cached_tokens, expected_hit));
  }
  return ms;
}

struct Multiplies {
  double matrices = 0;
  double attention = 0;
  double all() const { return matrices + attention; }
  double attention_percent() const { return 100 * attention / all(); }
};

// Of a prompt that computes positions [first, kLongPrompt), the decoder half from `decoder_from` on.
Multiplies prompt_work(const ForwardWork& work, std::int64_t first, std::int64_t decoder_from) {
  Multiplies sum;
  for (std::int64_t position = first; position < kLongPrompt; ++position) {
    sum.matrices += work.matrices(WorkRows::kTokens);
    sum.attention += work.attention(WorkRows::kTokens, position);
    if (position < decoder_from) continue;
    sum.matrices += work.matrices(WorkRows::kDecoder);
    sum.attention += work.attention(WorkRows::kDecoder, position);
  }
  sum.matrices += work.matrices(WorkRows::kLogits);
  return sum;
}

Result<void> ttft_rows(const Served& served, Mode mode, const Options& options, std::vector<Row>& rows) {
  const int samples = options.samples > 0 ? options.samples : kTtftSamples;
  const std::string label = mode == Mode::kExact ? "exact" : "replay";
  std::mt19937 random(11);
  std::vector<double> cold, hit;
  runtime::Request request = served.request(random, kLongPrompt, 1);
  request.mode = mode;
  for (int i = 0; i <= samples; ++i) {
    request.tenant = fmt::format("{} {}", label, i);  // finds nothing that another left
    DI_ASSIGN(const double cold_ms, first_token_ms(*served.engine, request, 0));
    DI_ASSIGN(const double hit_ms, first_token_ms(*served.engine, request, kHit));
    if (i == 0) continue;  // the first touches memory for the first time
    cold.push_back(cold_ms);
    hit.push_back(hit_ms);
    if (options.progress) options.progress("prefix-ttft " + label, static_cast<double>(i) / samples);
  }
  const ForwardWork work(*served.graph, served.config.experts_per_token);
  const std::int64_t decoder_tokens = served.engine->options().decoder_tokens;
  const auto start = [&](std::int64_t tokens) {
    return sched::make_start(mode, kLongPrompt, tokens, decoder_tokens);
  };
  const Multiplies all = prompt_work(work, start(0).first, start(0).decoder_from);
  const Multiplies rest = prompt_work(work, start(kHit).first, start(kHit).decoder_from);
  const std::string conditions = fmt::format("{}, prompt of {} tokens, {} cached, median of {}",
                                             served.machine(), kLongPrompt, kHit, samples);
  rows.push_back({fmt::format("prefix-ttft {} cold", label), median(cold), "ms", 0, conditions});
  rows.push_back(
      {fmt::format("prefix-ttft {} speed-up", label), median(cold) / median(hit), "x", all.all() / rest.all(),
       fmt::format("{:.1f} ms with the hit; {} of {} tokens computed again; limit: multiply-adds, {:.2f} G "
                   "cold ({:.0f} % attention and index), {:.3f} G with the hit ({:.0f} %); {}",
                   median(hit), kLongPrompt - start(kHit).first, kLongPrompt, all.all() / 1e9,
                   all.attention_percent(), rest.all() / 1e9, rest.attention_percent(), conditions)});
  return {};
}

// The steps in which all of some equal requests decode: seconds from the start of one to the start of the next, and the
// share of that in which the device's thread waited.
struct Decoding {
  std::vector<double> periods;
  std::vector<double> waits;  // 0 .. 1
};

Result<Decoding> decode_together(const Served& served, int sequences, Lengths lengths, std::mt19937& random) {
  runtime::Engine& engine = *served.engine;
  const std::size_t before = engine.step_log().size();
  std::vector<runtime::Stream> streams;
  for (int i = 0; i < sequences; ++i) {
    DI_ASSIGN(auto stream, engine.submit(served.request(random, lengths.prompt, lengths.answer)));
    streams.push_back(std::move(stream));
  }
  for (auto& stream : streams)
    DI_TRY(wait_for_finish(stream));
  Decoding decoding;
  const auto log = engine.step_log();
  for (std::size_t i = before; i < log.size(); ++i) {
    if (log[i].decoding != sequences || log[i].tokens != sequences) continue;
    const double period = 1e-9 * static_cast<double>(log[i].time_ns + log[i].gap_ns);
    decoding.periods.push_back(period);
    decoding.waits.push_back(1e-9 * static_cast<double>(log[i].gap_ns) / period);
  }
  if (decoding.periods.empty()) {
    return make_error(ErrorKind::kInternal, fmt::format("{} requests never decoded all together", sequences));
  }
  return decoding;
}

// What the machine gives at one moment.
struct Speeds {
  double read = 0;          // bytes a second
  double multiply_add = 0;  // multiply-adds a second
};

// Looks at what the machine gives with the threads, the kernel set and the bytes of weights of a bench.
class SpeedProbe {
 public:
  static Result<SpeedProbe> create(const Options& options, double weight_bytes) {
    SpeedProbe probe;
    DI_ASSIGN(probe.set_, backend::cpu::choose(options.kernels));
    probe.parallel_ = std::make_unique<backend::Parallel>(ThreadPoolOptions{.threads = options.threads});
    // Weights that fit a cache are read from there, so the probe's buffer is as large as they are.
    probe.bytes_ = std::max(kLeastProbeBytes, static_cast<std::size_t>(weight_bytes));
    DI_ASSIGN(MachineProbe machine, MachineProbe::create(*probe.parallel_, *probe.set_, probe.bytes_));
    probe.machine_ = std::make_unique<MachineProbe>(std::move(machine));
    for (int i = 0; i < kProbesAtStart; ++i)
      probe.look();
    return probe;
  }

  Speeds look() {
    return {machine_->read(), machine_->multiply_add(set_->has_bf16 ? backend::cpu::Operand::kBf16
                                                                    : backend::cpu::Operand::kF32)};
  }
  std::string text(const Speeds& speeds) const {
    return fmt::format("read of {:.0f} MB {:.1f} GB/s, {} multiply-add {:.0f} GFLOP/s",
                       static_cast<double>(bytes_) / 1e6, speeds.read / 1e9, set_->has_bf16 ? "bf16" : "f32",
                       2 * speeds.multiply_add / 1e9);
  }

 private:
  std::unique_ptr<backend::Parallel> parallel_;
  const backend::cpu::KernelSet* set_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<MachineProbe> machine_;
};

// A step of some rows: what it reads and multiplies, and how fast that could go.
struct StepWork {
  double bytes = 0;
  double multiplies = 0;
  double read_seconds(const Speeds& speeds) const { return bytes / speeds.read; }
  double multiply_seconds(const Speeds& speeds) const { return multiplies / speeds.multiply_add; }
  double seconds(const Speeds& speeds) const {
    return std::max(read_seconds(speeds), multiply_seconds(speeds));
  }
};

struct BatchSample {
  double period = 0;  // seconds from step to step
  Speeds speeds;      // the better of the probes right before and right after it
  double share(const StepWork& work) const { return work.seconds(speeds) / period; }
};

// By share of the limit, the least first. A shared machine's speed halves and doubles within a run, so each sample is
// held against its own neighbours.
Result<std::vector<BatchSample>> batch_samples(const Served& served, SpeedProbe& probe, int batch,
                                               Lengths lengths, int samples, const StepWork& work) {
  std::mt19937 random(static_cast<std::uint32_t>(batch));
  std::vector<BatchSample> taken;
  Speeds before = probe.look();
  for (int i = 0; i < samples; ++i) {
    DI_ASSIGN(const Decoding decoding, decode_together(served, batch, lengths, random));
    const Speeds after = probe.look();
    taken.push_back({median(decoding.periods),
                     {std::max(before.read, after.read), std::max(before.multiply_add, after.multiply_add)}});
    before = after;
  }
  std::sort(taken.begin(), taken.end(),
            [&](const BatchSample& a, const BatchSample& b) { return a.share(work) < b.share(work); });
  return taken;
}

constexpr Shape kBatchShape = {.sequences = *std::max_element(std::begin(kBatches), std::end(kBatches)),
                               .context = 2 * state::kBlockTokens};

Result<void> batching_rows(const std::string& label, const Served& served, Lengths lengths,
                           const Options& options, std::vector<Row>& rows) {
  const int samples = options.samples > 0 ? options.samples : kBatchSamples;
  const ForwardWork forward(*served.graph, served.config.experts_per_token);
  DI_ASSIGN(auto probe, SpeedProbe::create(options, forward.weight_bytes(kBatchShape.sequences)));
  const std::int64_t middle = lengths.prompt + lengths.answer / 2;
  double multiplies = 0;
  for (const WorkRows each : {WorkRows::kTokens, WorkRows::kDecoder, WorkRows::kLogits})
    multiplies += forward.matrices(each) + forward.attention(each, middle);

  for (std::size_t i = 0; i < std::size(kBatches); ++i) {
    const int batch = kBatches[i];
    const StepWork work{forward.weight_bytes(batch), batch * multiplies};
    DI_ASSIGN(const auto taken, batch_samples(served, probe, batch, lengths, samples, work));
    const BatchSample& middle_one = taken[taken.size() / 2];
    const double read_ms = 1e3 * work.read_seconds(middle_one.speeds);
    const double multiply_ms = 1e3 * work.multiply_seconds(middle_one.speeds);
    rows.push_back(
        {fmt::format("batching {} {}", label, batch), batch / middle_one.period, "tokens/s",
         batch / work.seconds(middle_one.speeds),
         fmt::format("{:.2f} ms a step; bound by {}: {:.1f} MB of weights in {:.2f} ms, {:.1f} M "
                     "multiply-adds a token in {:.2f} ms; prompts of {} and answers of {} tokens; the sample "
                     "with the median share of {} ({:.0f} to {:.0f} %), beside the better of its two probes: "
                     "{}; {}",
                     1e3 * middle_one.period, read_ms > multiply_ms ? "bytes" : "arithmetic",
                     work.bytes / 1e6, read_ms, multiplies / 1e6, multiply_ms, lengths.prompt, lengths.answer,
                     taken.size(), 100 * taken.front().share(work), 100 * taken.back().share(work),
                     probe.text(middle_one.speeds), served.machine())});
    if (options.progress) {
      options.progress("batching " + label,
                       static_cast<double>(i + 1) / static_cast<double>(std::size(kBatches)));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<Row>> run_prefix_ttft(const std::filesystem::path& model_directory,
                                         const Options& options) {
  DI_ASSIGN(const Served served,
            Served::open(
                model_directory, options,
                {.context = kLongPrompt + state::kBlockTokens, .blocks = 4 * kPromptBlocks, .snapshots = 8}));
  std::vector<Row> rows;
  DI_TRY(ttft_rows(served, Mode::kExact, options, rows));
  if (served.config.replayable()) DI_TRY(ttft_rows(served, Mode::kReplay, options, rows));
  return rows;
}

Result<std::vector<Row>> run_batching(const std::filesystem::path& model_directory, const Options& options) {
  constexpr Lengths kOfRealWidths = {.prompt = 4, .answer = 9};  // a step of 64 takes seconds
  std::vector<Row> rows;
  for (const Family family : {Family::kV4, Family::kV41}) {
    DI_ASSIGN(const Served served, Served::open(family, options, kBatchShape));
    DI_TRY(batching_rows(family == Family::kV4 ? "v4" : "v4.1", served, kOfRealWidths, options, rows));
  }
  DI_ASSIGN(const Served served, Served::open(model_directory, options, kBatchShape));
  DI_TRY(batching_rows(served.name, served, {}, options, rows));
  return rows;
}

Result<std::vector<Row>> run_host_time(const std::filesystem::path& model_directory, const Options& options) {
  const int samples = options.samples > 0 ? options.samples : kTtftSamples;
  DI_ASSIGN(const Served served,
            Served::open(model_directory, options,
                         {.sequences = kHostSequences, .context = 2 * state::kBlockTokens, .snapshots = 16}));
  std::mt19937 random(5);
  Decoding all;
  for (int i = 0; i < samples; ++i) {
    DI_ASSIGN(const Decoding decoding, decode_together(served, kHostSequences, Lengths{}, random));
    all.periods.insert(all.periods.end(), decoding.periods.begin(), decoding.periods.end());
    all.waits.insert(all.waits.end(), decoding.waits.begin(), decoding.waits.end());
    if (options.progress) options.progress("host-time", static_cast<double>(i + 1) / samples);
  }
  const double mean =
      std::accumulate(all.waits.begin(), all.waits.end(), 0.0) / static_cast<double>(all.waits.size());
  return std::vector<Row>{
      {"host-time", 100 * median(all.waits), "% of step", kLimitHostPercent,
       fmt::format(
           "{} decoding sequences, {:.3f} ms from step to step, medians of {} steps (mean wait {:.2f} %), "
           "sampling counts as part of the step, prefix cache on; {}",
           kHostSequences, 1e3 * median(all.periods), all.periods.size(), 100 * mean, served.machine())}};
}

}  // namespace deepinfer::bench
