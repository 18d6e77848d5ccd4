#include "simulation/model_cache.h"

#include <algorithm>

#include "base/check.h"
#include "cache/sequence.h"

namespace deepinfer::simulation {
namespace {

using sched::RequestId;
constexpr std::int64_t kBlock = 128;

}  // namespace

void ModelCache::arrive(const sched::Arrival& arrival, const Prompt& prompt) {
  DI_CHECK(sequences_.emplace(arrival.request, Sequence{prompt, false, {}, 0, 0, {}}).second);
}

void ModelCache::forget(RequestId request) {
  const auto at = sequences_.find(request);
  DI_CHECK(at != sequences_.end() && !at->second.open);
  sequences_.erase(at);
}

ModelCache::Key ModelCache::key_of(RequestId request, const Sequence& sequence, std::int64_t number,
                                   cache::Lineage lineage) const {
  const bool shared = (number + 1) * kBlock <= sequence.prompt.shared;
  return {shared ? sequence.prompt.family : -1 - static_cast<std::int64_t>(request), number, lineage};
}

ModelCache::Match ModelCache::match(RequestId request, const Sequence& sequence, bool with_replayed,
                                    std::int64_t tokens) const {
  Match match;
  for (std::int64_t number = 0; (number + 1) * kBlock <= tokens; ++number) {
    auto at = index_.find(key_of(request, sequence, number, cache::Lineage::kCold));
    if (at == index_.end() && with_replayed) {
      at = index_.find(key_of(request, sequence, number, cache::Lineage::kReplayed));
      match.replayed = match.replayed || at != index_.end();
    }
    if (at == index_.end()) break;
    match.blocks.push_back(at->second);
  }
  return match;
}

std::int64_t ModelCache::idle_of(const std::vector<std::size_t>& blocks) const {
  return std::count_if(blocks.begin(), blocks.end(), [&](std::size_t b) { return blocks_[b].holders == 0; });
}

std::optional<sched::Pending> ModelCache::pending(RequestId request, const Sequence& sequence,
                                                  std::int64_t hit) const {
  const std::int64_t most = (std::min(sequence.prompt.shared, sequence.prompt.tokens - 1)) / kBlock * kBlock;
  for (const auto& [other_id, other] : sequences_) {
    if (!other.open || other_id == request || other.prompt.family != sequence.prompt.family) continue;
    const std::int64_t common = std::min(most, other.prompt.shared / kBlock * kBlock);
    if (common > hit && other.published * kBlock < common && other.start.lineage == cache::Lineage::kCold) {
      return sched::Pending{other_id, common};
    }
  }
  return std::nullopt;
}

sched::Hit ModelCache::find(RequestId request) {
  const Sequence& sequence = sequences_.at(request);
  const bool replays = sequence.prompt.mode == sched::Mode::kReplay;
  const Match found = match(request, sequence, replays, sequence.prompt.tokens - 1);
  const auto tokens = static_cast<std::int64_t>(found.blocks.size()) * kBlock;
  sched::Hit hit;
  hit.start = sched::make_start(sequence.prompt.mode, sequence.prompt.tokens, tokens, sched::kDecoderTokens);
  if (found.replayed || (replays && hit.start.first > 0)) hit.start.lineage = cache::Lineage::kReplayed;
  hit.idle_blocks = idle_of(found.blocks);
  hit.pending = pending(request, sequence, tokens);
  return hit;
}

sched::Resume ModelCache::resume(RequestId request, const sched::Start& start) {
  const Match found = match(request, sequences_.at(request), false, start.hit);
  sched::Resume resume;
  resume.position = start.first;
  if (static_cast<std::int64_t>(found.blocks.size()) * kBlock < start.hit) {
    resume.rebuild = start.hit;
    return resume;
  }
  resume.held_blocks = static_cast<std::int64_t>(found.blocks.size());
  resume.idle_blocks = idle_of(found.blocks);
  return resume;
}

void ModelCache::open(const sched::Admission& admission) {
  Sequence& sequence = sequences_.at(admission.request);
  DI_CHECK(!sequence.open && sequence.blocks.empty());
  sequence.open = true;
  sequence.start = admission.start;
  sequence.published = admission.start.hit / kBlock;
  if (admission.rebuild > 0) {
    sequence.taken_over = 0;
    sequence.published = 0;
    return;
  }
  const bool with_replayed = !admission.again && sequence.prompt.mode == sched::Mode::kReplay;
  sequence.blocks = match(admission.request, sequence, with_replayed, admission.start.hit).blocks;
  DI_CHECK(static_cast<std::int64_t>(sequence.blocks.size()) * kBlock == admission.start.hit);
  sequence.taken_over = static_cast<std::int64_t>(sequence.blocks.size());
  for (const std::size_t block : sequence.blocks)
    ++blocks_[block].holders;
}

std::optional<std::size_t> ModelCache::take() {
  if (!free_.empty()) {
    const std::size_t block = free_.front();
    free_.pop_front();
    return block;
  }
  std::optional<std::size_t> oldest;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (blocks_[b].holders == 0 && (!oldest || blocks_[b].used < blocks_[*oldest].used)) oldest = b;
  }
  if (oldest) {
    index_.erase(*blocks_[*oldest].key);
    blocks_[*oldest].key.reset();
  }
  return oldest;
}

bool ModelCache::reserve(const sched::PlannedSequence& part) {
  Sequence& sequence = sequences_.at(part.request);
  DI_CHECK(sequence.open);
  const std::int64_t end = part.position + part.tokens;
  while (static_cast<std::int64_t>(sequence.blocks.size()) < cache::blocks_for(end)) {
    const auto block = take();
    if (!block) return false;
    ++blocks_[*block].holders;
    sequence.blocks.push_back(*block);
  }
  return true;
}

void ModelCache::publish(const sched::PlannedSequence& part, std::int64_t computed) {
  Sequence& sequence = sequences_.at(part.request);
  DI_CHECK(sequence.open);
  // A rebuild makes the blocks that the hit had, whatever they were.
  const cache::Lineage lineage = part.rebuilds ? cache::Lineage::kCold : sequence.start.lineage;
  const std::int64_t full = (part.position + computed) / kBlock;
  for (; sequence.published < full; ++sequence.published) {
    const std::size_t block = sequence.blocks[static_cast<std::size_t>(sequence.published)];
    const Key key = key_of(part.request, sequence, sequence.published, lineage);
    if (!blocks_[block].key && index_.emplace(key, block).second) blocks_[block].key = key;
  }
}

void ModelCache::release(RequestId request) {
  Sequence& sequence = sequences_.at(request);
  DI_CHECK(sequence.open);
  for (const std::size_t b : sequence.blocks) {
    Block& block = blocks_[b];
    DI_CHECK(block.holders > 0);
    block.used = ++tick_;
    if (--block.holders == 0 && !block.key) free_.push_back(b);
  }
  sequence.blocks.clear();
  sequence.open = false;
}

std::int64_t ModelCache::available_blocks() {
  return blocks() - held_blocks();
}

std::int64_t ModelCache::taken_blocks() {
  std::int64_t taken = 0;
  for (const auto& [id, sequence] : sequences_)
    taken +=
        static_cast<std::int64_t>(sequence.blocks.size()) - sequence.taken_over * (sequence.open ? 1 : 0);
  return taken;
}

std::int64_t ModelCache::held_blocks() const {
  return std::count_if(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.holders > 0; });
}

int ModelCache::sequences() const {
  return static_cast<int>(std::count_if(sequences_.begin(), sequences_.end(),
                                        [](const auto& entry) { return entry.second.open; }));
}

// Exact mode keeps its state at every third block boundary.
std::int64_t ModelCache::cut(RequestId request, std::int64_t from, std::int64_t to) {
  if (sequences_.at(request).prompt.mode != sched::Mode::kExact) return to;
  const std::int64_t every = 3 * kBlock;
  const std::int64_t boundary = (from / every + 1) * every;
  return boundary < to ? boundary : to;
}

std::string ModelCache::check() const {
  std::vector<int> holders(blocks_.size());
  for (const auto& [id, sequence] : sequences_) {
    for (const std::size_t block : sequence.blocks)
      ++holders[block];
  }
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (holders[b] != blocks_[b].holders) return "block " + std::to_string(b) + " has a wrong count";
    if (blocks_[b].key && index_.at(*blocks_[b].key) != b)
      return "block " + std::to_string(b) + " is not indexed";
    const bool is_free = std::find(free_.begin(), free_.end(), b) != free_.end();
    if (is_free != (holders[b] == 0 && !blocks_[b].key)) return "block " + std::to_string(b) + " leaked";
  }
  return "";
}

}  // namespace deepinfer::simulation
