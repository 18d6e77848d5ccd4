// For tests: a pool without a prefix cache, which takes blocks as plans compute positions; and answers by script.
#pragma once

#include <map>
#include <optional>

#include "cache/sequence.h"
#include "sched/cache_view.h"
#include "sched/plan.h"

namespace deepinfer::sched {

class TestView : public CacheView {
 public:
  explicit TestView(std::int64_t blocks) : blocks_(blocks) {}

  std::map<RequestId, Hit> hits;           // others start cold, in exact mode
  std::map<RequestId, Resume> resumes;     // others start again from start.first
  std::map<RequestId, std::int64_t> cuts;  // positions that a chunk must not pass

  // What the runtime does with a plan, as far as blocks go.
  void apply(const StepPlan& plan) {
    for (const RequestId id : plan.preempted)
      release(id);
    for (const Admission& admission : plan.admitted)
      taken_[admission.request] = {admission.start.hit / 128, admission.start.hit / 128};
    for (const PlannedSequence& part : plan.sequences) {
      if (part.rebuilds) continue;
      Held& held = taken_.at(part.request);
      held.blocks = std::max(held.blocks, cache::blocks_for(part.position + part.tokens));
    }
  }
  void release(RequestId id) { taken_.erase(id); }

  Hit find(RequestId request) override {
    const auto at = hits.find(request);
    return at == hits.end() ? Hit{} : at->second;
  }
  Resume resume(RequestId request, const Start& start) override {
    const auto at = resumes.find(request);
    if (at != resumes.end()) return at->second;
    return {0, start.first, start.hit / 128, 0};
  }
  std::int64_t available_blocks() override { return blocks_ - taken_blocks(); }
  std::int64_t taken_blocks() override {
    std::int64_t taken = 0;
    for (const auto& [id, held] : taken_)
      taken += held.blocks - held.taken_over;
    return taken;
  }
  std::int64_t cut(RequestId request, std::int64_t from, std::int64_t to) override {
    const auto at = cuts.find(request);
    return at != cuts.end() && at->second > from && at->second < to ? at->second : to;
  }

 private:
  struct Held {
    std::int64_t blocks = 0;
    std::int64_t taken_over = 0;
  };
  std::int64_t blocks_;
  std::map<RequestId, Held> taken_;
};

}  // namespace deepinfer::sched
