// Who keeps blocks of a store beside the sequences, and gives them up when the pool runs out: the prefix cache.
#pragma once

#include "cache/slab.h"

namespace deepinfer::cache {

class BlockKeeper : public PieceWatcher {
 public:
  // Blocks that give_up could free now.
  virtual int spare_blocks() const = 0;
  // Frees `blocks` blocks; at most spare_blocks() are asked for.
  virtual void give_up(int blocks) = 0;
};

}  // namespace deepinfer::cache
