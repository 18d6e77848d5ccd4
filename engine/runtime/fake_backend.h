// A toy model for tests of everything above the backend: every value is a hash of what the state made visible.
//
// Layers: token history; a window on token rows ("encoder"); a ratio-2 compressor ring with block rows; ratio-1
// block rows; a window on decoder rows. A position's logits hash everything that it may see, read back from rings and
// blocks under the rules of attention.md 9 (floors, no writes below the write floor). Each stored row carries its
// position, so a stale, missing, foreign or poisoned row is an error of run(), not a silent difference.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "runtime/core.h"
#include "sched/start.h"

namespace deepinfer::runtime::fake {

inline constexpr int kVocab = 97;
inline constexpr int kHidden = 4;
inline constexpr int kWindow = 128;

state::Registry registry();

struct CoreOptions {
  backend::StepLimits limits{64, 64, 64, 8, 1024};
  int blocks = 64;
  bool replay = true;
  // Called before each step with its number, from 0; an error makes the step fail. Runs on the device's thread.
  std::function<Result<void>(std::int64_t)> before_step;
  // The backend samples (backend::Capabilities), from a sorted list.
  bool samples = false;
  // It runs ahead, too: a device that has done each step as soon as it is launched, or one that begins when it is waited for.
  enum class Ahead { kNo, kAtOnce, kLate };
  Ahead ahead = Ahead::kNo;
  std::atomic<int>* launched_ahead = nullptr;  // counts steps that were launched while another was under way
  // May change the logits of a position. Runs on the device's thread.
  std::function<void(std::int64_t position, std::span<float> logits)> change_logits;
  // Called with what each step was given. Runs on the device's thread.
  std::function<void(const backend::StepInputs&)> after_step;
};

// What is allocated, by tag, while cores live: tests see it return to zero.
std::map<std::string, std::int64_t>& allocated();

Core make_core(const CoreOptions& options);

// Logits of a whole sequence computed without any state, straight from the definition: row p for each position
// from `decoder_from` on. Blocks below `start.hit` come from a run that was cold up to the first boundary of `recipe`,
// replayed from there to the second, and so on (cache::Hit::recipe); empty: from a cold run.
std::vector<std::vector<float>> expected_logits(const std::vector<std::int32_t>& ids,
                                                const sched::Start& start,
                                                std::vector<std::int64_t> recipe = {});

}  // namespace deepinfer::runtime::fake
