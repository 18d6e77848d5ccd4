// A cluster of blocks shares one tile of 128 outputs x kRows rows and goes through the columns together (docs/kernels/many_rows.md).
//
// Chunks are taken in pairs, pair p by block p mod S of the cluster; a block has two lanes, lane l multiplies chunk l of a pair. Each
// lane has a ring of stages of its own and two warpgroups, 64 outputs each. The running sum passes through the lanes in the order of the
// chunks, warp by warp: it lies in the shared memory of the block whose turn it is, each thread's share at its own place, so the order of
// the additions is packed.h's. It goes to the other lane in place, to the next block by asynchronous stores. A lane sends it on
// after the last chunk of a tile as well, when it says nothing but that the space is free.
#include "backend/cuda/kernels/sm90/linear_split.h"

#include <algorithm>
#include <cstdint>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/sm90/linear_results.cuh"
#include "backend/cuda/kernels/sm90/many_rows.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kLanes = 2, kLaneThreads = kMultipliers * kGroupThreads;
constexpr int kFillers = kLanes * kLaneThreads;  // the first thread of the warpgroup that fills
constexpr int kSplitThreads = kFillers + kGroupThreads;

// Which clusters work on which part, and how many row tiles a part has.
struct SplitGrid {
  int first[kMostParts + 1];  // cluster
  int split;                  // blocks of a cluster
  int row_tiles;
};

// Shared memory: two lanes, each a ring, space to turn results, barriers; then the running sum.
template <PackedCode kCode, int kRows>
struct SplitLayout {
  static constexpr int kMostShared = 227 * 1024, kMostStages = 12, kBarrierBytes = 2 * 8 * kMostStages;
  static constexpr int kXBytes = kRows * kStageColumns * 2;
  static constexpr int kStageBytes = kXBytes + kTileSlots * stage_tile_bytes(kCode);
  static constexpr int kTurnRows = kRows < 32 ? kRows : 32;
  static constexpr int kTurnBytes = kTurnRows * kGroupOutputs * 2;
  static constexpr int kSumBytes = kRows * kBlockOutputs * 4;
  static constexpr int kLaneOther =
      (kMultipliers * kTurnBytes + kBarrierBytes + 8 * kTileSlots + 1023) / 1024 * 1024;
  static constexpr int kFitting =
      (kMostShared - 1024 - kSumBytes - kLanes * kLaneOther) / kLanes / kStageBytes;
  static constexpr int kStages = kFitting < kMostStages ? kFitting : kMostStages;
  static constexpr int kLaneBytes = kStages * kStageBytes + kLaneOther;
  static constexpr int kBytes = 1024 + kLanes * kLaneBytes + kSumBytes;
  static_assert(kStages >= 3);  // one multiplies, one is decoded, one waits to be freed
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// --- the cluster

__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// The same place in the shared memory of another block of the cluster.
__device__ inline std::uint32_t address_in(std::uint32_t address, int block) {
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// 16 bytes to a block of the cluster; they count towards its barrier.
__device__ inline void send(std::uint32_t to, const float* values, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          to),
      "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier)
      : "memory");
}
__device__ inline void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{ .reg .pred done; waiting: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1; "
      "@!done bra waiting; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void store_sum(std::uint32_t to, const float* values) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}

// --- what a lane does, one chunk after the other

// The tiles of a cluster and their chunks.
struct Work {
  int first_item, item_step, items;  // of the cluster: items are out tile * row_tiles + row tile
  int row_tiles, chunks, pairs;      // chunks, and pairs of them, of a tile
  int split;

  __device__ Work(const LinearMany& linear, const SplitGrid& grid, int part, int cluster, int tiles_of_rows) {
    first_item = cluster - grid.first[part];
    item_step = grid.first[part + 1] - grid.first[part];
    row_tiles = tiles_of_rows;
    const int all = (linear.weight.tiles() + kTileSlots - 1) / kTileSlots * row_tiles;
    items = first_item < all ? (all - first_item + item_step - 1) / item_step : 0;
    chunks = linear.weight.k_padded / kChunk;
    pairs = (chunks + kLanes - 1) / kLanes;
    split = grid.split;
  }
  __device__ int all_pairs() const { return items * pairs; }
};

// A chunk of a lane: pair `pair` of the cluster's, the `within`-th of its item-th tile.
struct Place {
  int pair, within, item = 0;

  __device__ Place(const Work& work, int block, int lane) : pair(block), within(block) { settle(work, lane); }
  __device__ bool exists(const Work& work) const { return pair < work.all_pairs(); }
  __device__ int chunk(int lane) const { return within * kLanes + lane; }
  __device__ void advance(const Work& work, int lane) {
    step(work);
    settle(work, lane);
  }
  __device__ int out_tile(const Work& work) const {
    return (work.first_item + item * work.item_step) / work.row_tiles;
  }
  __device__ int row_tile(const Work& work) const {
    return (work.first_item + item * work.item_step) % work.row_tiles;
  }

 private:
  __device__ void step(const Work& work) {
    pair += work.split;
    within += work.split;
  }
  // To the next pair that has a chunk for the lane: the last one of a tile may have but one.
  __device__ void settle(const Work& work, int lane) {
    for (;;) {
      while (within >= work.pairs) {
        within -= work.pairs;
        ++item;
      }
      if (chunk(lane) < work.chunks || !exists(work)) return;
      step(work);
    }
  }
};

// A warp's scales, read a chunk ahead.
template <PackedCode kCode>
class ChunkScales {
 public:
  // `scales`: of the warp's weight tile, from the first column of the first chunk.
  __device__ void begin(const std::uint8_t* scales) {
    next_ = scales;
    if constexpr (kCode != PackedCode::kBf16) {
#pragma unroll
      for (int place = 0; place < kStagesOfChunk; ++place)
        ahead_[place] = read(place);
    }
  }
  // The chunk that comes after the one whose stages are being taken; null: none.
  __device__ void follow(const std::uint8_t* scales) { next_ = scales; }
  __device__ std::uint32_t take(int place) {
    if constexpr (kCode == PackedCode::kBf16) return 0;
    const std::uint32_t word = ahead_[place];
    // The first stage's are taken before follow() says where the next ones lie.
    if (place > 0 && next_ != nullptr) {
      if (place == 1) ahead_[0] = read(0);
      ahead_[place] = read(place);
    }
    return word;
  }

 private:
  __device__ std::uint32_t read(int place) const {
    if constexpr (kCode == PackedCode::kFp4)
      return __ldg(reinterpret_cast<const std::uint32_t*>(next_ + 32 * place) + threadIdx.x % 32 / 4);
    return __ldg(reinterpret_cast<const std::uint16_t*>(next_ + 2 * place));
  }

  const std::uint8_t* next_ = nullptr;
  std::uint32_t ahead_[kStagesOfChunk];
};

// Fills a lane's ring; by one thread. Weights are under way before the inputs are there, where it is known which tiles there are.
template <PackedCode kCode, int kRows>
__device__ __forceinline__ void fill(const LinearMany& linear, const SplitGrid& grid, int part, int cluster,
                                     const CUtensorMap& x_map, const CUtensorMap& unit_map,
                                     Ring<SplitLayout<kCode, kRows>> ring, int block, int lane) {
  using Layout = SplitLayout<kCode, kRows>;
  const int outputs_of_group = linear.weight.n / linear.groups;
  const auto copy_weights = [&](const Work& work, const Place& at, int place) {
    const std::uint32_t full = ring.full(ring.slot);
    barrier_arrive_expecting(full, Layout::kStageBytes);
    tensor_copy(ring.stage() + Layout::kXBytes, unit_map,
                (at.chunk(lane) * kStagesOfChunk + place) * (stage_tile_bytes(kCode) / 8),
                at.out_tile(work) * kTileSlots, 0, full);
  };
  int ahead = 0;  // stages whose weights are under way
  if (grid.row_tiles == 1) {
    const auto whole = ring;
    const Work work(linear, grid, part, cluster, 1);
    for (Place at(work, block, lane); at.exists(work) && ahead < Layout::kStages; at.advance(work, lane))
      for (int place = 0; place < kStagesOfChunk && ahead < Layout::kStages; ++place, ++ahead) {
        copy_weights(work, at, place);
        ring.advance();
      }
    ring = whole;
  }
  wait_for_inputs();
  const int rows = min(*linear.count, linear.most_rows);
  // Without rows the stages that are under way are filled all the same, and waited for.
  const int row_tiles = grid.row_tiles == 1 ? 1 : (rows + kRows - 1) / kRows;
  const Work work(linear, grid, part, cluster, max(row_tiles, 1));
  int stage = 0;
  for (Place at(work, block, lane); at.exists(work) && (rows > 0 || stage < ahead); at.advance(work, lane)) {
    const int out = at.out_tile(work), row = at.row_tile(work) * kRows;
    const int group = out * kBlockOutputs / outputs_of_group;
    for (int place = 0; place < kStagesOfChunk && (rows > 0 || stage < ahead); ++place, ++stage) {
      if (stage >= ahead) {
        barrier_wait(ring.empty(ring.slot), ring.parity ^ 1u);
        copy_weights(work, at, place);
      }
      tensor_copy(ring.stage(), x_map, (at.chunk(lane) * kStagesOfChunk + place) * kStageColumns, group, row,
                  ring.full(ring.slot));
      ring.advance();
    }
  }
  if (rows > 0) return;
  for (int slot = 0; slot < ahead; ++slot)
    barrier_wait(ring.full(slot), 0);
}

// A warp's running sum: where it lies in this block, and the barriers of its turns.
struct Turn {
  std::uint32_t sum;      // the thread's first 16 bytes; the others follow 512 bytes apart
  std::uint32_t here[2];  // barriers of the two lanes
};

template <PackedCode kCode, int kRows>
struct MultiplyChunks {
  using Layout = SplitLayout<kCode, kRows>;
  static constexpr int kSteps = 4;                             // k16 steps decoded while as many multiply
  static constexpr int kGroups = kStageColumns / 16 / kSteps;  // of a stage
  static constexpr int kPieces = kRows / 8;                    // 16-byte pieces of a thread's sum

  __device__ __forceinline__ static void run(const LinearMany& linear, const SplitGrid& grid, int part,
                                             int cluster, Ring<Layout> ring, const Turn& turn, int block,
                                             int lane) {
    const PackedMatrix& weight = linear.weight;
    const int group = threadIdx.x / kGroupThreads;   // warpgroup of the block
    const int slot = threadIdx.x / 32 % kTileSlots;  // warp of the lane
    const std::uint32_t codes_at = Layout::kXBytes + slot * stage_tile_bytes(kCode);
    const bool arrives = threadIdx.x % 32 == 0;
    wait_for_inputs();
    const int rows = min(*linear.count, linear.most_rows);
    const Work work(linear, grid, part, cluster, (rows + kRows - 1) / kRows);
    Place at(work, block, lane);
    if (!at.exists(work)) return;
    const auto scales_of = [&](const Place& of) {
      const int tile = min(of.out_tile(work) * kTileSlots + slot, weight.tiles() - 1);
      return weight.scales + (static_cast<std::int64_t>(tile) * weight.units_of_tile() +
                              of.chunk(lane) * (kChunk / unit_columns(kCode))) *
                                 unit_scale_bytes(kCode);
    };
    ChunkScales<kCode> scales;
    scales.begin(scales_of(at));
    cluster_wait();

    float sum[kRows / 2];
    std::uint32_t a[2][kSteps][4];
    StageCodes<kCode> codes;
    std::uint32_t scale = 0, parity = 0;
    const auto receive = [&](int place) {
      barrier_wait(ring.full(ring.slot), ring.parity);
      codes.load(ring.stage() + codes_at);
      scale = scales.take(place);
    };
    const auto decode = [&](int of, std::uint32_t(&to)[kSteps][4]) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        codes.decode(of * kSteps + step, scale, to[step]);
    };
    int previous = 0;
    // Multiplies the received stage, of which the first group is decoded, and receives the next.
    const auto multiply_stage = [&](int place, bool more) {
      const std::uint64_t b = operand_b(ring.stage());
      const int current = ring.slot;
#pragma unroll
      for (int of = 0; of < kGroups; ++of) {
        const int buffer = (place * kGroups + of) % 2;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
          wgmma<kRows>(sum, a[buffer][step], b + (of * kSteps + step) * kColumnStep, place + of + step > 0);
        wgmma_commit();
        const bool ends = of + 1 == kGroups;
        if (ends) {
          ring.advance();
          if (more) receive((place + 1) % kStagesOfChunk);
        }
        wgmma_wait<1>();
        if (of == 0 && place > 0 && arrives) barrier_arrive(ring.empty(previous));
        if (!ends)
          decode(of + 1, a[1 - buffer]);
        else if (more)
          decode(0, a[1 - buffer]);
      }
      previous = current;
    };

    receive(0);
    decode(0, a[0]);
#pragma unroll 1
    for (;;) {
      Place next = at;
      next.advance(work, lane);
      const bool more = next.exists(work);
      scales.follow(more ? scales_of(next) : nullptr);
#pragma unroll
      for (int place = 0; place < kStagesOfChunk; ++place)
        multiply_stage(place, place + 1 < kStagesOfChunk || more);
      wgmma_wait<0>();
      if (arrives) barrier_arrive(ring.empty(previous));

      const int chunk = at.chunk(lane);
      if (lane > 0 || at.pair > 0) {
        if (lane == 0 && arrives) barrier_arrive_expecting(turn.here[0], 32 * kPieces * 16);
        barrier_wait_cluster(turn.here[lane], parity);
        parity ^= 1u;
      }
      if (chunk > 0) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const uint4 before = load_shared(turn.sum + piece * 512);
          sum[4 * piece] = __fadd_rn(__uint_as_float(before.x), sum[4 * piece]);
          sum[4 * piece + 1] = __fadd_rn(__uint_as_float(before.y), sum[4 * piece + 1]);
          sum[4 * piece + 2] = __fadd_rn(__uint_as_float(before.z), sum[4 * piece + 2]);
          sum[4 * piece + 3] = __fadd_rn(__uint_as_float(before.w), sum[4 * piece + 3]);
        }
      }
      if (lane == 0 && chunk + 1 < work.chunks) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
          store_sum(turn.sum + piece * 512, &sum[4 * piece]);
        barrier_arrive(turn.here[1]);
      } else if (at.pair + 1 < work.all_pairs()) {
        const int to = block + 1 < work.split ? block + 1 : 0;
        const std::uint32_t there = address_in(turn.sum, to), barrier = address_in(turn.here[0], to);
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
          send(there + piece * 512, &sum[4 * piece], barrier);
      }
      if (chunk + 1 == work.chunks)
        write_results<kRows, Layout::kTurnRows>(
            linear, at.row_tile(work) * kRows, rows,
            (at.out_tile(work) * kMultipliers + group % kMultipliers) * kGroupOutputs, group,
            ring.turn(group % kMultipliers), sum);
      if (!more) break;
      at = next;
    }
  }
};

template <PackedCode kCode, int kRows>
__device__ __forceinline__ void multiply_part(const LinearManyPlan& plan, const SplitGrid& grid, int part,
                                              std::uint8_t* shared) {
  using Layout = SplitLayout<kCode, kRows>;
  const LinearMany& linear = plan.parts[part];
  const int cluster = blockIdx.x / grid.split, block = blockIdx.x % grid.split;
  const std::uint32_t base = (shared_address(shared) + 1023u) & ~1023u;
  const auto ring_of = [&](int lane) { return Ring<Layout>(base + lane * Layout::kLaneBytes); };
  if (threadIdx.x == 0) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto ring = ring_of(lane);
      for (int warp = 0; warp < kTileSlots; ++warp)
        barrier_init(ring.extra() + 8 * warp, lane == 0 ? 1 : 32);
      ring.initialise(1);
    }
  }
  __syncthreads();
  cluster_arrive();
  if (threadIdx.x >= kFillers) {
    give_registers<32>();
    const int lane = (threadIdx.x - kFillers) / 32;
    if (lane < kLanes && threadIdx.x % 32 == 0)
      fill<kCode, kRows>(linear, grid, part, cluster, plan.x_map, plan.unit_map[part], ring_of(lane), block,
                         lane);
    else
      wait_for_inputs();
  } else {
    take_registers<112>();
    const int lane = threadIdx.x / kLaneThreads, warp = threadIdx.x / 32 % kTileSlots;
    const auto ring = ring_of(lane);
    Turn turn;
    turn.sum = base + kLanes * Layout::kLaneBytes + warp * (kRows / 8 * 512) + threadIdx.x % 32 * 16;
    turn.here[0] = ring_of(0).extra() + 8 * warp;
    turn.here[1] = ring_of(1).extra() + 8 * warp;
    MultiplyChunks<kCode, kRows>::run(linear, grid, part, cluster, ring, turn, block, lane);
  }
}

#endif

template <int kRows>
__global__ void __launch_bounds__(kSplitThreads, 1)
    linear_split(const __grid_constant__ LinearManyPlan plan, const __grid_constant__ SplitGrid grid) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t shared[];
  int part = 0;
  while (static_cast<int>(blockIdx.x) >= grid.first[part + 1] * grid.split)
    ++part;
  switch (plan.parts[part].weight.code) {
    case PackedCode::kBf16: multiply_part<PackedCode::kBf16, kRows>(plan, grid, part, shared); break;
    case PackedCode::kFp8: multiply_part<PackedCode::kFp8, kRows>(plan, grid, part, shared); break;
    case PackedCode::kFp4: multiply_part<PackedCode::kFp4, kRows>(plan, grid, part, shared); break;
  }
#endif
}

template <int kRows>
cudaError_t launch(const LinearManyPlan& plan, const SplitGrid& grid, cudaStream_t stream) {
  constexpr int kBytes =
      std::max({SplitLayout<PackedCode::kBf16, kRows>::kBytes, SplitLayout<PackedCode::kFp8, kRows>::kBytes,
                SplitLayout<PackedCode::kFp4, kRows>::kBytes});
  static const cudaError_t allowed =
      cudaFuncSetAttribute(linear_split<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (allowed != cudaSuccess) return allowed;
  launch_clusters(linear_split<kRows>, grid.split,
                  dim3(static_cast<unsigned>(grid.first[plan.count] * grid.split)), kSplitThreads, kBytes,
                  stream, plan, grid);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_linear_split(const LinearManyPlan& plan, int split, int rows, int multiprocessors,
                                cudaStream_t stream) {
  SplitGrid grid{};
  grid.split = split;
  grid.row_tiles = (rows + plan.row_tile - 1) / plan.row_tile;
  std::int64_t all = 0;
  const auto tiles_of = [&](int part) {
    return std::int64_t{(plan.parts[part].weight.tiles() + kTileSlots - 1) / kTileSlots} * grid.row_tiles;
  };
  for (int i = 0; i < plan.count; ++i)
    all += tiles_of(i);
  const std::int64_t most = std::max(clusters_at_once(split, multiprocessors), plan.count);
  for (int i = 0; i < plan.count; ++i) {
    const std::int64_t clusters =
        all <= most ? tiles_of(i) : std::max<std::int64_t>(1, tiles_of(i) * most / all);
    grid.first[i + 1] = grid.first[i] + static_cast<int>(clusters);
  }
  for (int i = plan.count; i < kMostParts; ++i)
    grid.first[i + 1] = grid.first[i];
  switch (plan.row_tile) {
    case 16: return launch<16>(plan, grid, stream);
    case 32: return launch<32>(plan, grid, stream);
    case 64: return launch<64>(plan, grid, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace deepinfer::backend::cuda
