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
#include <type_traits>

#include "backend/cuda/kernels/common/dequantise.cuh"
#include "backend/cuda/kernels/common/packed.h"
#include "backend/cuda/kernels/common/shared_memory.cuh"
#include "backend/cuda/kernels/common/weight_stream.h"

namespace deepinfer::backend::cuda {

struct StreamSegment {
  const std::uint8_t* units[2] = {};  // of the segment's first tile
  const std::uint8_t* scales[2] = {};
  int stacks = 1;  // 1 or 2
  int tiles = 0;
  int k = 0, k_padded = 0;
  int rows = 0;  // of x, 1 to 8

  __device__ int chunks() const { return k_padded / kChunk; }
};

namespace stream {

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
constexpr int slots_of_chunk(PackedCode code) {
  return kChunk / unit_columns(code) / kSlotUnits;
}

// Puts a warp's slots of a segment on their way, in the order in which it multiplies them.
template <PackedCode kCode, int kWarps>
class Loader {
 public:
  // The warp's units are `warp`, warp + kWarps, ...
  __device__ Loader(const StreamSegment& segment, int warp, int lane) : lane_(lane) {
    const int units = segment.tiles * segment.chunks() * segment.stacks;
    chunks_left_ = (units - warp + kWarps - 1) / kWarps;
    const int stack_bit = segment.stacks - 1;
    const bool second = (warp & stack_bit) != 0;
    const int chunk = warp >> stack_bit, chunks_apart = kWarps >> stack_bit;
    codes_ = (second ? segment.units[1] : segment.units[0]) + chunk * kChunkBytes + lane * 16;
    codes_jump_ = chunks_apart * kChunkBytes - (kSlots - 1) * kSlotCodes;
    scales_ = (second ? segment.scales[1] : segment.scales[0]) + chunk * kScaleBytes;
    scales_jump_ = chunks_apart * kScaleBytes - (kSlots - 1) * kSlotScales;
    if constexpr (kCode == PackedCode::kFp4) scales_ += lane * 4;
  }
  __device__ int chunks() const { return chunks_left_; }  // before the first issue(): all of them

  __device__ void issue(std::uint32_t to) {
    if (chunks_left_ > 0) {
#pragma unroll
      for (int i = 0; i < kSlotUnits; ++i)
        copy_16(to + lane_ * 16 + i * kUnitBytes, codes_ + i * kUnitBytes);
      if constexpr (kCode == PackedCode::kFp4)
        copy_4(to + kSlotCodes + lane_ * 4, scales_);
      else if constexpr (kCode == PackedCode::kFp8)
        if (lane_ == 0) copy_4(to + kSlotCodes, scales_);
      const bool ends = ++slot_ == kSlots;
      codes_ += ends ? codes_jump_ : kSlotCodes;
      scales_ += ends ? scales_jump_ : kSlotScales;
      if (ends) {
        slot_ = 0;
        --chunks_left_;
      }
    }
    copies_end_group();
  }

 private:
  static constexpr int kSlots = slots_of_chunk(kCode), kSlotCodes = kSlotUnits * kUnitBytes;
  static constexpr int kChunkBytes = kSlots * kSlotCodes;
  static constexpr int kSlotScales = kSlotUnits * unit_scale_bytes(kCode), kScaleBytes = kSlots * kSlotScales;

  const std::uint8_t *codes_, *scales_;  // of the next slot, this lane's
  int codes_jump_, scales_jump_;         // from the last slot of a chunk to the warp's next chunk
  int chunks_left_, slot_ = 0, lane_;
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
    words[i] = load_shared(codes + i * kUnitBytes);
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
      const std::uint32_t factors = fp4_factors(scale[i], half);
      fp4_step(half == 0 ? words[i].x : words[i].z, factors, a[0]);
      fp4_step(half == 0 ? words[i].y : words[i].w, factors, a[1]);
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

// Rows of x to shared memory, zeros from k to k_padded. All pieces are on their way before the first is waited for: read one after
// the other, eight rows would take longer than the weights.
template <class Source, int kWarps>
__device__ void stage_rows(const Source& source, const typename Source::Place& place,
                           const StreamSegment& segment, const Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int row = 0; row < segment.rows; ++row) {
    const __nv_bfloat16* from = source.row(place, row);
    const std::uint32_t to = shared.x() + row * shared.shape.x_stride;
    const bool whole = segment.k % 8 == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
    const int copied = whole ? segment.k : 0;
    for (int at = thread * 8; at < copied; at += kWarps * 32 * 8)
      copy_16(to + at * 2, from + at);
    for (int at = copied + thread; at < segment.k_padded; at += kWarps * 32) {
      const std::uint16_t v =
          at < segment.k ? reinterpret_cast<const std::uint16_t*>(from)[at] : std::uint16_t{0};
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + at * 2), "h"(v) : "memory");
    }
  }
  copies_end_group();
  copies_wait<0>();
}

// A compute warp's part of a segment. The first slots are on their way before the inputs are waited for and before x is there.
// ready(): false if there is nothing to do.
template <PackedCode kCode, class Source, int kWarps, class Ready>
__device__ bool multiply_segment(const Source& source, const typename Source::Place& place,
                                 const Shared& shared, int first_item, int warp, int lane, Ready ready) {
  constexpr int kSlots = slots_of_chunk(kCode);
  Loader<kCode, kWarps> loader(source.segment(place), warp, lane);
  const int chunks = loader.chunks();
#pragma unroll
  for (int i = 0; i < kStreamDepth; ++i)
    loader.issue(shared.slot(warp, i));
  if (!ready()) {
    copies_wait<0>();
    return false;
  }
  const StreamSegment segment = source.segment(place);
  named_barrier(1, kWarps * 32);  // x of the segment before is no longer read
  stage_rows<Source, kWarps>(source, place, segment, shared);
  named_barrier(1, kWarps * 32);
  // Rows that are not there read the last one; what comes of it is not written.
  const std::uint32_t x =
      shared.x() + min(lane % 8, segment.rows - 1) * shared.shape.x_stride + lane / 8 * 16;
  const int of_item = segment.stacks * segment.chunks(), stack_bit = segment.stacks - 1;
  int item = first_item, in_item = warp, ring = 0;
#pragma unroll 1
  for (int left = chunks; left > 0; --left) {
    while (in_item >= of_item) {
      in_item -= of_item;
      ++item;
    }
    std::uint32_t x_at = x + (in_item >> stack_bit) * (kChunk * 2);
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int i = 0; i < kSlots; ++i) {
      const std::uint32_t slot = shared.slot(warp, ring);
      copies_wait<kStreamDepth - 1>();
      __syncwarp();
      multiply_slot<kCode>(slot, x_at, lane, sums);
      x_at += kChunk * 2 / kSlots;
      __syncwarp();  // scales of a slot are read across lanes
      loader.issue(slot);
      ring = ring + 1 == kStreamDepth ? 0 : ring + 1;
    }
    const int buffer = item & (shared.shape.buffers - 1), round = item >> shared.shape.buffers_log2;
    if (round > 0) barrier_wait(shared.free(buffer), (round - 1) & 1);
    write_16(shared.partial(buffer, in_item) + lane * 16, sums);
    // Every lane for itself: as fast as one for the warp after a __syncwarp, and an order that compute-sanitizer sees.
    barrier_arrive(shared.full(buffer));
    in_item += kWarps;
  }
  return true;
}

template <class Source, int kWarps, class Ready>
__device__ void multiply(const Source& source, const Shared& shared, int warp, int lane, Ready ready) {
  int items = 0;
  typename Source::Place place;
  for (bool more = source.first(place); more; more = source.next(place)) {
    bool done = true;
    const auto run = [&](auto code) {
      done = multiply_segment<decltype(code)::value, Source, kWarps>(source, place, shared, items, warp, lane,
                                                                     [&] { return items > 0 || ready(); });
    };
    if constexpr (Source::kOneCode) {
      run(std::integral_constant<PackedCode, Source::kCode>());
    } else {
      switch (source.code(place)) {
        case PackedCode::kFp4: run(std::integral_constant<PackedCode, PackedCode::kFp4>()); break;
        case PackedCode::kFp8: run(std::integral_constant<PackedCode, PackedCode::kFp8>()); break;
        case PackedCode::kBf16: run(std::integral_constant<PackedCode, PackedCode::kBf16>()); break;
      }
    }
    if (!done) return;
    items += source.segment(place).tiles;
  }
}

template <class Source>
__device__ void add_and_write(const Source& source, const Shared& shared, int lane) {
  int item = 0;
  typename Source::Place place;
  for (bool more = source.first(place); more; more = source.next(place)) {
    const StreamSegment segment = source.segment(place);
    const int chunks = segment.chunks(), stacks = segment.stacks;
    const typename Source::Outputs outputs = source.outputs(place, lane);
    for (int tile = 0; tile < segment.tiles; ++tile, ++item) {
      const int buffer = item & (shared.shape.buffers - 1), round = item >> shared.shape.buffers_log2;
      barrier_wait(shared.full(buffer), round & 1);
      float totals[2][4];
#pragma unroll
      for (int stack = 0; stack < 2; ++stack) {
        if (stack == stacks) break;
#pragma unroll 4
        for (int chunk = 0; chunk < chunks; ++chunk) {
          const uint4 bits = load_shared(shared.partial(buffer, chunk * stacks + stack) + lane * 16);
          const float v[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                              __uint_as_float(bits.w)};
#pragma unroll
          for (int i = 0; i < 4; ++i)
            totals[stack][i] = chunk == 0 ? v[i] : __fadd_rn(totals[stack][i], v[i]);
        }
      }
      barrier_arrive(shared.free(buffer));
      source.write(place, outputs, tile, totals, lane);
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

// The whole of a block of (kWarps + 1) x 32 threads. ready() waits for the inputs and says whether there is anything to do; where
// the segments do not depend on what the step made (Source::kKnownAhead), weights are on their way before it is called.
template <class Source, int kWarps, class Ready>
__device__ void stream_weights(const Source& source, const StreamShape& shape, std::uint8_t* shared_memory,
                               Ready ready) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const stream::Shared shared{shared_address(shared_memory), shape};
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < shape.buffers; ++buffer) {
      barrier_init(shared.full(buffer), shape.units_of_item * 32);
      barrier_init(shared.free(buffer), 32);
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
  stream::multiply<Source, kWarps>(source, shared, warp, lane, [&] {
    if constexpr (Source::kKnownAhead) return ready();
    return true;
  });
}

}  // namespace deepinfer::backend::cuda
