// What a request must answer, computed without engine, scheduler and prefix cache: its prompt in the largest steps, alone,
// then a token a step, through the step runner and the sampler.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "agreement/answer.h"
#include "agreement/subject.h"

namespace deepinfer::agreement {

// The hits that led to a request's rows, in tokens, ascending: its blocks were computed cold up to the first, by a replay
// from there up to the second, and so on; the last is its own hit (cache::Hit::recipe). Empty: cold.
using Boundaries = std::vector<std::int64_t>;

class Reference {
 public:
  // `decoder_tokens`: EngineOptions::decoder_tokens of the engines compared with. `context`: most tokens of a sequence.
  Reference(const Variant& variant, std::int64_t decoder_tokens, std::int64_t context);

  const runtime::CoreInfo& info() const { return subject_.info(); }
  // Keeps the request under a number. Its mode, stop ids and max_tokens have no part in the reference; its seed is set.
  std::size_t add(runtime::Request request);
  const runtime::Request& request(std::size_t number) const { return requests_[number]; }
  std::size_t requests() const { return requests_.size(); }
  // The first `count` tokens or more. In exact mode a hit changes nothing: `boundaries` must be empty.
  std::span<const Said> answer(std::size_t number, runtime::Mode mode, const Boundaries& boundaries,
                               std::int64_t count);
  std::size_t computed() const { return computed_; }  // answers

 private:
  struct Key {
    std::size_t number;
    runtime::Mode mode;
    Boundaries boundaries;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::vector<Said> compute(const Key& key, std::int64_t count);
  std::span<const float> run(cache::Sequence& sequence, std::int64_t end, const sched::Start& start,
                             const runtime::EmbedRows& embeds);

  std::int64_t decoder_tokens_;
  Subject subject_;
  std::vector<runtime::Request> requests_;
  std::map<Key, std::vector<Said>> answers_;
  std::size_t computed_ = 0;
};

// Every list of boundaries that ends at `hit`, without 128: what replays from the first position is cold.
std::vector<Boundaries> boundaries_ending_at(std::int64_t hit);

}  // namespace deepinfer::agreement
