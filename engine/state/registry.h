// The registry of everything a sequence carries between steps, and the layout of each record.
//
// Three placements, one memory area each:
//   kBlock     rows in shared, 128-token blocks: written once, immutable when full, prefix-cacheable
//   kRing      private to a sequence: row of position p (or group j) sits in slot p % rows
//   kSequence  private to a sequence, a fixed number of bytes
// Pools, prefix cache, tiers, transfer, rollback and the canary iterate over this registry, so a class
// that is not in it cannot be carried. Layout facts: attention.md 8; private state: 4.5, 6, 8.3, 10.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer::state {

inline constexpr int kBlockTokens = 128;  // tokens of one block of every block class
inline constexpr int kMaxDrafts =
    8;  // rows a ring keeps past its window, so that a rollback of up to 8 tokens loses nothing
inline constexpr int kPlaneAlignment =
    64;  // bytes; every plane of a block and every private class starts aligned

// How one row is stored. Rows are planar: all code bytes of a block (or ring), then all tails, then all scales.
enum class RecordFormat : uint8_t {
  kF32,       // channels x f32: the unrounded row (kv-quant off, or compressor state)
  kBf16,      // channels x bf16 (kv-quant off in bf16 precision)
  kFp8Block,  // E4M3 codes on the first `quantised` channels, one UE8M0 scale a `group`; the rest in `tail`
  kNvfp4,     // E2M1 codes (even channel = low nibble), one E4M3 scale per 16 channels
  kMxfp4,     // E2M1 codes, one UE8M0 scale per 32 channels
  kI32,       // channels x i32 (token history)
};

struct RecordLayout {
  RecordFormat format = RecordFormat::kF32;
  int channels = 0;   // elements of a row
  int quantised = 0;  // kFp8Block: leading channels stored as codes (V4.1 windows: all; V4: channels - rope)
  int group = 0;      // channels that share a scale (32, 64, 16); 0 where there is none
  bool tail_f32 = false;  // kFp8Block: unquantised tail channels are f32 (precision f32) or bf16

  int code_bytes() const;   // bytes of one row in the code plane
  int tail_bytes() const;   // bytes of one row in the tail plane (0 for most formats)
  int scale_bytes() const;  // bytes of one row in the scale plane (V4 records: 7 scales padded to 8)
  int row_bytes() const { return code_bytes() + tail_bytes() + scale_bytes(); }
  std::string name() const;  // "nvfp4[512]" as it enters cache keys and `plan`
};

enum class Kind : uint8_t {
  kGlobalRows,       // compressed attention rows of a KV source layer
  kIndexKeys,        // index keys of a KV source layer
  kWindow,           // sliding-window rows of a layer
  kCompressor,       // f32 projections of tokens whose group is, or may again be, open: [u | g]
  kIndexCompressor,  // the same for V4's index-key compressor
  kTokenHistory,     // the last ids, for Engram look-back: id, or id | kImageFlag
};

enum class Placement : uint8_t { kBlock, kRing, kSequence };

// What a cache must do with a class on a prefix hit.
enum class Persistence : uint8_t {
  kPersistent,   // stored with the block
  kReplayable,   // rebuilt by re-running the last 128 cached tokens (attention.md 9)
  kSnapshotted,  // exact hits need a copy of it at the boundary
  kDerivable,    // follows from the token ids alone
};

inline constexpr int32_t kImageFlag = 1 << 30;  // kTokenHistory: the position lies in an image span
inline constexpr int kHistoryRows = 16;         // ring rows of kTokenHistory (3 needed + drafts)

using ClassId = int;

struct StateClass {
  ClassId id = -1;
  Kind kind = Kind::kWindow;
  int layer = -1;  // owner layer; -1 for kTokenHistory
  Placement placement = Placement::kRing;
  RecordLayout record;
  int ratio = 1;  // tokens a row stands for (block classes); 1 for rings of tokens
  int rows = 0;   // kBlock: rows a block (128 / ratio); kRing: ring rows; kSequence: rows
  Persistence exact = Persistence::kPersistent;
  Persistence replay = Persistence::kPersistent;
  // Byte offsets of this class's planes within a block (kBlock) or within the sequence's private area.
  size_t code_offset = 0;
  size_t tail_offset = 0;
  size_t scale_offset = 0;

  std::string name() const;  // "layer 2 global rows"
};

class Registry {
 public:
  // Adds a class; ids count from 0 in the order of adding. Offsets are assigned here: planes in order,
  // each aligned to kPlaneAlignment. Refuses (kShape) a ratio that does not divide kBlockTokens.
  Result<ClassId> add(StateClass entry);

  const std::vector<StateClass>& classes() const { return classes_; }
  const StateClass& at(ClassId id) const { return classes_[static_cast<size_t>(id)]; }
  // -1 when the layer has no such class.
  ClassId find(Kind kind, int layer) const;

  size_t block_bytes() const { return block_bytes_; }        // of one 128-token block, all block classes
  size_t sequence_bytes() const { return sequence_bytes_; }  // private area of one sequence
  // Text that names every class and its layout: part of the record format in cache keys.
  std::string fingerprint_text() const;

 private:
  std::vector<StateClass> classes_;
  size_t block_bytes_ = 0;
  size_t sequence_bytes_ = 0;
};

}  // namespace deepinfer::state
