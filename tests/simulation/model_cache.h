// The model of the cache: blocks with holders, chains of keys as plain numbers, least recently used eviction.
#pragma once

#include <deque>
#include <list>
#include <map>
#include <optional>
#include <vector>

#include "simulation/cache_model.h"

namespace deepinfer::simulation {

class ModelCache : public CacheModel {
 public:
  explicit ModelCache(std::int64_t blocks) : blocks_(static_cast<std::size_t>(blocks)) {
    for (std::size_t b = 0; b < blocks_.size(); ++b)
      free_.push_back(b);
  }

  void arrive(const sched::Arrival& arrival, const Prompt& prompt) override;
  void forget(sched::RequestId request) override;
  void open(const sched::Admission& admission) override;
  bool reserve(const sched::PlannedSequence& part) override;
  void publish(const sched::PlannedSequence& part, std::int64_t computed) override;
  void release(sched::RequestId request) override;
  std::int64_t blocks() const override { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t held_blocks() const override;
  int sequences() const override;
  std::string check() const override;

  sched::Hit find(sched::RequestId request) override;
  sched::Resume resume(sched::RequestId request, const sched::Start& start) override;
  std::int64_t available_blocks() override;
  std::int64_t taken_blocks() override;
  std::int64_t cut(sched::RequestId request, std::int64_t from, std::int64_t to) override;

 private:
  // A block's content: which prefix it ends, and how it came about. Decoded blocks are a request's own.
  struct Key {
    std::int64_t owner;  // family (>= 0), or -1 - request
    std::int64_t number;
    cache::Lineage lineage;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Block {
    int holders = 0;
    std::optional<Key> key;  // findable
    std::uint64_t used = 0;  // when it was last held
  };
  struct Sequence {
    Prompt prompt;
    bool open = false;
    sched::Start start;
    std::int64_t taken_over = 0;  // blocks
    std::int64_t published = 0;   // blocks
    std::vector<std::size_t> blocks;
  };

  Key key_of(sched::RequestId request, const Sequence& sequence, std::int64_t number,
             cache::Lineage lineage) const;
  struct Match {
    std::vector<std::size_t> blocks;
    bool replayed = false;  // one of them
  };
  // The longest cached prefix of at most `tokens`; replayed blocks only where cold ones are missing.
  Match match(sched::RequestId request, const Sequence& sequence, bool with_replayed,
              std::int64_t tokens) const;
  std::optional<sched::Pending> pending(sched::RequestId request, const Sequence& sequence,
                                        std::int64_t hit) const;
  std::int64_t idle_of(const std::vector<std::size_t>& blocks) const;
  std::optional<std::size_t> take();

  std::vector<Block> blocks_;
  std::deque<std::size_t> free_;
  std::map<Key, std::size_t> index_;
  std::map<sched::RequestId, Sequence> sequences_;
  std::uint64_t tick_ = 0;
};

}  // namespace deepinfer::simulation
