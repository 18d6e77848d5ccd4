#include "backend/cuda/kernels/common/experts.h"

#include <algorithm>

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/plain.cuh"
#include "backend/cuda/kernels/common/swiglu.cuh"
#include "backend/cuda/kernels/common/weight_stream.cuh"

namespace deepinfer::backend::cuda {

namespace {

// Products of one launch: all of parts[0], or gate and up of which the SwiGLU leaves.
struct StackPlan {
  StackPart parts[2];
  int share;
  Activation activation;
  StreamShape shape;
};

constexpr int kWarps = 16;

// Blocks take equal shares of the tiles of all passes. kAhead: the assignment is there before the inputs are.
template <PackedCode kOfWeights, bool kActivated, bool kAhead>
struct ExpertSource {
  static constexpr bool kKnownAhead = kAhead, kOneCode = true;
  static constexpr PackedCode kCode = kOfWeights;
  const StackPlan& plan;
  const Values& x;
  const Assignment& assignment;
  int first_item = 0, last_item = 0;  // of the block, once it is known who is active

  struct Place {
    int item = 0, tiles = 0;
    int expert = 0, first = 0;
    int row = 0, row_end = 0;  // pairs
  };
  __device__ const PackedMatrix& matrix() const { return plan.parts[0].weight.matrix; }
  __device__ void take_share() {
    const std::int64_t items = static_cast<std::int64_t>(*assignment.active_count) * matrix().tiles();
    first_item = static_cast<int>(items * blockIdx.x / gridDim.x);
    last_item = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ bool first(Place& place) const {
    place.item = first_item;
    return enter(place);
  }
  __device__ bool next(Place& place) const {
    place.row += plan.shape.rows;
    if (place.row < place.row_end) return true;
    place.item += place.tiles;
    return enter(place);
  }
  __device__ bool enter(Place& place) const {
    if (place.item >= last_item) return false;
    const int tiles = matrix().tiles();
    const int active = place.item / tiles;
    const std::int32_t entry = assignment.active[active];
    place.expert = entry & ((1 << kPassShift) - 1);
    place.first = place.item - active * tiles;
    place.tiles = min(last_item, (active + 1) * tiles) - place.item;
    place.row = assignment.first[place.expert] + (entry >> kPassShift) * kPassPairs;
    place.row_end = min(assignment.first[place.expert + 1], place.row + kPassPairs);
    return true;
  }
  __device__ StreamSegment segment(const Place& place) const {
    StreamSegment segment;
    segment.stacks = kActivated ? 2 : 1;
    segment.tiles = place.tiles;
    segment.k = matrix().k;
    segment.k_padded = matrix().k_padded;
    segment.rows = min(plan.shape.rows, place.row_end - place.row);
    const std::int64_t first = static_cast<std::int64_t>(place.first) * matrix().units_of_tile();
#pragma unroll
    for (int i = 0; i < (kActivated ? 2 : 1); ++i) {
      const PackedMatrix& of = plan.parts[i].weight.matrix;
      segment.units[i] = of.units + place.expert * of.unit_bytes() + first * kUnitBytes;
      segment.scales[i] = of.scales + place.expert * of.scale_bytes() + first * unit_scale_bytes(of.code);
    }
    return segment;
  }
  __device__ const __nv_bfloat16* row(const Place& place, int row) const {
    return static_cast<const __nv_bfloat16*>(x.data) +
           static_cast<std::int64_t>(assignment.slots[place.row + row] / plan.share) * x.columns;
  }
  // The two rows that a lane writes; pair < 0: none.
  struct Outputs {
    std::int64_t pair[2];
    float weight[2];
  };
  __device__ Outputs outputs(const Place& place, int lane) const {
    Outputs outputs;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = stream_row(lane, i);
      const bool there = row < plan.shape.rows && place.row + row < place.row_end;
      outputs.pair[i] = there ? assignment.slots[place.row + row] : -1;
      outputs.weight[i] = kActivated && there && plan.activation.weights != nullptr
                              ? plan.activation.weights[outputs.pair[i]]
                              : 1.0f;
    }
    return outputs;
  }
  __device__ void write(const Place& place, const Outputs& outputs, int tile, const float (&totals)[2][4],
                        int lane) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t pair = outputs.pair[i % 2];
      const int output = (place.first + tile) * kTileOutputs + stream_output(lane, i);
      if (pair < 0 || output >= matrix().n) continue;
      float value = totals[0][i];
      if constexpr (kActivated) {
        value = swiglu_exact(round_bf16(value), round_bf16(totals[1][i]), plan.activation.limit);
        value = __fmul_rn(value, outputs.weight[i % 2]);  // by one where there are none
      }
      put_value(plan.parts[0].out, pair * matrix().n + output, value);
    }
  }
};

template <PackedCode kCode, bool kActivated, bool kAhead>
__global__ void __launch_bounds__((kWarps + 1) * 32, 1)
    stack_kernel(__grid_constant__ const StackPlan plan, Values x, Assignment assignment) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  using Source = ExpertSource<kCode, kActivated, kAhead>;
  Source source{plan, x, assignment};
  if constexpr (kAhead) source.take_share();
  stream_weights<Source, kWarps>(source, plan.shape, shared, [&] {
    wait_for_inputs();
    if constexpr (!kAhead) source.take_share();
    return source.first_item < source.last_item;
  });
}

template <PackedCode kCode, bool kActivated, bool kAhead>
void launch_stack(const StackPlan& plan, std::int64_t most_items, int multiprocessors, Values x,
                  Assignment assignment, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(stack_kernel<kCode, kActivated, kAhead>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kMostStreamShared);
  (void)allowed;  // a refusal shows at the launch
  const auto blocks = std::min<std::int64_t>(multiprocessors, most_items);
  launch_chained(stack_kernel<kCode, kActivated, kAhead>, dim3(static_cast<unsigned>(blocks)),
                 (kWarps + 1) * 32, static_cast<std::size_t>(plan.shape.bytes), stream, plan, x, assignment);
}

template <bool kActivated, bool kAhead>
void launch_stack(const StackPlan& plan, std::int64_t most_items, int multiprocessors, Values x,
                  Assignment assignment, cudaStream_t stream) {
  const auto run = [&](auto code) {
    launch_stack<decltype(code)::value, kActivated, kAhead>(plan, most_items, multiprocessors, x, assignment,
                                                            stream);
  };
  switch (plan.parts[0].weight.matrix.code) {
    case PackedCode::kFp4: return run(std::integral_constant<PackedCode, PackedCode::kFp4>());
    case PackedCode::kFp8: return run(std::integral_constant<PackedCode, PackedCode::kFp8>());
    case PackedCode::kBf16: return run(std::integral_constant<PackedCode, PackedCode::kBf16>());
  }
}

// One thread an output of a pair.
__global__ void plain_stack_kernel(StepData step, int count, PlainStack weight, int top_k, int share,
                                   const std::int32_t* ids, Values x, Values out) {
  const auto pair = static_cast<std::int64_t>(blockIdx.y);
  if (pair / top_k >= step.counts[count]) return;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (output >= weight.matrix.n) return;
  PlainMatrix matrix = weight.matrix;
  matrix.data = weight.data[ids[pair]];
  matrix.scales = weight.scales == nullptr ? nullptr : weight.scales[ids[pair]];
  double sum = 0.0;
  for (std::int64_t c = 0; c < matrix.k; ++c)
    sum += static_cast<double>(value_at(x, pair / share * matrix.k + c)) *
           static_cast<double>(plain_value(matrix, output, c));
  put_value(out, pair * matrix.n + output, static_cast<float>(sum));
}

}  // namespace

bool experts_fit(std::int64_t k) {
  constexpr std::int64_t kSurelyTooWide = 1 << 20;
  return k < kSurelyTooWide &&
         stream_shape(kWarps, static_cast<int>(k + kChunk - 1) / kChunk * kChunk, 2, 1, kMostStreamShared)
                 .rows == 1;
}

void experts_few(RowSpace rows, const StackPart* parts, int count, int top_k, int share,
                 Activation activation, Values x, Assignment assignment, bool assigned_before,
                 int multiprocessors, cudaStream_t stream) {
  if (rows.most <= 0) return;
  StackPlan plan = {};
  plan.share = share;
  plan.activation = activation;
  const PackedMatrix& matrix = parts[0].weight.matrix;
  plan.shape = stream_shape(kWarps, matrix.k_padded, activation.fused ? 2 : 1, rows.most, kMostStreamShared);
  const std::int64_t pairs = static_cast<std::int64_t>(rows.most) * top_k;
  const std::int64_t most_items = most_passes(parts[0].weight.experts, pairs) * matrix.tiles();
  if (activation.fused) {
    plan.parts[0] = parts[0];
    plan.parts[1] = parts[1];
    launch_stack<true, false>(plan, most_items, multiprocessors, x, assignment, stream);
    return;
  }
  for (int i = 0; i < count; ++i) {
    plan.parts[0] = parts[i];
    // A launch of a stack waits for the assignment before it lets the next one start.
    if (assigned_before || i > 0)
      launch_stack<false, true>(plan, most_items, multiprocessors, x, assignment, stream);
    else
      launch_stack<false, false>(plan, most_items, multiprocessors, x, assignment, stream);
  }
}

void experts_plain(const StepData& step, RowSpace rows, PlainStack weight, int top_k, int share,
                   const std::int32_t* ids, Values x, Values out, cudaStream_t stream) {
  launch(plain_stack_kernel, dim3(blocks_for(weight.matrix.n, 128), static_cast<unsigned>(rows.most * top_k)),
         128, 0, stream, step, rows.count, weight, top_k, share, ids, x, out);
}

}  // namespace deepinfer::backend::cuda
