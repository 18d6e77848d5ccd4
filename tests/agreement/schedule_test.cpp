// Random schedules: sequences start cold or from a hit, run in random chunks beside each other, fork, take drafts and
// reject them, and leave at any time. Every row of logits has the bits of the request run alone and at once.
//
// DEEPINFER_AGREEMENT_SCHEDULES (default 50) seeds from DEEPINFER_AGREEMENT_SEED (default 0) on; a failure prints its seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <list>

#include "agreement/subject.h"

namespace deepinfer::agreement {
namespace {

constexpr int kTokens = 300;
constexpr int kSteps = 25;
constexpr int kStepTokens = 96;

std::uint32_t setting(const char* name, std::uint32_t absent) {
  const char* text = std::getenv(name);
  return text == nullptr ? absent : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

struct Counts {
  int rows = 0, shared_steps = 0, forks = 0, rollbacks = 0, hits = 0;
};

class Schedule {
 public:
  Schedule(Subject& model, std::uint32_t seed, Counts& counts)
      : model_(model), cases_(model.cases(kTokens, 1)), random_(seed), counts_(counts) {
    for (Case& request : model.cases(kTokens, 2))
      cases_.push_back(std::move(request));
    for (const Case& request : cases_)
      model.expected(request);  // while the store is empty
  }

  void run() {
    for (int step = 0; step < kSteps; ++step) {
      change();
      const std::string wrong = advance();
      ASSERT_EQ(wrong, "") << "step " << step;
    }
  }

 private:
  struct Run {
    const Case* request;
    cache::Sequence sequence;
  };

  int pick(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }
  std::list<Run>::iterator any() {
    return std::next(runs_.begin(), pick(0, static_cast<int>(runs_.size()) - 1));
  }

  void change() {
    const bool room = model_.store().free_sequences() >= 2;  // opening a hit needs a second one for a moment
    switch (runs_.empty() ? 0 : pick(0, 7)) {
      case 0:
      case 1:
      case 2: {
        if (!room) return;
        const Case& request = cases_[static_cast<std::size_t>(pick(0, static_cast<int>(cases_.size()) - 1))];
        counts_.hits += request.start.hit > 0 ? 1 : 0;
        runs_.push_back({&request, model_.open(request, pick(30, 512))});
        return;
      }
      case 3: {
        if (!room) return;
        const auto from = any();
        auto fork = from->sequence.fork();
        ASSERT_TRUE(fork.ok()) << fork.error().message();
        runs_.push_back({from->request, std::move(*fork)});
        ++counts_.forks;
        return;
      }
      case 4: reject_drafts(*any()); return;
      case 5: runs_.erase(any()); return;
      default: return;
    }
  }

  void reject_drafts(Run& run) {
    cache::Sequence& sequence = run.sequence;
    const std::int64_t at = sequence.length();
    if (run.request->has_image()) return;  // ids that are appended again carry no image flag
    if (at < sequence.write_floor() || at + state::kMaxDrafts > kTokens) return;
    const int drafts = pick(1, state::kMaxDrafts);
    sequence.truncate(at);
    for (int i = 0; i < drafts; ++i)
      sequence.append(pick(0, 400));
    model_.advance(sequence, *run.request, at + drafts, pick(1, drafts), nullptr);
    const auto undone = sequence.rollback(drafts);
    // More than eight below what the rings have seen cannot be undone; then this one leaves.
    ASSERT_TRUE(undone.ok()) << undone.error().message();
    for (auto p = static_cast<std::size_t>(at); p < run.request->ids.size(); ++p)
      sequence.append(run.request->ids[p]);
    ++counts_.rollbacks;
  }

  std::string advance() {
    std::vector<runtime::StepPart> parts;
    std::vector<const Run*> owners;
    int budget = kStepTokens;
    for (Run& run : runs_) {
      const std::int64_t left = kTokens - run.sequence.length();
      if (left == 0 || budget == 0 || pick(0, 5) == 0) continue;
      const int tokens =
          static_cast<int>(std::min<std::int64_t>({left, budget, pick(0, 2) == 0 ? 1 : pick(1, 80)}));
      const auto decoder =
          static_cast<int>(runtime::decoder_rows_of(run.sequence.length(), tokens, run.request->start));
      parts.push_back({&run.sequence, tokens, run.request->start, decoder, &run.request->embeds});
      owners.push_back(&run);
      budget -= tokens;
    }
    if (parts.empty()) return {};
    const auto done = model_.runner().run(parts);
    if (!done.ok()) return done.error().message();
    counts_.shared_steps += parts.size() > 1 ? 1 : 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].logit_rows == 0) continue;
      const std::int64_t end = owners[i]->sequence.length();
      const std::int64_t first = end - parts[i].logit_rows;
      const std::string wrong = difference(model_.expected(*owners[i]->request, first, end),
                                           model_.runner().logits(i), first, model_.info().vocab);
      if (!wrong.empty()) return owners[i]->request->name + ": " + wrong;
      counts_.rows += parts[i].logit_rows;
    }
    return {};
  }

  Subject& model_;
  std::vector<Case> cases_;
  std::mt19937 random_;
  Counts& counts_;
  std::list<Run> runs_;
};

TEST(Random, schedules) {
  std::vector<Variant> variants = variants_of("tiny41", true);
  for (const Variant& variant : variants_of("tiny4", true))
    variants.push_back(variant);
  // The reference is slow and has no vector code to go wrong: it takes part in `Agreement`.
  std::erase_if(variants, [](const Variant& variant) { return variant.backend == "reference"; });
  const std::uint32_t first = setting("DEEPINFER_AGREEMENT_SEED", 0);
  const std::uint32_t count = setting("DEEPINFER_AGREEMENT_SCHEDULES", 50);
  ASSERT_GE(count, 1U);
  Counts counts;
  for (std::uint32_t seed = first; seed < first + count; ++seed) {
    const Variant& variant = variants[seed % variants.size()];
    SCOPED_TRACE("DEEPINFER_AGREEMENT_SEED=" + std::to_string(seed) + " on " + variant.name());
    Subject& model = subject(variant);
    {
      Schedule schedule(model, seed, counts);
      schedule.run();
    }
    ASSERT_EQ(model.store().free_blocks(), model.store().blocks());
    ASSERT_EQ(model.store().free_sequences(), model.store().sequences());
    if (HasFatalFailure()) return;
  }
  std::printf(
      "[ schedules] %u on %zu variants: %d rows compared, %d steps shared, %d forks, %d rollbacks, %d hits\n",
      count, variants.size(), counts.rows, counts.shared_steps, counts.forks, counts.rollbacks, counts.hits);
  if (count >= 50) {
    EXPECT_GT(counts.rows, 1000);
    EXPECT_GT(counts.shared_steps, 100);
    EXPECT_GT(counts.forks, 10);
    EXPECT_GT(counts.rollbacks, 10);
    EXPECT_GT(counts.hits, 10);
  }
}

}  // namespace
}  // namespace deepinfer::agreement
