#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/norm.cuh"
#include "backend/cuda/kernels/common/plain.cuh"
#include "backend/cuda/kernels/common/streams.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 256;
// Columns of a row that one block moves: a few a thread, all on their way at once. A row in one block would be a chain of waits.
constexpr int kEach = 4;
constexpr int kColumnsOfBlock = kThreads * kEach;

dim3 spread(const RowSpace& rows, std::int64_t columns) {
  return {static_cast<unsigned>(rows.most), blocks_for(columns, kColumnsOfBlock)};
}

// `move` (column) for this block's columns below `columns`.
template <class Move>
__device__ inline void for_columns(std::int64_t columns, Move move) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kColumnsOfBlock + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (first + i * kThreads < columns) move(first + i * kThreads);
}

__global__ void embed_kernel(StepData step, PlainMatrix table, Values x) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[kTokenCount]) return;
  const int given = step.embed_of[row];
  const std::int64_t id = step.ids[row];
  for_columns(x.columns, [&](std::int64_t c) {
    put_value(x, row * x.columns + c,
              given >= 0 ? step.embeds[given * x.columns + c] : plain_value(table, id, c));
  });
}

__global__ void broadcast_kernel(StepData step, int count, Values x, int streams, Values h) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[count]) return;
  for_columns(x.columns, [&](std::int64_t c) {
    const float value = value_at(x, row * x.columns + c);
    for (int s = 0; s < streams; ++s)
      put_value(h, (row * streams + s) * x.columns + c, value);
  });
}

__global__ void gather_kernel(StepData step, RowSpace rows, RowAxis from_axis, const std::uint32_t* from,
                              std::uint32_t* to, int words) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[rows.count]) return;
  std::int64_t source = row;
  if (from_axis != rows.axis)
    source = from_axis == RowAxis::kTokens ? token_row(step, rows.axis, static_cast<int>(row))
                                           : step.logit_rows[row];
  for_columns(words, [&](std::int64_t c) { to[row * words + c] = from[source * words + c]; });
}

constexpr std::int32_t kImageFlag = 1 << 30;  // state::kImageFlag

__global__ void history_kernel(StepData step, RecordPlace place) {
  wait_for_inputs();
  if (static_cast<int>(blockIdx.x) >= step.counts[kSequenceCount]) return;
  const SequenceData sequence = step.sequences[blockIdx.x];
  const int first = max(0, sequence.tokens - place.rows);
  for (int i = first + static_cast<int>(threadIdx.x); i < sequence.tokens;
       i += static_cast<int>(blockDim.x)) {
    const int row = sequence.first_token_row + i;
    const std::int32_t id = step.ids[row];
    *reinterpret_cast<std::int32_t*>(ring_record(sequence, place, sequence.start + i).codes) =
        step.image[row] ? (id | kImageFlag) : id;
  }
}

// Channels of a thread that its registers hold; 0: vectors of any size, read twice.
template <int kHeld>
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_kernel(StepData step, int count, Values x, const float* weight, int vectors, float eps,
                    Values y) {
  __shared__ double scratch[kNormThreads / 32];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) / vectors;
  const std::int64_t size = x.columns / vectors;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * size;
  if constexpr (kHeld > 0) {
    HeldNorm<kHeld> norm;
    norm.take_weights(weight, size);
    wait_for_inputs_first();
    norm.take_values(x, first, size);  // a row that the step does not have is memory all the same
    const int rows = step.counts[count];
    let_next_start();
    if (row < rows) norm.write(y, first, size, eps, scratch);
  } else {
    wait_for_inputs();
    if (row >= step.counts[count]) return;
    const float factor =
        norm_factor(size, eps, scratch, [&](std::int64_t c) { return value_at(x, first + c); });
    for (std::int64_t c = threadIdx.x; c < size; c += kNormThreads)
      put_value(y, first + c, normed(value_at(x, first + c), factor, weight, c));
  }
}

// --- Engram

__global__ void engram_rows_kernel(StepData step, EngramTable table, RecordPlace history, std::int32_t* out) {
  wait_for_inputs();
  const auto row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= step.counts[kTokenCount]) return;
  const SequenceData sequence = step.sequences[step.sequence_of[row]];
  const std::int64_t position = step.positions[row];
  const std::int64_t pad = table.token_map[table.pad_id];
  bool blocked = false;  // sticky: nothing behind a dead position counts
  std::int64_t hash = 0;
  for (int k = 0; k < table.orders; ++k) {
    const std::int64_t at = position - k;
    std::int64_t id = pad;
    if (at < 0) {
      blocked = true;
    } else if (!blocked) {
      std::int32_t token;
      if (at >= sequence.start) {
        token = step.ids[row - k];
        blocked = step.image[row - k] != 0;
      } else {
        token = *reinterpret_cast<const std::int32_t*>(ring_record(sequence, history, at).codes);
        blocked = (token & kImageFlag) != 0;
        token &= ~kImageFlag;
      }
      // A history that names no token is broken state: make it show instead of reading past the map.
      if (token < 0 || token >= table.vocab) __trap();
      if (!blocked) id = table.token_map[token];
    }
    const std::int64_t product = (blocked ? pad : id) * table.multipliers[k];
    hash = k == 0 ? product : hash ^ product;
    if (k == 0) continue;
    for (int head = 0; head < table.heads; ++head) {
      const int column = (k - 1) * table.heads + head;
      out[static_cast<std::int64_t>(row) * (table.orders - 1) * table.heads + column] =
          static_cast<std::int32_t>(hash % table.primes[column] + table.offsets[column]);
    }
  }
}

constexpr int kGatherThreads = 128;

template <int kBytes>
__device__ inline void store_bytes(void* to, const void* from) {
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i)
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
  } else if constexpr (kBytes == 8) {
    *static_cast<uint2*>(to) = *static_cast<const uint2*>(from);
  } else if constexpr (kBytes == 4) {
    *static_cast<std::uint32_t*>(to) = *static_cast<const std::uint32_t*>(from);
  } else {
    static_assert(kBytes == 2);
    *static_cast<std::uint16_t*>(to) = *static_cast<const std::uint16_t*>(from);
  }
}

// kLanes lanes a table row, a word each at a time. Rows may lie in memory of the host: none waits for another, so as many reads are
// under way as there are rows.
template <class Word, int kLanes>
__global__ void __launch_bounds__(kGatherThreads)
    engram_gather_kernel(StepData step, int count, PlainMatrix table, const std::int32_t* indices,
                         int columns, Values out) {
  constexpr int kCodes = sizeof(Word);
  const std::int64_t at =
      static_cast<std::int64_t>(blockIdx.x) * (kGatherThreads / kLanes) + threadIdx.x / kLanes;
  if (at >= static_cast<std::int64_t>(step.counts[count]) * columns) return;
  const std::int64_t index = indices[at];
  const auto* const codes = reinterpret_cast<const Word*>(table.data + index * table.k);
  const std::uint8_t* const scales = table.scales + index * (table.k / 32);
  const auto words = static_cast<int>(table.k / kCodes);
  for (int i = static_cast<int>(threadIdx.x) % kLanes; i < words; i += kLanes) {
    const Word word = __ldcs(codes + i);
    const float scale = ue8m0_value(__ldcs(scales + i * kCodes / 32));
    const auto* const code = reinterpret_cast<const std::uint8_t*>(&word);
    const std::int64_t first = at * table.k + static_cast<std::int64_t>(i) * kCodes;
    if (out.bf16) {
      __align__(16) __nv_bfloat16 values[kCodes];
#pragma unroll
      for (int c = 0; c < kCodes; ++c)
        values[c] = __float2bfloat16_rn(e4m3_value(code[c]) * scale);
      store_bytes<2 * kCodes>(static_cast<__nv_bfloat16*>(out.data) + first, values);
    } else {
      __align__(16) float values[kCodes];
#pragma unroll
      for (int c = 0; c < kCodes; ++c)
        values[c] = e4m3_value(code[c]) * scale;
      store_bytes<4 * kCodes>(static_cast<float*>(out.data) + first, values);
    }
  }
}

template <class Word, int kLanes>
void launch_gather(const StepData& step, RowSpace rows, const PlainMatrix& table, const std::int32_t* indices,
                   int columns, const Values& out, cudaStream_t stream) {
  launch(engram_gather_kernel<Word, kLanes>,
         dim3(blocks_for(static_cast<std::int64_t>(rows.most) * columns, kGatherThreads / kLanes)),
         kGatherThreads, 0, stream, step, rows.count, table, indices, columns, out);
}

__global__ void engram_mix_kernel(StepData step, RowSpace rows, HcShape shape, const float* q_weight,
                                  const float* k_weight, float eps, Values h, Values kv, Values mixed) {
  __shared__ double scratch[kThreads / 32];
  wait_for_inputs();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) / shape.streams;
  const int stream = static_cast<int>(blockIdx.x) % shape.streams;
  if (row >= step.counts[rows.count]) return;
  const std::int64_t width = shape.hidden;
  const std::int64_t own = row * shape.streams * width + stream * width;
  const std::int64_t key = row * (shape.streams + 1) * width + stream * width;
  const std::int64_t value = row * (shape.streams + 1) * width + shape.streams * width;
  double dot = 0.0, stream_squares = 0.0, key_squares = 0.0;
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
    const double s = value_at(h, own + c), k = value_at(kv, key + c);
    dot += s * q_weight[stream * width + c] * k_weight[stream * width + c] * k;
    stream_squares += s * s;
    key_squares += k * k;
  }
  const auto f = static_cast<float>(width);
  const auto dot_sum = static_cast<float>(block_sum<kThreads>(dot, scratch));
  const float stream_mean = __fdiv_rn(static_cast<float>(block_sum<kThreads>(stream_squares, scratch)), f);
  const float key_mean = __fdiv_rn(static_cast<float>(block_sum<kThreads>(key_squares, scratch)), f);
  float score = __fmul_rn(dot_sum, rsqrt_exact(__fadd_rn(stream_mean, eps)));
  score = __fmul_rn(__fmul_rn(score, rsqrt_exact(__fadd_rn(key_mean, eps))), rsqrt_exact(f));
  const float root = __fsqrt_rn(fmaxf(fabsf(score), 1e-6f));
  const bool dead = step.image[token_row(step, rows.axis, static_cast<int>(row))] != 0;
  const float gate = dead ? 0.0f : sigmoid_exact(score < 0.0f ? -root : root);
  for (std::int64_t c = threadIdx.x; c < width; c += kThreads)
    put_value(mixed, own + c, __fadd_rn(value_at(h, own + c), __fmul_rn(gate, value_at(kv, value + c))));
}

}  // namespace

void embed(const StepData& step, RowSpace rows, PlainMatrix table, Values x, cudaStream_t stream) {
  launch_chained(embed_kernel, spread(rows, x.columns), kThreads, 0, stream, step, table, x);
}

void broadcast_streams(const StepData& step, RowSpace rows, Values x, int streams, Values h,
                       cudaStream_t stream) {
  launch_chained(broadcast_kernel, spread(rows, x.columns), kThreads, 0, stream, step, rows.count, x, streams,
                 h);
}

void gather_rows(const StepData& step, RowSpace rows, RowAxis from_axis, const void* from, void* to,
                 int words, cudaStream_t stream) {
  launch_chained(gather_kernel, spread(rows, words), kThreads, 0, stream, step, rows, from_axis,
                 static_cast<const std::uint32_t*>(from), static_cast<std::uint32_t*>(to), words);
}

void write_history(const StepData& step, int sequences, RecordPlace place, cudaStream_t stream) {
  launch(history_kernel, dim3(static_cast<unsigned>(sequences)), 32, 0, stream, step, place);
}

void rms_norm(const StepData& step, RowSpace rows, Values x, const float* weight, int vectors, float eps,
              Values y, cudaStream_t stream) {
  const std::int64_t size = x.columns / vectors;
  const auto kernel = size <= 8 * kNormThreads    ? rms_norm_kernel<8>
                      : size <= 24 * kNormThreads ? rms_norm_kernel<24>
                                                  : rms_norm_kernel<0>;
  launch_chained(kernel, dim3(static_cast<unsigned>(rows.most * vectors)), kNormThreads, 0, stream, step,
                 rows.count, x, weight, vectors, eps, y);
}

void engram_rows(const StepData& step, RowSpace rows, EngramTable table, RecordPlace history,
                 std::int32_t* out, cudaStream_t stream) {
  launch(engram_rows_kernel, dim3(blocks_for(rows.most, 64)), 64, 0, stream, step, table, history, out);
}

void engram_gather(const StepData& step, RowSpace rows, PlainMatrix table, const std::int32_t* indices,
                   int columns, Values out, cudaStream_t stream) {
  // Rows begin at multiples of 32 bytes from the first, which a file may have anywhere.
  const auto begin = reinterpret_cast<std::uintptr_t>(table.data);
  if (begin % 16 == 0)
    launch_gather<uint4, 16>(step, rows, table, indices, columns, out, stream);
  else if (begin % 8 == 0)
    launch_gather<uint2, 32>(step, rows, table, indices, columns, out, stream);
  else if (begin % 4 == 0)
    launch_gather<std::uint32_t, 32>(step, rows, table, indices, columns, out, stream);
  else
    launch_gather<std::uint8_t, 32>(step, rows, table, indices, columns, out, stream);
}

void engram_mix(const StepData& step, RowSpace rows, HcShape shape, const float* q_weight,
                const float* k_weight, float eps, Values h, Values kv, Values mixed, cudaStream_t stream) {
  launch_chained(engram_mix_kernel, dim3(static_cast<unsigned>(rows.most * shape.streams)), kThreads, 0,
                 stream, step, rows, shape, q_weight, k_weight, eps, h, kv, mixed);
}

}  // namespace deepinfer::backend::cuda
