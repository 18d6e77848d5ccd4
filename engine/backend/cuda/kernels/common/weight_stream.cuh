// Products of up to 8 rows with packed weights that pass through shared memory once: every warp keeps a few slots of weights in
// flight by itself, so that memory never waits for a barrier, and one more warp adds the chunks and writes.
//
// A block works through segments: tiles of one matrix, or of two of one shape (gate and up), with one set of rows of x. Its units
// are the 256-column chunks of these tiles, one after the other (of two matrices in turn), which is how they lie in memory; warp w
// takes units w, w + kWarps, ... An item is a tile (of both matrices); sums of its chunks meet in one of a few buffers, where the
// last warp adds them, chunks ascending (packed.h).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/packed.h"
#include "backend/cuda/kernels/common/weight_stream.h"

namespace deepinfer::backend::cuda {

struct StreamSegment {
  PackedCode code = PackedCode::kBf16;
  const std::uint8_t* units[2] = {};  // of the segment's first tile
  const std::uint8_t* scales[2] = {};
  int stacks = 1;  // 1 or 2
  int tiles = 0;
  int k = 0, k_padded = 0;
  int rows = 0;  // of x, 1 to 8

  __device__ int chunks() const { return k_padded / kChunk; }
};

namespace stream {

__device__ inline std::uint32_t shared_at(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void copy_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copies_end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ inline uint4 read_16(std::uint32_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
__device__ inline std::uint32_t read_4(std::uint32_t from) {
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}
__device__ inline void write_16(std::uint32_t to, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]),
               "f"(v[3])
               : "memory");
}
// Operand B of two k16 steps: lane l gives the address of row l % 8, columns 8 (l / 8) .. of 32.
__device__ inline void read_operands(std::uint32_t from, std::uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(from)
               : "memory");
}
__device__ inline void barrier_start(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_come(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_pass(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{ .reg .pred done; waiting: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra "
      "waiting; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

constexpr int slots_of_chunk(PackedCode code) {
  return kChunk / unit_columns(code) / kSlotUnits;
}

// Puts a warp's slots on their way, in the order in which it multiplies them. Place and segments come from `Source`.
template <class Source, int kWarps>
class Loader {
 public:
  __device__ Loader(const Source& source, int warp, int lane) : source_(source), lane_(lane) {
    place_ = source.begin();
    enter(warp);
  }

  __device__ void issue(std::uint32_t to) {
    if (left_ > 0) {
#pragma unroll
      for (int i = 0; i < kSlotUnits; ++i)
        copy_16(to + lane_ * 16 + i * kUnitBytes, codes_ + i * kUnitBytes);
      const std::uint32_t scales_to = to + kSlotUnits * kUnitBytes;
      if (code_ == PackedCode::kFp4)
        copy_4(scales_to + lane_ * 4, scales_);
      else if (code_ == PackedCode::kFp8 && lane_ == 0)
        copy_4(scales_to, scales_);
      if (--slots_left_ > 0) {
        codes_ += kSlotUnits * kUnitBytes;
        scales_ += kFp8SlotScales;
      } else {
        slots_left_ = slots_of_chunk(code_);
        codes_ += codes_jump_;
        scales_ += scales_jump_;
        if (--left_ == 0) {
          source_.advance(place_);
          enter(carried_);
        }
      }
    }
    copies_end_group();
  }

 private:
  static constexpr int kFp8SlotScales = kSlotUnits;

  // To unit `unit`, counted from the beginning of the segment at place_; past its last one, on in the next.
  __device__ void enter(int unit) {
    left_ = 0;
    for (; source_.settle(place_); source_.advance(place_)) {
      const StreamSegment segment = source_.segment(place_);
      const int units = segment.tiles * segment.chunks() * segment.stacks;
      if (unit >= units) {
        unit -= units;
        continue;
      }
      code_ = segment.code;
      left_ = (units - unit + kWarps - 1) / kWarps;
      carried_ = unit + left_ * kWarps - units;
      const int slots = slots_of_chunk(code_), stack = segment.stacks == 2 ? unit & 1 : 0;
      const std::int64_t chunk = segment.stacks == 2 ? unit >> 1 : unit;
      const int chunks_apart = kWarps / segment.stacks;
      slots_left_ = slots;
      codes_ = (stack != 0 ? segment.units[1] : segment.units[0]) +
               chunk * (slots * kSlotUnits * kUnitBytes) + lane_ * 16;
      codes_jump_ = (chunks_apart * slots - (slots - 1)) * kSlotUnits * kUnitBytes;
      const int scale_bytes = kChunk / unit_columns(code_) * unit_scale_bytes(code_);
      scales_ = (stack != 0 ? segment.scales[1] : segment.scales[0]) + chunk * scale_bytes;
      scales_jump_ = chunks_apart * scale_bytes;
      if (code_ == PackedCode::kFp4) scales_ += lane_ * 4;
      if (code_ == PackedCode::kFp8) scales_jump_ -= (slots - 1) * kFp8SlotScales;
      return;
    }
  }

  const Source& source_;
  typename Source::Place place_;
  PackedCode code_ = PackedCode::kBf16;
  const std::uint8_t *codes_ = nullptr, *scales_ = nullptr;  // of the next slot, this lane's
  int codes_jump_ = 0, scales_jump_ = 0;  // from the last slot of a chunk to the warp's next one
  int left_ = 0, slots_left_ = 0;         // chunks of the segment, slots of the chunk
  int carried_ = 0;                       // the warp's first unit in the next segment
  int lane_;
};

// The products of one slot: a chain of k16 steps that goes on in `sums`.
template <PackedCode kCode>
__device__ __forceinline__ void multiply_slot(std::uint32_t slot, std::uint32_t x, int lane,
                                              float (&sums)[4]) {
  const std::uint32_t codes = slot + lane * 16, scales = slot + kSlotUnits * kUnitBytes;
  uint4 words[kSlotUnits];
  std::uint32_t scale[kSlotUnits];
#pragma unroll
  for (int i = 0; i < kSlotUnits; ++i) {
    words[i] = read_16(codes + i * kUnitBytes);
    if constexpr (kCode == PackedCode::kFp4) scale[i] = read_4(scales + i * 32 + lane / 4 * 4);
  }
  if constexpr (kCode == PackedCode::kFp8) scale[0] = read_4(scales);
  constexpr int kPairs = kSlotUnits * unit_columns(kCode) / 32;  // of k16 steps
  std::uint32_t b[2][4];
  read_operands(x, b[0]);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    if (pair + 1 < kPairs) read_operands(x + (pair + 1) * 64, b[(pair + 1) % 2]);
    std::uint32_t a[2][4];
    if constexpr (kCode == PackedCode::kFp4) {
      const int i = pair / 2, half = pair % 2;
      const std::uint32_t low = scale_factor_at(scale[i], 2 * half),
                          high = scale_factor_at(scale[i], 2 * half + 1);
      fp4_step(half == 0 ? words[i].x : words[i].z, low, high, a[0]);
      fp4_step(half == 0 ? words[i].y : words[i].w, low, high, a[1]);
    } else if constexpr (kCode == PackedCode::kFp8) {
      const std::uint32_t factor = scale_factor_at(scale[0], pair);
      fp8_step(words[pair].x, words[pair].y, factor, a[0]);
      fp8_step(words[pair].z, words[pair].w, factor, a[1]);
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint4& unit = words[2 * pair + step];
        a[step][0] = unit.x, a[step][1] = unit.y, a[step][2] = unit.z, a[step][3] = unit.w;
      }
    }
    mma_step(sums, a[0], b[pair % 2][0], b[pair % 2][1]);
    mma_step(sums, a[1], b[pair % 2][2], b[pair % 2][3]);
  }
}

// Where things lie in the block's dynamic shared memory.
struct Shared {
  std::uint32_t base;
  StreamShape shape;
  __device__ std::uint32_t full(int buffer) const { return base + 8 * buffer; }
  __device__ std::uint32_t free(int buffer) const { return base + 8 * (kMostStreamBuffers + buffer); }
  __device__ std::uint32_t slot(int warp, int at) const {
    return base + kStreamBarrierBytes + (warp * kStreamDepth + at) * kSlotBytes;
  }
  __device__ std::uint32_t partial(int buffer, int unit) const {
    return base + shape.partials_at + (buffer * shape.units_of_item + unit) * kPartialBytes;
  }
  __device__ std::uint32_t x() const { return base + shape.x_at; }
};

// Rows of x to shared memory, zeros from k to k_padded.
template <class Source, int kWarps>
__device__ void stage_rows(const Source& source, const typename Source::Place& place,
                           const StreamSegment& segment, const Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int row = 0; row < segment.rows; ++row) {
    const __nv_bfloat16* from = source.row(place, row);
    const std::uint32_t to = shared.x() + row * shared.shape.x_stride;
    const bool whole = segment.k % 8 == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
    const int copied = whole ? segment.k : 0;
    for (int at = thread * 8; at < copied; at += kWarps * 32 * 8) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + at);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + at * 2), "r"(v.x), "r"(v.y),
                   "r"(v.z), "r"(v.w)
                   : "memory");
    }
    for (int at = copied + thread; at < segment.k_padded; at += kWarps * 32) {
      const std::uint16_t v =
          at < segment.k ? reinterpret_cast<const std::uint16_t*>(from)[at] : std::uint16_t{0};
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + at * 2), "h"(v) : "memory");
    }
  }
}

// A warp's place in its ring of slots, and in the items of the block.
struct Progress {
  int ring = 0;
  int items = 0;  // of the segments before
};

// The warp's units of a segment, from `unit` on.
template <PackedCode kCode, class Source, int kWarps>
__device__ void multiply_segment(const StreamSegment& segment, Loader<Source, kWarps>& loader,
                                 const Shared& shared, std::uint32_t x, int unit, int warp, int lane,
                                 Progress& progress) {
  constexpr int kSlots = slots_of_chunk(kCode);
  const int of_item = segment.stacks * segment.chunks(), stack_bit = segment.stacks - 1;
  int item = progress.items + unit / of_item, in_item = unit % of_item;
  for (int left = (segment.tiles * of_item - unit + kWarps - 1) / kWarps; left > 0; --left) {
    const std::uint32_t x_at = x + (in_item >> stack_bit) * (kChunk * 2);
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const std::uint32_t slot = shared.slot(warp, progress.ring);
      copies_wait<kStreamDepth - 1>();
      __syncwarp();
      multiply_slot<kCode>(slot, x_at + i * (kChunk * 2 / kSlots), lane, sums);
      __syncwarp();  // scales of a slot are read across lanes
      loader.issue(slot);
      progress.ring = progress.ring + 1 == kStreamDepth ? 0 : progress.ring + 1;
    }
    const int buffer = item & (shared.shape.buffers - 1), round = item >> shared.shape.buffers_log2;
    if (round > 0) barrier_pass(shared.free(buffer), (round - 1) & 1);
    write_16(shared.partial(buffer, in_item) + lane * 16, sums);
    __syncwarp();
    if (lane == 0) barrier_come(shared.full(buffer));
    in_item += kWarps;
    while (in_item >= of_item) {
      in_item -= of_item;
      ++item;
    }
  }
}

template <class Source, int kWarps>
__device__ void multiply(const Source& source, Loader<Source, kWarps>& loader, const Shared& shared, int warp,
                         int lane) {
  Progress progress;
  int unit = warp;
  auto place = source.begin();
  for (; source.settle(place); source.advance(place)) {
    const StreamSegment segment = source.segment(place);
    asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32)
                 : "memory");  // x of the segment before is no longer read
    stage_rows<Source, kWarps>(source, place, segment, shared);
    asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
    // Rows that are not there read the last one; what comes of it is not written.
    const std::uint32_t x =
        shared.x() + min(lane % 8, segment.rows - 1) * shared.shape.x_stride + lane / 8 * 16;
    const int units = segment.tiles * segment.stacks * segment.chunks();
    if (unit < units) {
      switch (segment.code) {
        case PackedCode::kFp4:
          multiply_segment<PackedCode::kFp4>(segment, loader, shared, x, unit, warp, lane, progress);
          break;
        case PackedCode::kFp8:
          multiply_segment<PackedCode::kFp8>(segment, loader, shared, x, unit, warp, lane, progress);
          break;
        case PackedCode::kBf16:
          multiply_segment<PackedCode::kBf16>(segment, loader, shared, x, unit, warp, lane, progress);
          break;
      }
      unit += (units - unit + kWarps - 1) / kWarps * kWarps;
    }
    unit -= units;
    progress.items += segment.tiles;
  }
  copies_wait<0>();
}

template <class Source>
__device__ void add_and_write(const Source& source, const Shared& shared, int lane) {
  int item = 0;
  auto place = source.begin();
  for (; source.settle(place); source.advance(place)) {
    const StreamSegment segment = source.segment(place);
    const int chunks = segment.chunks(), stacks = segment.stacks;
    for (int tile = 0; tile < segment.tiles; ++tile, ++item) {
      const int buffer = item & (shared.shape.buffers - 1), round = item >> shared.shape.buffers_log2;
      barrier_pass(shared.full(buffer), round & 1);
      float totals[2][4];
#pragma unroll
      for (int stack = 0; stack < 2; ++stack) {
        if (stack == stacks) break;
#pragma unroll 4
        for (int chunk = 0; chunk < chunks; ++chunk) {
          const uint4 bits = read_16(shared.partial(buffer, chunk * stacks + stack) + lane * 16);
          const float v[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                              __uint_as_float(bits.w)};
#pragma unroll
          for (int i = 0; i < 4; ++i)
            totals[stack][i] = chunk == 0 ? v[i] : __fadd_rn(totals[stack][i], v[i]);
        }
      }
      __syncwarp();
      if (lane == 0) barrier_come(shared.free(buffer));
      source.write(place, tile, totals, lane);
    }
  }
}

}  // namespace stream

// Where a lane's totals[.][i] of a tile stand: output and row within 16 x 8.
__device__ inline int stream_output(int lane, int i) {
  return lane / 4 + i / 2 * 8;
}
__device__ inline int stream_row(int lane, int i) {
  return 2 * (lane % 4) + i % 2;
}

// The whole of a block of (kWarps + 1) x 32 threads. `source` may be asked for its segments before `ready()` only if they do not
// depend on what the step made (Source::kKnownAhead); ready() waits for the inputs and says whether there is anything to do.
template <class Source, int kWarps, class Ready>
__device__ void stream_weights(const Source& source, const StreamShape& shape, std::uint8_t* shared_memory,
                               Ready ready) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const stream::Shared shared{stream::shared_at(shared_memory), shape};
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < shape.buffers; ++buffer) {
      stream::barrier_start(shared.full(buffer), shape.units_of_item);
      stream::barrier_start(shared.free(buffer), 1);
    }
  }
  if constexpr (!Source::kKnownAhead)
    if (!ready()) return;
  __syncthreads();
  if (warp == kWarps) {
    if constexpr (Source::kKnownAhead)
      if (!ready()) return;
    stream::add_and_write(source, shared, lane);
    return;
  }
  stream::Loader<Source, kWarps> loader(source, warp, lane);
  for (int i = 0; i < kStreamDepth; ++i)
    loader.issue(shared.slot(warp, i));
  if constexpr (Source::kKnownAhead) {
    if (!ready()) {
      stream::copies_wait<0>();
      return;
    }
  }
  stream::multiply<Source, kWarps>(source, loader, shared, warp, lane);
}

}  // namespace deepinfer::backend::cuda
