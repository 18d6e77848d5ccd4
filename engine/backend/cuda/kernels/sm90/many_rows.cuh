// What products of many rows share (docs/kernels/many_rows.md): a ring of stages in shared memory, filled by one warpgroup and
// multiplied by two. A stage is 64 columns: a tile of rows of x, swizzled for wgmma, and 8 packed weight tiles of 16 outputs,
// 4 for each multiplying warpgroup, one for each of its warps.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/packed.h"
#include "backend/cuda/kernels/sm90/copy_engine.cuh"
#include "backend/cuda/kernels/sm90/wgmma.cuh"

namespace deepinfer::backend::cuda {

inline constexpr int kMultipliers = 2;
inline constexpr int kGroupThreads = 128;
inline constexpr int kManyRowsThreads = (kMultipliers + 1) * kGroupThreads;
inline constexpr int kStageColumns = 64;
inline constexpr int kStagesOfChunk = kChunk / kStageColumns;
inline constexpr int kTileSlots = kMultipliers * 4;
inline constexpr int kBlockOutputs = kTileSlots * kTileOutputs;

constexpr int stage_tile_bytes(PackedCode code) {
  return kUnitBytes * kStageColumns / unit_columns(code);
}

// Shared memory of a block whose tiles have at most kRows rows of x; kExtraBytes are the kernel's own.
template <PackedCode kCode, int kRows, int kExtraBytes = 0>
struct StageLayout {
  static constexpr int kMostShared = 227 * 1024, kMostStages = 16, kBarrierBytes = 2 * 8 * kMostStages;
  static constexpr int kXBytes = kRows * kStageColumns * 2;
  static constexpr int kStageBytes = kXBytes + kTileSlots * stage_tile_bytes(kCode);
  // Rows that a multiplier turns and writes at a time.
  static constexpr int kTurnRows = kRows <= 64 ? kRows : kRows / 2;
  static constexpr int kTurnBytes = kTurnRows * 4 * kTileOutputs * 2;
  static constexpr int kOther =
      kMultipliers * kTurnBytes + 1024 /* alignment */ + kBarrierBytes + kExtraBytes;
  static constexpr int kFitting = (kMostShared - kOther) / kStageBytes;
  static constexpr int kStages = kFitting < kMostStages ? kFitting : kMostStages;
  static constexpr int kBytes = kStages * kStageBytes + kOther;
  static_assert(kStageBytes % 1024 == 0 && kTurnRows % 16 == 0 && kStages >= 4);
};

// Addresses of the ring, and the place in it of whoever holds this copy.
template <class Layout>
struct Ring {
  std::uint32_t base;
  int slot = 0;
  std::uint32_t parity = 0;

  __device__ explicit Ring(std::uint32_t first) {
    // Opaque to the compiler, which would otherwise work it out anew for every stage.
    asm volatile("mov.u32 %0, %1;" : "=r"(base) : "r"((first + 1023u) & ~1023u));
  }
  __device__ std::uint32_t stage() const { return base + slot * Layout::kStageBytes; }
  __device__ std::uint32_t turn(int multiplier) const {
    return base + Layout::kStages * Layout::kStageBytes + multiplier * Layout::kTurnBytes;
  }
  __device__ std::uint32_t barriers() const { return turn(kMultipliers); }
  __device__ std::uint32_t full(int of) const { return barriers() + 8 * of; }
  __device__ std::uint32_t empty(int of) const { return barriers() + 8 * (Layout::kStages + of); }
  __device__ std::uint32_t extra() const { return barriers() + Layout::kBarrierBytes; }
  __device__ void advance() {
    if (++slot == Layout::kStages) {
      slot = 0;
      parity ^= 1u;
    }
  }
  // By one thread, before any use; the block synchronises afterwards.
  __device__ void initialise(int fillers) const {
    for (int of = 0; of < Layout::kStages; ++of) {
      barrier_init(full(of), fillers);
      barrier_init(empty(of), kMultipliers * 4);
    }
    barrier_init_fence();
  }
};

// A warp's scales, a stage at a time, read kStagesOfChunk stages ahead.
template <PackedCode kCode>
class StageScales {
 public:
  // `scales`: of the warp's weight tile, from its first column.
  __device__ void begin(const std::uint8_t* scales, int stages) {
    if constexpr (kCode == PackedCode::kBf16) return;
    next_ = scales + (kCode == PackedCode::kFp4 ? threadIdx.x % 32 / 4 * 4 : 0);
    left_ = stages;
#pragma unroll
    for (std::uint32_t& word : ahead_)
      word = read();
  }
  // Of a stage whose place in its chunk is `place`.
  __device__ std::uint32_t take(int place) {
    if constexpr (kCode == PackedCode::kBf16) return 0;
    const std::uint32_t word = ahead_[place];
    ahead_[place] = read();
    return word;
  }

 private:
  __device__ std::uint32_t read() {
    if (left_ <= 0) return 0;
    --left_;
    const std::uint8_t* from = next_;
    if constexpr (kCode == PackedCode::kFp4) {
      next_ += 32;
      return __ldg(reinterpret_cast<const std::uint32_t*>(from));
    }
    next_ += 2;
    return __ldg(reinterpret_cast<const std::uint16_t*>(from));
  }

  const std::uint8_t* next_ = nullptr;
  int left_ = 0;
  std::uint32_t ahead_[kStagesOfChunk];
};

// A warp's codes of a stage, and operand A made of them.
template <PackedCode kCode>
struct StageCodes {
  std::uint32_t from;
  uint4 words[kCode == PackedCode::kFp8 ? 2 : 1];

  __device__ void load(std::uint32_t address) {
    from = address + threadIdx.x % 32 * 16;
    if constexpr (kCode != PackedCode::kBf16) words[0] = load_shared(from);
    if constexpr (kCode == PackedCode::kFp8) words[1] = load_shared(from + kUnitBytes);
  }
  // `step`: a k16 step of the stage, known at compile time.
  __device__ __forceinline__ void decode(int step, std::uint32_t scale, std::uint32_t (&a)[4]) const {
    if constexpr (kCode == PackedCode::kBf16) {
      const uint4 unit = load_shared(from + step * kUnitBytes);
      a[0] = unit.x, a[1] = unit.y, a[2] = unit.z, a[3] = unit.w;
    } else if constexpr (kCode == PackedCode::kFp8) {
      const uint4& unit = words[step / 2];
      const std::uint32_t factor = scale_factor((scale >> (8 * (step / 2))) & 0xffu);
      fp8_step(step % 2 ? unit.z : unit.x, step % 2 ? unit.w : unit.y, factor, a);
    } else {
      const std::uint32_t word = step < 2    ? step == 0 ? words[0].x : words[0].y
                                 : step == 2 ? words[0].z
                                             : words[0].w;
      fp4_step(word, fp4_factors(scale, step / 2), a);
    }
  }
};

// A multiplier's share of one tile: sum[64 outputs, kRows] over all columns, in packed.h's order. `tile`: the warp's slot.
// kSmallCopies: x comes by small copies. kSteps k16 steps, 2 or 4, are decoded while as many are in flight.
template <PackedCode kCode, int kRows, int kSteps, bool kSmallCopies, class Layout>
__device__ __forceinline__ void multiply_tile(Ring<Layout>& ring, StageScales<kCode>& scales, int stages,
                                              int tile, float (&sum)[kRows / 2]) {
  const std::uint32_t codes_at = Layout::kXBytes + tile * stage_tile_bytes(kCode);
  const bool arrives = threadIdx.x % 32 == 0;
  float chunk[kRows / 2];
  constexpr int kGroups = kStageColumns / 16 / kSteps;  // of a stage
  std::uint32_t a[2][kSteps][4];
  StageCodes<kCode> codes;
#pragma unroll
  for (float& value : sum)
    value = -0.0f;  // -0 + v is v, whatever v's sign

  std::uint32_t scale = 0;
  const auto receive = [&](int place) {
    barrier_wait(ring.full(ring.slot), ring.parity);
    if constexpr (kSmallCopies) fence_for_matrix_reads();
    codes.load(ring.stage() + codes_at);
    scale = scales.take(place);
  };
  const auto decode = [&](int group, std::uint32_t(&to)[kSteps][4]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      codes.decode(group * kSteps + step, scale, to[step]);
  };
  int previous = -1;
  // Multiplies the received stage, of which the first group is decoded, and receives the next.
  const auto multiply_stage = [&](int place, bool more) {
    const std::uint64_t b = operand_b(ring.stage());
    const int current = ring.slot;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int buffer = (place * kGroups + group) % 2;
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        wgmma<kRows>(chunk, a[buffer][step], b + (group * kSteps + step) * kColumnStep,
                     place + group + step > 0);
      wgmma_commit();
      const bool ends = group + 1 == kGroups;
      if (ends) {
        ring.advance();
        if (more) receive((place + 1) % kStagesOfChunk);
      }
      wgmma_wait<1>();
      if (group == 0 && previous >= 0 && arrives) barrier_arrive(ring.empty(previous));
      if (!ends)
        decode(group + 1, a[1 - buffer]);
      else if (more)
        decode(0, a[1 - buffer]);
    }
    previous = current;
  };
  const auto add_chunk = [&] {
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i)
      sum[i] = __fadd_rn(sum[i], chunk[i]);
  };

  receive(0);
  decode(0, a[0]);
  int left = stages;
#pragma unroll 1
  for (; left >= kStagesOfChunk; left -= kStagesOfChunk) {
    // Unrolled: the compiler lets wgmma stay in flight within a body, not across its repetition.
#pragma unroll
    for (int place = 0; place < kStagesOfChunk; ++place)
      multiply_stage(place, place + 1 < kStagesOfChunk || left > kStagesOfChunk);
    add_chunk();
  }
  if (left > 0) {
#pragma unroll
    for (int place = 0; place + 1 < kStagesOfChunk; ++place)
      if (place < left) multiply_stage(place, place + 1 < left);
    add_chunk();
  }
  if (arrives) barrier_arrive(ring.empty(previous));
}

// Turns a multiplier's results, rounded to bf16, so that a row's 64 outputs lie together: passes of kPass rows through
// `turn`, [row][128 bytes] with 16-byte pieces permuted as turned_piece says; write(first) reads the pass that begins at row
// `first`.
__device__ inline std::uint32_t turned_piece(std::uint32_t turn, int row, int piece) {
  return turn + row * 128 + ((piece ^ row) & 7) * 16;
}
template <int kRows, int kPass, class Write>
__device__ __forceinline__ void turn_rows(const float (&sum)[kRows / 2], std::uint32_t turn, int multiplier,
                                          int rows, Write write) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int block = lane / 8;
#pragma unroll
  for (int first = 0; first < kRows; first += kPass) {
    if (first >= rows) break;
    named_barrier(1 + multiplier, kGroupThreads);
#pragma unroll
    for (int row = 0; row < kPass && first + row < kRows; row += 16) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 pair =
            __floats2bfloat162_rn(sum[(first + row) / 2 + 2 * i], sum[(first + row) / 2 + 2 * i + 1]);
        pairs[i] = reinterpret_cast<const std::uint32_t&>(pair);
      }
      store_transposed(turned_piece(turn, row + block / 2 * 8 + lane % 8, 2 * warp + block % 2), pairs);
    }
    named_barrier(1 + multiplier, kGroupThreads);
    write(first);
  }
}

}  // namespace deepinfer::backend::cuda
