#include "cache/prefix_tree.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace deepinfer::cache {
namespace {

// Keys are uniform, so any of their bytes will do: one word for the place, another for the tag.
template <int kWord>
std::uint32_t word(const BlockKey& key) {
  std::uint32_t value = 0;
  std::memcpy(&value, key.data() + sizeof(value) * kWord, sizeof(value));
  return value;
}

}  // namespace

PrefixTree::PrefixTree(int pieces) : nodes_(static_cast<std::size_t>(pieces)), slots_(slots_for(pieces)) {}

std::size_t PrefixTree::slots_for(std::int64_t pieces) {
  return std::bit_ceil(2 * static_cast<std::size_t>(pieces));
}

std::int64_t PrefixTree::bytes(std::int64_t pieces) {
  return pieces * static_cast<std::int64_t>(sizeof(PrefixNode)) +
         static_cast<std::int64_t>(slots_for(pieces) * sizeof(Slot));
}

// The lineage bit of the key takes part: both lineages of one content would start at the same slot otherwise.
std::size_t PrefixTree::home(const BlockKey& key) const {
  return (word<0>(key) ^ static_cast<std::uint32_t>(lineage_of(key))) & (slots_.size() - 1);
}

PieceId PrefixTree::find(const BlockKey& key) const {
  const std::uint32_t tag = word<1>(key);
  for (std::size_t at = home(key);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.block == kNoPiece) return kNoPiece;
    if (slot.tag == tag && node(slot.block).key == key) return slot.block;
  }
}

void PrefixTree::enter(const BlockKey& key, PieceId block) {
  std::size_t at = home(key);
  while (slots_[at].block != kNoPiece)
    at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {block, word<1>(key)};
}

void PrefixTree::leave(const BlockKey& key) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = home(key);
  while (node(slots_[hole].block).key != key)
    hole = (hole + 1) & mask;
  // Later entries of the run move up if the hole lies between their home and them, so that no search stops too early.
  for (std::size_t at = (hole + 1) & mask; slots_[at].block != kNoPiece; at = (at + 1) & mask) {
    const std::size_t from_home = (at - home(node(slots_[at].block).key)) & mask;
    if (from_home < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = {};
}

PrefixNode& PrefixTree::insert(PieceId block, const BlockKey& key, PieceId parent) {
  PrefixNode& entry = node(block);
  DI_CHECK(!entry.cached && find(key) == kNoPiece);
  entry = {};
  entry.key = key;
  entry.parent = parent;
  entry.cached = true;
  if (parent != kNoPiece) {
    PrefixNode& above = node(parent);
    DI_CHECK(above.cached);
    entry.depth = above.depth + 1;
    entry.next = above.child;
    if (entry.next != kNoPiece) node(entry.next).previous = block;
    above.child = block;
  }
  enter(key, block);
  ++size_;
  ++spare_;
  return entry;
}

void PrefixTree::erase(PieceId block) {
  PrefixNode& entry = node(block);
  DI_CHECK(entry.cached && entry.leaf());
  if (entry.held > 0) idle(block);
  DI_CHECK(entry.held == 0);
  leave(entry.key);
  if (entry.next != kNoPiece) node(entry.next).previous = entry.previous;
  if (entry.previous != kNoPiece) {
    node(entry.previous).next = entry.next;
  } else if (entry.parent != kNoPiece) {
    node(entry.parent).child = entry.next;
  }
  entry = {};
  --size_;
  --spare_;
}

void PrefixTree::replace(PieceId old, PieceId fresh) {
  PrefixNode& entry = node(old);
  DI_CHECK(entry.cached && !node(fresh).cached);
  std::size_t at = home(entry.key);
  while (slots_[at].block != old)
    at = (at + 1) & (slots_.size() - 1);
  slots_[at].block = fresh;
  for (PieceId child = entry.child; child != kNoPiece; child = node(child).next)
    node(child).parent = fresh;
  if (entry.next != kNoPiece) node(entry.next).previous = fresh;
  if (entry.previous != kNoPiece) {
    node(entry.previous).next = fresh;
  } else if (entry.parent != kNoPiece) {
    node(entry.parent).child = fresh;
  }
  node(fresh) = std::exchange(entry, {});
}

void PrefixTree::hold(PieceId block) {
  while (block != kNoPiece && ++node(block).held == 1) {
    --spare_;
    block = node(block).parent;
  }
}

void PrefixTree::idle(PieceId block) {
  while (block != kNoPiece && --node(block).held == 0) {
    ++spare_;
    block = node(block).parent;
  }
}

}  // namespace deepinfer::cache
