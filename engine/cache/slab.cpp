#include "cache/slab.h"

#include <limits>
#include <utility>

#include "state/registry.h"

namespace deepinfer::cache {

Result<Slab> Slab::create(Storage& storage, const SlabOptions& options) {
  if (options.piece_bytes == 0 || options.pieces < 1) {
    return make_error(ErrorKind::kInvalidArgument,
                      "cannot make a pool of " + options.tag + ": " + std::to_string(options.pieces) +
                          " pieces of " + std::to_string(options.piece_bytes) + " bytes",
                      "both must be at least 1");
  }
  const std::size_t alignment = state::kPlaneAlignment;
  if (options.piece_bytes >
      std::numeric_limits<std::size_t>::max() / 2 / static_cast<std::size_t>(options.pieces)) {
    return make_error(ErrorKind::kOutOfMemory, "cannot make a pool of " + options.tag + ": " +
                                                   std::to_string(options.pieces) + " pieces of " +
                                                   std::to_string(options.piece_bytes) +
                                                   " bytes overflow the address space");
  }
  const std::size_t stride = (options.piece_bytes + alignment - 1) / alignment * alignment;
  const std::size_t total = stride * static_cast<std::size_t>(options.pieces);
  DI_ASSIGN(std::byte * base, storage.allocate(total, options.tag));
  DI_CHECK(reinterpret_cast<std::uintptr_t>(base) % alignment == 0);
  if (options.poison_freed) storage.fill(base, kPoison, total);
  return Slab(storage, options, base, stride);
}

Slab::Slab(Storage& storage, const SlabOptions& options, std::byte* base, std::size_t stride)
    : storage_(&storage), options_(options), base_(base), stride_(stride) {
  references_.assign(static_cast<std::size_t>(options.pieces), 0);
  kept_.assign(static_cast<std::size_t>(options.pieces), 0);
  free_.reserve(static_cast<std::size_t>(options.pieces));
  for (PieceId piece = options.pieces - 1; piece >= 0; --piece)
    free_.push_back(piece);
}

Slab::Slab(Slab&& other) noexcept
    : storage_(other.storage_),
      options_(std::move(other.options_)),
      base_(std::exchange(other.base_, nullptr)),
      stride_(other.stride_),
      keeper_(other.keeper_),
      references_(std::move(other.references_)),
      kept_(std::move(other.kept_)),
      free_(std::move(other.free_)) {}

Slab::~Slab() {
  if (base_ == nullptr) return;
  DI_CHECK_MSG(free_pieces() == pieces(), "a pool goes away while pieces of it are in use");
  storage_->release(base_, stride_ * static_cast<std::size_t>(options_.pieces), options_.tag);
}

std::size_t Slab::index(PieceId piece) const {
  DI_CHECK(piece >= 0 && piece < options_.pieces);
  return static_cast<std::size_t>(piece);
}

PieceId Slab::take() {
  if (free_.empty()) return kNoPiece;
  const PieceId piece = free_.back();
  free_.pop_back();
  DI_CHECK(references_[index(piece)] == 0);
  references_[index(piece)] = 1;
  return piece;
}

void Slab::share(PieceId piece) {
  DI_CHECK(references_[index(piece)] > 0);
  if (++references_[index(piece)] == 2 && kept(piece)) keeper_->on_held(piece);
}

void Slab::keep(PieceId piece) {
  DI_CHECK(keeper_ != nullptr && references_[index(piece)] > 0 && !kept(piece));
  ++references_[index(piece)];
  kept_[index(piece)] = 1;
}

void Slab::let_go(PieceId piece) {
  DI_CHECK(kept(piece));
  kept_[index(piece)] = 0;
  drop(piece);
}

void Slab::drop(PieceId piece) {
  DI_CHECK(references_[index(piece)] > 0);
  if (--references_[index(piece)] > 0) {
    if (references_[index(piece)] == 1 && kept(piece)) keeper_->on_idle(piece);
    return;
  }
  if (options_.poison_freed) storage_->fill(address(piece), kPoison, stride_);
  free_.push_back(piece);
}

std::byte* Slab::address(PieceId piece) const {
  return base_ + stride_ * index(piece);
}

}  // namespace deepinfer::cache
