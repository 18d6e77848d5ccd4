#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/record.cuh"
#include "backend/cuda/kernels/common/records.h"
#include "backend/cuda/kernels/common/rotation.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kRopeVectors = 4;  // of a block

__global__ void angles_kernel(StepData step, const float* frequencies, int pairs, Angle* angles) {
  wait_for_inputs();
  const auto at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= step.counts[kTokenCount] * pairs) return;
  angles[at] = angle_at(static_cast<float>(step.positions[at / pairs]), frequencies[at % pairs]);
}

__global__ void rope_kernel(StepData step, RowSpace rows, int group_list, Rotation rotation, Values v,
                            int vectors, Values y) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[rows.count]) return;
  const int size = static_cast<int>(v.columns) / vectors;
  const int first = static_cast<int>(blockIdx.y) * kRopeVectors * size / 2;
  const int end = min(first + kRopeVectors * size / 2, vectors * size / 2);
  const int plain = size - 2 * rotation.pairs;
  const RowAngles angles(step, rows, group_list, rotation, row);
  for (int at = first + static_cast<int>(threadIdx.x); at < end; at += kThreads) {
    const int c = at * 2 % size;
    const std::int64_t place = row * v.columns + at * 2;
    const float a = value_at(v, place), b = value_at(v, place + 1);
    if (c < plain) {
      put_value(y, place, a);
      put_value(y, place + 1, b);
      continue;
    }
    const float2 turned = rotated(a, b, angles.at((c - plain) / 2), rotation.inverse);
    put_value(y, place, turned.x);
    put_value(y, place + 1, turned.y);
  }
}

__global__ void hadamard_kernel(StepData step, int count, Values v, int size, Values y) {
  __shared__ float values[512];
  wait_for_inputs();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * size / v.columns;
  if (row >= step.counts[count]) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * size;
  for (int c = static_cast<int>(threadIdx.x); c < size; c += kThreads)
    values[c] = value_at(v, first + c);
  __syncthreads();
  hadamard_in_place<kThreads>(values, size);
  const float factor = hadamard_factor(size);
  for (int c = static_cast<int>(threadIdx.x); c < size; c += kThreads)
    put_value(y, first + c, __fmul_rn(values[c], factor));
}

__global__ void quantise_kernel(StepData step, int count, RecordShape shape, Values v, Values y) {
  wait_for_inputs();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * shape.channels;
  if (first / v.columns >= step.counts[count]) return;
  store_as_held<kThreads>(
      shape, [&](int c) { return value_at(v, first + c); }, y, first);
}

// Eight channels a lane, so that a group lies in 4 (of 32 channels) to 32 lanes (of 256) of one warp. Block (vector, slice of its
// channels): a wide vector is under way at once, which rows of a single sequence need.
constexpr int kLaneChannels = 8;

struct alignas(16) EightBf16 {
  __nv_bfloat162 pairs[4];
};
struct alignas(16) FourF32 {
  float values[4];
};

template <bool kBf16>
__global__ void quantise_wide_kernel(StepData step, int count, int vectors, RecordShape shape, const void* v,
                                     void* y) {
  wait_for_inputs();
  if (static_cast<int>(blockIdx.x) / vectors >= step.counts[count]) return;
  const int c = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kLaneChannels;
  const bool mine = c < shape.channels;  // the others take part in the exchange with zeros
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * shape.channels + c;
  float values[kLaneChannels] = {};
  if (mine && kBf16) {
    const EightBf16 read = static_cast<const EightBf16*>(v)[place / kLaneChannels];
    for (int i = 0; i < 4; ++i) {
      const float2 two = __bfloat1622float2(read.pairs[i]);
      values[2 * i] = two.x;
      values[2 * i + 1] = two.y;
    }
  } else if (mine) {
    for (int half = 0; half < 2; ++half) {
      const FourF32 read = static_cast<const FourF32*>(v)[place / 4 + half];
      for (int i = 0; i < 4; ++i)
        values[4 * half + i] = read.values[i];
    }
  }
  std::uint32_t bits = 0;  // compared as integers: infinity and NaN above all numbers
  for (const float value : values)
    bits = max(bits, __float_as_uint(value) & 0x7fffffffu);
  for (int lane = 1; lane < shape.group / kLaneChannels; lane *= 2)
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, lane));
  if (!mine) return;
  const float scale = ue8m0_value(scale_byte_of(RecordCode::kFp8, __uint_as_float(bits)));
  for (float& value : values)
    value = __fmul_rn(scale, e4m3_value(e4m3_code(__fdiv_rn(value, scale))));
  if (kBf16) {
    EightBf16 held;
    for (int i = 0; i < 4; ++i)
      held.pairs[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    static_cast<EightBf16*>(y)[place / kLaneChannels] = held;
  } else {
    for (int half = 0; half < 2; ++half)
      static_cast<FourF32*>(y)[place / 4 + half] = {
          {values[4 * half], values[4 * half + 1], values[4 * half + 2], values[4 * half + 3]}};
  }
}

bool quantises_wide(const RecordShape& shape, const Values& v, const Values& y) {
  const auto aligned = [](const Values& values) {
    return reinterpret_cast<std::uintptr_t>(values.data) % 16 == 0 && values.columns % kLaneChannels == 0;
  };
  const bool group = shape.group == 32 || shape.group == 64 || shape.group == 128;
  return shape.code == RecordCode::kFp8 && shape.quantised == shape.channels && group &&
         shape.channels % kLaneChannels == 0 && aligned(v) && aligned(y) && v.bf16 == y.bf16;
}

// Block: a row. Of a sequence, only the last ones have a place in the ring.
__global__ void window_kernel(StepData step, RowSpace space, Record record, Values rows) {
  wait_for_inputs();
  const auto row = static_cast<int>(blockIdx.x);
  if (row >= step.counts[space.count]) return;
  const SequenceData sequence = step.sequences[step.sequence_of[token_row(step, space.axis, row)]];
  const SequenceRows mine = rows_of(sequence, space.axis);
  const int i = row - mine.first_row;
  if (i < mine.count - record.place.rows) return;
  const std::int64_t first = static_cast<std::int64_t>(row) * rows.columns;
  encode_record<kThreads>(record.shape, ring_record(sequence, record.place, mine.first_position + i),
                          [&](int c) { return value_at(rows, first + c); });
}

__global__ void blocks_kernel(StepData step, RowSpace rows, int group_list, Record record, Values values) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[rows.count]) return;
  const GroupData group = step.groups[group_list][row];
  encode_record<kThreads>(record.shape,
                          block_record(step, step.sequences[group.sequence], record.place, group.index),
                          [&](int c) { return value_at(values, row * values.columns + c); });
}

__global__ void compress_kernel(StepData step, RowSpace rows, int group_list, Compression compression,
                                Values u, Values g, Values pooled) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[rows.count]) return;
  const GroupData group = step.groups[group_list][row];
  const SequenceData sequence = step.sequences[group.sequence];
  const int ratio = compression.ratio;
  const std::int64_t first = static_cast<std::int64_t>(group.index) * ratio;
  if (ratio == 1) {
    const std::int64_t own = sequence.first_token_row + (first - sequence.start);
    for (int c = static_cast<int>(threadIdx.x); c < pooled.columns; c += kThreads)
      put_value(pooled, row * pooled.columns + c, value_at(u, own * u.columns + c));
    return;
  }
  const std::int64_t begin = compression.overlap && group.index > 0 ? first - ratio : first;
  const std::int64_t width = u.columns;
  // The logit and the value of the token at `position` for channel c of the pool.
  const auto entry = [&](std::int64_t position, int c, float& logit, float& value) {
    const std::int64_t half = compression.overlap && position >= first ? compression.channels : 0;
    if (position >= sequence.start) {
      const std::int64_t at = (sequence.first_token_row + (position - sequence.start)) * width + half + c;
      value = value_at(u, at);
      logit = value_at(g, at);
    } else {
      const auto* kept =
          reinterpret_cast<const float*>(ring_record(sequence, compression.ring, position).codes);
      value = kept[half + c];
      logit = kept[width + half + c];
    }
    if (compression.ape != nullptr)
      logit = __fadd_rn(logit, compression.ape[position % ratio * width + half + c]);
  };
  for (int c = static_cast<int>(threadIdx.x); c < compression.channels; c += kThreads) {
    float logit, value;
    entry(begin, c, logit, value);
    float largest = logit;
    for (std::int64_t p = begin + 1; p < first + ratio; ++p) {
      entry(p, c, logit, value);
      largest = fmaxf(largest, logit);
    }
    double sum = 0.0, weighted = 0.0;
    for (std::int64_t p = begin; p < first + ratio; ++p) {
      entry(p, c, logit, value);
      const double weight = exp_exact(__fsub_rn(logit, largest));
      sum += weight;
      weighted += weight * value;
    }
    put_value(pooled, row * pooled.columns + c, static_cast<float>(weighted / sum));
  }
}

__global__ void compressor_kernel(StepData step, RecordPlace ring, Values u, Values g) {
  wait_for_inputs();
  const auto row = static_cast<int>(blockIdx.x);
  if (row >= step.counts[kTokenCount]) return;
  const SequenceData sequence = step.sequences[step.sequence_of[row]];
  const int i = row - sequence.first_token_row;
  if (i < sequence.tokens - ring.rows) return;
  auto* kept = reinterpret_cast<float*>(ring_record(sequence, ring, sequence.start + i).codes);
  const std::int64_t first = static_cast<std::int64_t>(row) * u.columns;
  for (int c = static_cast<int>(threadIdx.x); c < u.columns; c += kThreads) {
    kept[c] = value_at(u, first + c);
    kept[u.columns + c] = value_at(g, first + c);
  }
}

}  // namespace

void rope_angles(const StepData& step, RowSpace rows, const float* frequencies, int pairs, Angle* angles,
                 cudaStream_t stream) {
  launch_chained(angles_kernel, dim3(blocks_for(static_cast<std::int64_t>(rows.most) * pairs, 128)), 128, 0,
                 stream, step, frequencies, pairs, angles);
}

void rope(const StepData& step, RowSpace rows, Rotation rotation, Values v, int vectors, Values y,
          cudaStream_t stream) {
  launch_chained(rope_kernel, dim3(static_cast<unsigned>(rows.most), blocks_for(vectors, kRopeVectors)),
                 kThreads, 0, stream, step, rows, group_list(rows), rotation, v, vectors, y);
}

void hadamard(const StepData& step, RowSpace rows, Values v, int size, Values y, cudaStream_t stream) {
  launch_chained(hadamard_kernel, dim3(static_cast<unsigned>(rows.most * (v.columns / size))), kThreads, 0,
                 stream, step, rows.count, v, size, y);
}

void fake_quantise(const StepData& step, RowSpace rows, RecordShape shape, Values v, Values y,
                   cudaStream_t stream) {
  if (quantises_wide(shape, v, y)) {
    const auto vectors = static_cast<int>(v.columns / shape.channels);
    const dim3 grid(static_cast<unsigned>(rows.most * vectors),
                    blocks_for(shape.channels, kThreads * kLaneChannels));
    launch_chained(v.bf16 ? quantise_wide_kernel<true> : quantise_wide_kernel<false>, grid, kThreads, 0,
                   stream, step, rows.count, vectors, shape, v.data, y.data);
    return;
  }
  launch_chained(quantise_kernel, dim3(static_cast<unsigned>(rows.most * (v.columns / shape.channels))),
                 kThreads, 0, stream, step, rows.count, shape, v, y);
}

void write_window(const StepData& step, RowSpace space, Record record, Values rows, cudaStream_t stream) {
  launch_chained(window_kernel, dim3(static_cast<unsigned>(space.most)), kThreads, 0, stream, step, space,
                 record, rows);
}

void write_blocks(const StepData& step, RowSpace rows, Record record, Values values, cudaStream_t stream) {
  launch_chained(blocks_kernel, dim3(static_cast<unsigned>(rows.most)), kThreads, 0, stream, step, rows,
                 group_list(rows), record, values);
}

void compress(const StepData& step, RowSpace rows, Compression compression, Values u, Values g, Values pooled,
              cudaStream_t stream) {
  launch_chained(compress_kernel, dim3(static_cast<unsigned>(rows.most)), kThreads, 0, stream, step, rows,
                 group_list(rows), compression, u, g, pooled);
}

void write_compressor(const StepData& step, RowSpace tokens, RecordPlace ring, Values u, Values g,
                      cudaStream_t stream) {
  launch_chained(compressor_kernel, dim3(static_cast<unsigned>(tokens.most)), kThreads, 0, stream, step, ring,
                 u, g);
}

}  // namespace deepinfer::backend::cuda
