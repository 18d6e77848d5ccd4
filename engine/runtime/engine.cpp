#include "runtime/engine.h"

#include <fmt/format.h>

#include <random>

#include "base/digest.h"
#include "runtime/engine_loop.h"

namespace deepinfer::runtime {

namespace {

std::string random_secret() {
  std::random_device device;
  std::string secret;
  for (int i = 0; i < 8; ++i)
    secret += fmt::format("{:08x}", device());
  return secret;
}

Result<std::unique_ptr<cache::PrefixCache>> make_prefix_cache(const Core& core,
                                                              const PrefixOptions& options) {
  cache::PrefixCacheOptions wanted;
  wanted.fingerprint = core.info.fingerprint;
  wanted.precision = core.info.precision;
  wanted.activations = core.info.activations;
  wanted.kernel_set = core.info.backend.kernel_set;
  wanted.secret = options.secret.empty() ? random_secret() : options.secret;
  wanted.shared_salt = options.shared;
  wanted.snapshots = options.snapshots.value_or(core.info.snapshots);
  wanted.cut_layer = core.info.cut_layer;
  wanted.verify = options.verify;
  return cache::PrefixCache::create(*core.store, wanted);
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(Core core, EngineOptions options) {
  DI_CHECK(core.executable != nullptr && core.store != nullptr);
  if (options.decoder_tokens < 1) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot start the engine: the decoder half is to run on {} prompt tokens",
                                  options.decoder_tokens),
                      "replay mode needs at least 1; 128 is the default");
  }
  if (options.mode == Mode::kReplay && !core.info.replay) {
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot start the engine in replay mode: {} has no decoder half", core.info.model),
        "use --mode exact");
  }
  for (const auto* list : {&options.eos_ids, &options.never_sampled}) {
    for (const std::int32_t id : *list) {
      if (id >= 0 && id < core.info.vocab) continue;
      return make_error(
          ErrorKind::kInvalidArgument,
          fmt::format("cannot start the engine: id {} is outside the vocabulary of {}", id, core.info.vocab),
          "the tokenizer and the model do not belong together");
    }
  }
  sched::SchedulerLimits limits;
  limits.step_tokens = core.info.limits.tokens;
  limits.sequences = std::min(core.info.limits.sequences, core.store->sequences());
  limits.waiting = options.max_waiting;
  limits.prefill_chunk = options.prefill_chunk;
  limits.blocks = core.store->blocks();
  limits.context = core.info.max_model_len;
  limits.depth = options.steps_ahead;
  DI_ASSIGN(auto scheduler, sched::Scheduler::create(limits));
  if (core.info.limits.logit_rows < limits.sequences || core.info.limits.decoder_rows < limits.step_tokens) {
    return make_error(
        ErrorKind::kInvalidArgument,
        fmt::format(
            "cannot start the engine: compiled for {} logit rows and {} decoder rows, {} sequences and "
            "{} tokens a step need as many",
            core.info.limits.logit_rows, core.info.limits.decoder_rows, limits.sequences,
            limits.step_tokens));
  }
  std::unique_ptr<cache::PrefixCache> prefixes;
  if (options.prefix.enabled) {
    DI_ASSIGN(prefixes, make_prefix_cache(core, options.prefix));
  }
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Loop>(
      std::move(core), std::move(options), std::move(scheduler), std::move(prefixes))));
}

std::string_view step_phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kPrefill: return "prefill";
    case StepPhase::kDecode: return "decode";
    case StepPhase::kMixed: return "mixed";
  }
  return "?";
}

Engine::Engine(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Engine::~Engine() = default;

Result<Stream> Engine::submit(Request request) {
  return loop_->submit(std::move(request));
}
sched::Wait Engine::why(RequestId request) const {
  return loop_->why(request);
}
void Engine::preempt(RequestId request) {
  loop_->preempt(request);
}
Result<void> Engine::set_weight(const std::string& tenant, int weight) {
  return loop_->set_weight(tenant, weight);
}
EngineStats Engine::stats() const {
  return loop_->stats();
}
std::vector<StepRecord> Engine::step_log() const {
  return loop_->step_log();
}
const CoreInfo& Engine::info() const {
  return loop_->info();
}
const EngineOptions& Engine::options() const {
  return loop_->options();
}

std::string Engine::system_fingerprint() const {
  const CoreInfo& of = info();
  const Sha256Digest digest = sha256(fmt::format(
      "{} {} {} {} {} {}", of.fingerprint, of.precision, of.activations,
      options().mode == Mode::kReplay ? "replay" : "exact", of.backend.backend, of.backend.kernel_set));
  return "fp_" + hex_text(digest).substr(0, 16);
}

}  // namespace deepinfer::runtime
