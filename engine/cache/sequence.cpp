#include "cache/sequence.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace deepinfer::cache {
namespace {

constexpr std::int64_t kBlock = state::kBlockTokens;
// Engram looks back three positions (backbone.md 6.3).
constexpr std::int64_t kHistoryLookBack = 3;

std::int64_t first_replayed(std::int64_t hit) {
  return std::max<std::int64_t>(0, hit - kBlock);
}

}  // namespace

Sequence::Sequence(Store& store, PieceId area, std::int64_t capacity)
    : store_(&store), area_(area), capacity_(capacity) {
  ids_.reserve(static_cast<std::size_t>(capacity));
  image_.reserve(static_cast<std::size_t>(capacity));
  blocks_.reserve(static_cast<std::size_t>(blocks_for(capacity)));
  addresses_.reserve(static_cast<std::size_t>(blocks_for(capacity)));
}

Sequence::Sequence(Sequence&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      area_(std::exchange(other.area_, kNoPiece)),
      capacity_(other.capacity_),
      length_(other.length_),
      written_(other.written_),
      reserved_(other.reserved_),
      write_floor_(other.write_floor_),
      first_(other.first_),
      ids_(std::move(other.ids_)),
      image_(std::move(other.image_)),
      blocks_(std::move(other.blocks_)),
      addresses_(std::move(other.addresses_)) {}

Sequence::~Sequence() {
  release();
}

void Sequence::release() {
  if (store_ == nullptr) return;
  for (const PieceId block : blocks_)
    store_->blocks_.drop(block);
  store_->areas_.drop(area_);
  store_ = nullptr;
}

std::byte* Sequence::private_state() const {
  return store_->areas_.address(area_);
}

void Sequence::append(std::int32_t id) {
  DI_CHECK_MSG(known() < capacity_, "a sequence outgrew the capacity it was admitted with");
  ids_.push_back(id);
  image_.push_back(0);
}

void Sequence::truncate(std::int64_t known) {
  DI_CHECK(known >= length_ && known <= this->known());
  ids_.resize(static_cast<std::size_t>(known));
  image_.resize(static_cast<std::size_t>(known));
}

Result<void> Sequence::reserve(std::int64_t tokens) {
  DI_CHECK(tokens >= 0 && length_ + tokens <= capacity_);
  const std::int64_t end = length_ + tokens;
  // Rows below the write floor are read, not written, so their blocks may stay shared.
  const std::int64_t first_write = std::max(length_, write_floor_);
  const auto is_shared = [&](PieceId block) { return store_->blocks_.references(block) > 1; };
  const auto held = static_cast<std::int64_t>(blocks_.size());
  const std::int64_t written_end = std::min(held, blocks_for(end));
  std::int64_t needed = std::max<std::int64_t>(0, blocks_for(end) - held);
  for (std::int64_t b = first_write / kBlock; b < written_end; ++b) {
    needed += is_shared(blocks_[static_cast<std::size_t>(b)]) ? 1 : 0;
  }
  if (!store_->make_room(needed)) {
    return make_error(ErrorKind::kOutOfMemory,
                      "positions " + std::to_string(length_) + " to " + std::to_string(end) +
                          " of a sequence need " + std::to_string(needed) + " blocks, " +
                          std::to_string(store_->available_blocks()) + " of " +
                          std::to_string(store_->blocks()) + " are free",
                      "run fewer or shorter sequences at a time, or give the pool more memory");
  }
  for (std::int64_t b = first_write / kBlock; b < written_end; ++b) {
    if (is_shared(blocks_[static_cast<std::size_t>(b)])) own_block(static_cast<std::size_t>(b));
  }
  while (static_cast<std::int64_t>(blocks_.size()) < blocks_for(end))
    push_block(store_->blocks_.take());
  reserved_ = end;
  return {};
}

void Sequence::push_block(PieceId block) {
  DI_CHECK(block != kNoPiece);
  blocks_.push_back(block);
  addresses_.push_back(store_->blocks_.address(block));
}

void Sequence::own_block(std::size_t number) {
  const PieceId copy = store_->blocks_.take();
  DI_CHECK(copy != kNoPiece);
  std::byte* const address = store_->blocks_.address(copy);
  store_->storage_->copy(address, addresses_[number], store_->blocks_.piece_bytes());
  store_->blocks_.drop(blocks_[number]);
  blocks_[number] = copy;
  addresses_[number] = address;
}

void Sequence::commit(std::int64_t tokens) {
  DI_CHECK_MSG(tokens >= 0 && length_ + tokens <= std::min(reserved_, known()),
               "a step committed positions it had not reserved, or whose ids are not known");
  length_ += tokens;
  written_ = std::max(written_, length_);
}

Result<void> Sequence::rollback(std::int64_t tokens) {
  const std::int64_t to = length_ - tokens;
  if (tokens < 0 || to < std::max(first_, write_floor_) || written_ - to > state::kMaxDrafts) {
    return make_error(
        ErrorKind::kInvalidArgument,
        "cannot roll back " + std::to_string(tokens) + " tokens from length " + std::to_string(length_) +
            ": the rings were written up to position " + std::to_string(written_) +
            " and the sequence starts at " + std::to_string(std::max(first_, write_floor_)),
        "at most " + std::to_string(state::kMaxDrafts) + " tokens below the longest length can be undone");
  }
  length_ = to;
  reserved_ = to;
  truncate(to);
  // Blocks past the new end hold nothing that is known any more.
  while (static_cast<std::int64_t>(blocks_.size()) > blocks_for(to)) {
    store_->blocks_.drop(blocks_.back());
    blocks_.pop_back();
    addresses_.pop_back();
  }
  return {};
}

Result<Sequence> Sequence::fork() const {
  DI_ASSIGN(Sequence copy, store_->open({ids_, image_, capacity_}));
  store_->storage_->copy(copy.private_state(), private_state(), store_->areas_.piece_bytes());
  copy.length_ = length_;
  copy.written_ = written_;
  copy.reserved_ = length_;
  copy.write_floor_ = write_floor_;
  copy.first_ = first_;
  // A replay in progress also reads blocks above its length: the ones it adopted.
  for (std::int64_t b = 0; b < blocks_for(std::max(length_, write_floor_)); ++b) {
    const PieceId block = blocks_[static_cast<std::size_t>(b)];
    store_->blocks_.share(block);
    copy.push_block(block);
  }
  const bool open_block = length_ % kBlock != 0 && length_ > write_floor_;
  if (open_block) {
    if (!store_->make_room(1)) {
      return make_error(ErrorKind::kOutOfMemory,
                        "cannot fork a sequence of length " + std::to_string(length_) +
                            ": no free block for its open block",
                        "run fewer or shorter sequences at a time, or give the pool more memory");
    }
    copy.own_block(static_cast<std::size_t>(length_ / kBlock));
  }
  return copy;
}

Result<std::unique_ptr<Store>> Store::create(std::unique_ptr<Storage> storage,
                                             const state::Registry& registry, const StoreOptions& options) {
  DI_ASSIGN(Slab blocks, Slab::create(*storage, {"kv blocks", registry.block_bytes(), options.blocks,
                                                 options.poison_freed}));
  DI_ASSIGN(Slab areas, Slab::create(*storage, {"sequence state", registry.sequence_bytes(),
                                                options.sequences, options.poison_freed}));
  return std::unique_ptr<Store>(
      new Store(std::move(storage), registry, std::move(blocks), std::move(areas), options.poison_freed));
}

Store::Store(std::unique_ptr<Storage> storage, const state::Registry& registry, Slab blocks, Slab areas,
             bool poisons_freed)
    : storage_(std::move(storage)),
      registry_(registry),
      blocks_(std::move(blocks)),
      areas_(std::move(areas)),
      poisons_freed_(poisons_freed) {}

void Store::set_keeper(BlockKeeper* keeper) {
  DI_CHECK((keeper == nullptr) != (keeper_ == nullptr));
  keeper_ = keeper;
  blocks_.watch(keeper);
}

bool Store::make_room(std::int64_t blocks) {
  const auto missing = static_cast<int>(blocks - free_blocks());
  if (missing > 0 && keeper_ != nullptr && keeper_->spare_blocks() >= missing) keeper_->give_up(missing);
  return free_blocks() >= blocks;
}

Result<Sequence> Store::open(const SequenceOptions& options) {
  DI_CHECK(!options.ids.empty());
  DI_CHECK(static_cast<std::int64_t>(options.ids.size()) <= options.capacity);
  DI_CHECK(options.image.empty() || options.image.size() == options.ids.size());
  const PieceId area = areas_.take();
  if (area == kNoPiece) {
    return make_error(ErrorKind::kOutOfMemory,
                      "no free sequence state: all " + std::to_string(sequences()) + " are in use",
                      "run fewer sequences at a time");
  }
  Sequence sequence(*this, area, options.capacity);
  sequence.ids_.assign(options.ids.begin(), options.ids.end());
  if (options.image.empty()) {
    sequence.image_.assign(options.ids.size(), 0);
  } else {
    sequence.image_.assign(options.image.begin(), options.image.end());
  }
  return sequence;
}

Result<Sequence> Store::start(const SequenceOptions& options) {
  return open(options);
}

Result<Sequence> Store::adopt(const Sequence& donor, std::int64_t hit, const SequenceOptions& options) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(hit, 0));
  const bool in_range = hit > 0 && hit % kBlock == 0 && hit <= donor.length() &&
                        hit < static_cast<std::int64_t>(options.ids.size());
  if (!in_range) {
    return make_error(
        ErrorKind::kInvalidArgument,
        "cannot take over " + std::to_string(hit) + " tokens of a sequence that holds " +
            std::to_string(donor.length()) + " for a prompt of " + std::to_string(options.ids.size()),
        "a hit is a positive multiple of 128, held by the donor, and leaves at least one token to compute");
  }
  const bool same_ids = std::equal(options.ids.begin(), options.ids.begin() + hit, donor.ids_.begin());
  bool same_image = true;
  for (std::size_t p = 0; p < count; ++p) {
    same_image = same_image && (options.image.empty() ? 0 : options.image[p]) == donor.image_[p];
  }
  if (!same_ids || !same_image) {
    return make_error(ErrorKind::kInvalidArgument, "cannot take over " + std::to_string(hit) +
                                                       " tokens: the two prompts differ within them");
  }
  return adopt({donor.blocks().first(count / kBlock), true}, options);
}

Result<Sequence> Store::adopt(const SharedPrefix& prefix, const SequenceOptions& options) {
  const auto hit = static_cast<std::int64_t>(prefix.blocks.size()) * kBlock;
  if (hit == 0 || hit >= static_cast<std::int64_t>(options.ids.size())) {
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot start a prompt of " + std::to_string(options.ids.size()) + " tokens from " +
                          std::to_string(hit) + " cached ones",
                      "a hit has at least one block and leaves at least one token to compute");
  }
  DI_ASSIGN(Sequence sequence, open(options));
  for (const PieceId block : prefix.blocks) {
    blocks_.share(block);
    sequence.push_block(block);
  }
  sequence.first_ = prefix.replay ? first_replayed(hit) : hit;
  sequence.length_ = sequence.first_;
  sequence.written_ = sequence.first_;
  sequence.reserved_ = sequence.first_;
  sequence.write_floor_ = hit;
  seed_history(sequence, sequence.first_);
  return sequence;
}

void Store::seed_history(Sequence& sequence, std::int64_t position) {
  const state::ClassId id = registry_.find(state::Kind::kTokenHistory, -1);
  if (id < 0) return;
  const state::StateClass& history = registry_.at(id);
  DI_CHECK(history.record.format == state::RecordFormat::kI32 && history.record.channels == 1);
  DI_CHECK(history.rows >= kHistoryLookBack + state::kMaxDrafts);
  for (std::int64_t p = std::max<std::int64_t>(0, position - kHistoryLookBack); p < position; ++p) {
    const auto at = static_cast<std::size_t>(p);
    const std::int32_t entry = sequence.ids_[at] | (sequence.image_[at] != 0 ? state::kImageFlag : 0);
    std::byte* to = sequence.private_state() + history.code_offset +
                    sizeof(entry) * static_cast<std::size_t>(p % history.rows);
    storage_->write(to, std::as_bytes(std::span(&entry, 1)));
  }
}

}  // namespace deepinfer::cache
