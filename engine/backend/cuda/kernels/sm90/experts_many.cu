#include "backend/cuda/kernels/sm90/experts_many.h"

#include <type_traits>

#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/swiglu.cuh"
#include "backend/cuda/kernels/sm90/many_rows.cuh"
#include "backend/cuda/kernels/sm90/tensor_map.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kMostRows = 160;                            // of a tile
constexpr int kFirstBytes = 4 * (kMostExperts + 1) + 12;  // ExpertPairs::first, copied; a multiple of 16
static_assert(kFirstBytes % 16 == 0);
constexpr int kRowBytes = 8;                           // a row's pair and factor
constexpr int kRowTableBytes = kMostRows * kRowBytes;  // a multiplier's
constexpr int kExtraBytes = kFirstBytes + kMultipliers * kRowTableBytes;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// What a block multiplies at a time: `rows` pairs from slots[first_pair] on, the block's outputs number `out`.
struct Tile {
  int expert, out, first_pair, rows;
};

// Tiles in the order in which blocks take them: by expert, outputs, then rows, so that an expert's weights are read together.
// An expert's rows are spread evenly over as few tiles as hold them.
class Walk {
 public:
  // `first`: ExpertPairs::first in shared memory.
  __device__ Walk(std::uint32_t first, int experts, int out_tiles)
      : list_(first), experts_(experts), out_tiles_(out_tiles) {
    next_expert();
  }

  // False past the end. `item` never decreases.
  __device__ bool seek(int item, Tile* tile) {
    while (expert_ < experts_ && item >= before_ + row_tiles_ * out_tiles_) {
      before_ += row_tiles_ * out_tiles_;
      next_expert();
    }
    if (expert_ >= experts_) return false;
    const int within = item - before_;
    const int first = within % row_tiles_ * rows_of_tile_;
    *tile = {expert_, within / row_tiles_, first_ + first, min(rows_of_tile_, count_ - first)};
    return true;
  }

 private:
  __device__ void next_expert() {
    if (++expert_ >= experts_) return;
    first_ = load_shared_int(list_ + 4 * expert_);
    count_ = load_shared_int(list_ + 4 * expert_ + 4) - first_;
    row_tiles_ = (count_ + kMostRows - 1) / kMostRows;
    rows_of_tile_ = row_tiles_ > 1 ? ((count_ + row_tiles_ - 1) / row_tiles_ + 15) / 16 * 16 : count_;
  }

  std::uint32_t list_;
  int experts_, out_tiles_, expert_ = -1, before_ = 0;
  int first_ = 0, count_ = 0, row_tiles_ = 0, rows_of_tile_ = 0;
};

// A row's pair and factor, which a multiplier's threads read ahead and leave in shared memory for each other.
struct RowTable {
  std::uint32_t address;

  __device__ int pair(int row) const { return load_shared_int(address + row * kRowBytes); }
  __device__ float factor(int row) const {
    return __int_as_float(load_shared_int(address + row * kRowBytes + 4));
  }
};

#endif

// Each form says which packed tile a warp's slot is, where a pair's row lies and how results are written.
struct GateUp {
  using Problem = ExpertsGateUp;
  using Plan = ExpertsGateUpPlan;
  __host__ __device__ static const PackedMatrix& any_matrix(const Problem& problem) { return problem.gate; }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static constexpr int kMatrices = 2;
  // A block's: the warps of a multiplier hold 32 of gate, then the same 32 of up.
  static constexpr int kOutputs = kBlockOutputs / 2;

  // Slots 0 .. 3 hold tiles of gate, 4 .. 7 of up.
  __device__ static int slot(int warp) { return warp % 4 / 2 * 4 + warp / 4 * 2 + warp % 2; }
  __device__ static const PackedMatrix& matrix(const Problem& problem, int slot) {
    return slot < 4 ? problem.gate : problem.up;
  }
  __device__ static const void* rows(const Problem& problem) { return problem.x; }
  __device__ static std::int64_t row_stride(const Problem& problem) { return problem.x_stride; }
  __device__ static int row_of(const Problem& problem, int pair) { return pair / problem.pairs.top_k; }
  __device__ static float factor(const Problem& problem, int pair) {
    return problem.weight != nullptr ? __ldg(problem.weight + pair) : 1.0f;
  }
  template <int kRows, int kPass>
  __device__ __forceinline__ static void write(const Problem& problem, const Tile& tile, RowTable table,
                                               int multiplier, std::uint32_t turn,
                                               const float (&sum)[kRows / 2]) {
    const int piece = threadIdx.x % 4;
    const int output = tile.out * kOutputs + multiplier * (kOutputs / 2) + piece * 8;
    turn_rows<kRows, kPass>(sum, turn, multiplier, tile.rows, [&](int first) {
      if (output >= problem.gate.n) return;
      for (int row = threadIdx.x % kGroupThreads / 4; row < kPass && first + row < tile.rows;
           row += kGroupThreads / 4) {
        const std::int64_t pair = table.pair(first + row);
        const float factor = table.factor(first + row);
        const uint4 g = load_shared(turned_piece(turn, row, piece));
        const uint4 u = load_shared(turned_piece(turn, row, piece + 4));
        uint4 t;
        const auto two = [&](std::uint32_t gates, std::uint32_t ups) {
          const auto value = [&](std::uint32_t gate, std::uint32_t up) {
            return __fmul_rn(swiglu_exact(__uint_as_float(gate), __uint_as_float(up), problem.limit), factor);
          };
          const __nv_bfloat162 both = __floats2bfloat162_rn(value(gates << 16, ups << 16),
                                                            value(gates & 0xffff0000u, ups & 0xffff0000u));
          return reinterpret_cast<const std::uint32_t&>(both);
        };
        t.x = two(g.x, u.x), t.y = two(g.y, u.y), t.z = two(g.z, u.z), t.w = two(g.w, u.w);
        *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(problem.t) + pair * problem.gate.n + output) =
            t;
      }
    });
  }
#endif
};

struct Down {
  using Problem = ExpertsDown;
  using Plan = ExpertsDownPlan;
  __host__ __device__ static const PackedMatrix& any_matrix(const Problem& problem) { return problem.down; }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static constexpr int kMatrices = 1;
  static constexpr int kOutputs = kBlockOutputs;

  __device__ static int slot(int warp) { return warp; }
  __device__ static const PackedMatrix& matrix(const Problem& problem, int) { return problem.down; }
  __device__ static const void* rows(const Problem& problem) { return problem.t; }
  __device__ static std::int64_t row_stride(const Problem& problem) { return problem.down.k; }
  __device__ static int row_of(const Problem&, int pair) { return pair; }
  __device__ static float factor(const Problem&, int) { return 1.0f; }
  template <int kRows, int kPass>
  __device__ __forceinline__ static void write(const Problem& problem, const Tile& tile, RowTable table,
                                               int multiplier, std::uint32_t turn,
                                               const float (&sum)[kRows / 2]) {
    const int piece = threadIdx.x % 8;
    const int output = tile.out * kOutputs + multiplier * (kOutputs / 2) + piece * 8;
    turn_rows<kRows, kPass>(sum, turn, multiplier, tile.rows, [&](int first) {
      if (output >= problem.down.n) return;
      for (int row = threadIdx.x % kGroupThreads / 8; row < kPass && first + row < tile.rows;
           row += kGroupThreads / 8) {
        const std::int64_t pair = table.pair(first + row);
        *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(problem.y) + pair * problem.down.n + output) =
            load_shared(turned_piece(turn, row, piece));
      }
    });
  }
#endif
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class Form, PackedCode kCode>
struct Roles {
  using Problem = typename Form::Problem;
  using Layout = StageLayout<kCode, kMostRows, kExtraBytes>;
  static constexpr int kTilesOfMatrix = kTileSlots / Form::kMatrices;

  // Rows of x lie anywhere, so the warpgroup's threads copy them piece by piece: thread t piece t % 8 of rows t / 8 + 16 i.
  __device__ __forceinline__ static void fill(const Problem& problem, const CUtensorMap* unit_maps,
                                              Ring<Layout> ring, int out_tiles) {
    constexpr int kRowsApart = kGroupThreads / 8;
    const int thread = threadIdx.x % kGroupThreads;
    const int first_row = thread / 8, piece = thread % 8;
    const PackedMatrix& weight = Form::any_matrix(problem);
    const int stages = weight.k_padded / kStageColumns;
    const std::uint32_t to_row = first_row * 128 + ((piece ^ first_row) & 7) * 16;
    Walk walk(ring.extra(), problem.pairs.experts, out_tiles);
    Tile tile;
    for (int item = blockIdx.x; walk.seek(item, &tile); item += gridDim.x) {
      int from[kMostRows / kRowsApart];  // in pieces of 8 elements
#pragma unroll
      for (int i = 0; i < kMostRows / kRowsApart; ++i) {
        const int row = first_row + i * kRowsApart;
        const int pair = row < tile.rows ? __ldg(problem.pairs.slots + tile.first_pair + row) : 0;
        from[i] = static_cast<int>(Form::row_of(problem, pair) * (Form::row_stride(problem) / 8)) + piece;
      }
      const auto* x = static_cast<const uint4*>(Form::rows(problem));
      int columns = weight.k - piece * 8;  // from the thread's piece on
      for (int stage = 0; stage < stages; ++stage) {
        barrier_wait(ring.empty(ring.slot), ring.parity ^ 1u);
        const std::uint32_t full = ring.full(ring.slot);
        if (thread == 0) {
          constexpr int kTileBytes = stage_tile_bytes(kCode);
          barrier_arrive_expecting(full, kTileSlots * kTileBytes);
#pragma unroll
          for (int i = 0; i < Form::kMatrices; ++i)
            tensor_copy(ring.stage() + Layout::kXBytes + i * kTilesOfMatrix * kTileBytes, unit_maps[i],
                        stage * (kTileBytes / 8), tile.out * kTilesOfMatrix, tile.expert, full);
        }
        const int bytes = min(max(columns, 0), 8) * 2;
        columns -= kStageColumns;
        const std::uint32_t to = ring.stage() + to_row;
#pragma unroll
        for (int i = 0; i < kMostRows / kRowsApart; ++i)
          if (first_row + i * kRowsApart < tile.rows)
            small_copy(to + i * kRowsApart * 128, x + from[i], bytes);
        x += kStageColumns / 8;
        barrier_arrive_after_small_copies(full);
        ring.advance();
      }
    }
  }

  __device__ __forceinline__ static void multiply(const Problem& problem, Ring<Layout> ring, int out_tiles) {
    const int multiplier = threadIdx.x / kGroupThreads;
    const int slot = Form::slot(threadIdx.x / 32);
    const PackedMatrix& matrix = Form::matrix(problem, slot);
    const int stages = matrix.k_padded / kStageColumns;
    Walk walk(ring.extra(), problem.pairs.experts, out_tiles);
    Tile tile, next;
    int item = blockIdx.x;
    if (!walk.seek(item, &tile)) return;
    StageScales<kCode> scales;
    const auto begin_scales = [&](const Tile& of) {
      const int packed_tile = min(of.out * kTilesOfMatrix + slot % kTilesOfMatrix, matrix.tiles() - 1);
      scales.begin(
          matrix.scales + of.expert * matrix.scale_bytes() +
              static_cast<std::int64_t>(packed_tile) * matrix.units_of_tile() * unit_scale_bytes(kCode),
          stages);
    };
    begin_scales(tile);
    const RowTable table{ring.extra() + kFirstBytes + multiplier * kRowTableBytes};
    constexpr int kRowsOfThread = (kMostRows + kGroupThreads - 1) / kGroupThreads;
    const int thread = threadIdx.x % kGroupThreads;
    int pairs[kRowsOfThread];
    float factors[kRowsOfThread];
    const auto read_pairs = [&](const Tile& of) {
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        const int row = thread + i * kGroupThreads;
        pairs[i] = row < of.rows ? __ldg(problem.pairs.slots + of.first_pair + row) : 0;
      }
    };
    const auto read_factors = [&] {
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i)
        factors[i] = Form::factor(problem, pairs[i]);
    };
    read_pairs(tile);
    read_factors();
    for (bool more = true; more; tile = next) {
      const auto of_rows = [&](auto rows) __attribute__((always_inline)) {
        constexpr int kRows = decltype(rows)::value;
        float sum[kRows / 2];
        multiply_tile<kCode, kRows, kRows <= 144 ? 4 : 2, true>(ring, scales, stages, slot, sum);
        item += gridDim.x;
        more = walk.seek(item, &next);
        if (more) begin_scales(next);
        named_barrier(1 + multiplier, kGroupThreads);  // the last tile's table has been read
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) {
          const int row = thread + i * kGroupThreads;
          if (row >= tile.rows) continue;
          store_shared_int(table.address + row * kRowBytes, pairs[i]);
          store_shared_int(table.address + row * kRowBytes + 4, __float_as_int(factors[i]));
        }
        if (more) read_pairs(next);
        Form::template write<kRows, Layout::kTurnRows>(problem, tile, table, multiplier,
                                                       ring.turn(multiplier), sum);
        if (more) read_factors();
      };
      switch ((tile.rows + 15) / 16) {
        case 1: of_rows(std::integral_constant<int, 16>()); break;
        case 2: of_rows(std::integral_constant<int, 32>()); break;
        case 3:
        case 4: of_rows(std::integral_constant<int, 64>()); break;
        case 5:
        case 6: of_rows(std::integral_constant<int, 96>()); break;
        case 7: of_rows(std::integral_constant<int, 112>()); break;
        case 8: of_rows(std::integral_constant<int, 128>()); break;
        case 9: of_rows(std::integral_constant<int, 144>()); break;
        default: of_rows(std::integral_constant<int, 160>()); break;
      }
    }
  }
};

#endif

template <class Form, PackedCode kCode>
__global__ void __launch_bounds__(kManyRowsThreads, 1)
    experts_many(const __grid_constant__ typename Form::Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Layout = StageLayout<kCode, kMostRows, kExtraBytes>;
  extern __shared__ std::uint8_t shared[];
  Ring<Layout> ring(shared_address(shared));
  if (threadIdx.x == 0) ring.initialise(1 + kGroupThreads);
  wait_for_inputs();
  const ExpertPairs& pairs = plan.experts.pairs;
  for (int i = threadIdx.x; i <= pairs.experts; i += kManyRowsThreads)
    store_shared_int(ring.extra() + 4 * i, pairs.first[i]);
  __syncthreads();
  const int out_tiles = (Form::any_matrix(plan.experts).n + Form::kOutputs - 1) / Form::kOutputs;
  if (threadIdx.x >= kMultipliers * kGroupThreads) {
    give_registers<40>();
    Roles<Form, kCode>::fill(plan.experts, plan.unit_maps, ring, out_tiles);
  } else {
    take_registers<232>();
    Roles<Form, kCode>::multiply(plan.experts, ring, out_tiles);
  }
#endif
}

template <class Form, PackedCode kCode>
cudaError_t launch(const typename Form::Plan& plan, cudaStream_t stream) {
  constexpr int kBytes = StageLayout<kCode, kMostRows, kExtraBytes>::kBytes;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(experts_many<Form, kCode>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (allowed != cudaSuccess) return allowed;
  launch_chained(experts_many<Form, kCode>, dim3(static_cast<unsigned>(plan.blocks)), kManyRowsThreads,
                 kBytes, stream, plan);
  return cudaGetLastError();
}

template <class Form>
cudaError_t launch_form(const typename Form::Plan& plan, cudaStream_t stream) {
  switch (Form::any_matrix(plan.experts).code) {
    case PackedCode::kBf16: return launch<Form, PackedCode::kBf16>(plan, stream);
    case PackedCode::kFp8: return launch<Form, PackedCode::kFp8>(plan, stream);
    case PackedCode::kFp4: return launch<Form, PackedCode::kFp4>(plan, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t processors_of_device(int* processors) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device);
}

bool usable(const PackedMatrix& weight, const ExpertPairs& pairs) {
  return weight.n > 0 && weight.n % 8 == 0 && weight.k > 0 && weight.k_padded >= weight.k &&
         weight.k_padded % kStageColumns == 0 && pairs.experts > 0 && pairs.experts <= kMostExperts &&
         pairs.top_k > 0;
}
bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace

cudaError_t plan_experts_gate_up_many(const ExpertsGateUp& experts, ExpertsGateUpPlan* plan) {
  const PackedMatrix &gate = experts.gate, &up = experts.up;
  if (!usable(gate, experts.pairs) || gate.code != up.code || gate.n != up.n || gate.k != up.k ||
      gate.k_padded != up.k_padded || experts.x_stride % 8 != 0 || !aligned(experts.x) || !aligned(experts.t))
    return cudaErrorInvalidValue;
  plan->experts = experts;
  if (const cudaError_t error = processors_of_device(&plan->blocks); error != cudaSuccess) return error;
  if (const cudaError_t error =
          describe_units(gate, experts.pairs.experts, kTileSlots / 2, &plan->unit_maps[0]);
      error != cudaSuccess)
    return error;
  return describe_units(up, experts.pairs.experts, kTileSlots / 2, &plan->unit_maps[1]);
}

cudaError_t plan_experts_down_many(const ExpertsDown& experts, ExpertsDownPlan* plan) {
  if (!usable(experts.down, experts.pairs) || experts.down.k % 8 != 0 || !aligned(experts.t) ||
      !aligned(experts.y))
    return cudaErrorInvalidValue;
  plan->experts = experts;
  if (const cudaError_t error = processors_of_device(&plan->blocks); error != cudaSuccess) return error;
  return describe_units(experts.down, experts.pairs.experts, kTileSlots, &plan->unit_maps[0]);
}

cudaError_t launch_experts_gate_up_many(const ExpertsGateUpPlan& plan, cudaStream_t stream) {
  return launch_form<GateUp>(plan, stream);
}

cudaError_t launch_experts_down_many(const ExpertsDownPlan& plan, cudaStream_t stream) {
  return launch_form<Down>(plan, stream);
}

}  // namespace deepinfer::backend::cuda
