#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/record.cuh"
#include "backend/cuda/kernels/common/records.h"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kRopeVectors = 4;  // of a block

// Sine and cosine of an f32 angle, f64 inside and one rounding (base/math.h).
__device__ Angle angle_at(float position, float frequency) {
  double sine, cosine;
  sincos(static_cast<double>(__fmul_rn(position, frequency)), &sine, &cosine);
  return {static_cast<float>(sine), static_cast<float>(cosine)};
}

__global__ void angles_kernel(StepData step, const float* frequencies, int pairs, Angle* angles) {
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
  const bool grouped = rows.axis == RowAxis::kGroups;
  const int token = grouped ? 0 : token_row(step, rows.axis, static_cast<int>(row));
  const float group_position =
      grouped ? static_cast<float>(static_cast<std::int64_t>(step.groups[group_list][row].index) * rows.ratio)
              : 0.0f;
  for (int at = first + static_cast<int>(threadIdx.x); at < end; at += kThreads) {
    const int c = at * 2 % size;
    const std::int64_t place = row * v.columns + at * 2;
    const float a = value_at(v, place), b = value_at(v, place + 1);
    if (c < plain) {
      put_value(y, place, a);
      put_value(y, place + 1, b);
      continue;
    }
    const int pair = (c - plain) / 2;
    const Angle angle = grouped ? angle_at(group_position, rotation.frequencies[pair])
                                : rotation.angles[static_cast<std::int64_t>(token) * rotation.pairs + pair];
    const float sine = rotation.inverse ? -angle.sine : angle.sine;
    put_value(y, place, __fsub_rn(__fmul_rn(a, angle.cosine), __fmul_rn(b, sine)));
    put_value(y, place + 1, __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, angle.cosine)));
  }
}

__global__ void hadamard_kernel(StepData step, int count, Values v, int size, Values y) {
  __shared__ float values[512];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * size / v.columns;
  if (row >= step.counts[count]) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * size;
  for (int c = static_cast<int>(threadIdx.x); c < size; c += kThreads)
    values[c] = value_at(v, first + c);
  for (int half = 1; half < size; half *= 2) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
      const int at = i / half * 2 * half + i % half;
      const float a = values[at], b = values[at + half];
      values[at] = __fadd_rn(a, b);
      values[at + half] = __fsub_rn(a, b);
    }
  }
  __syncthreads();
  const float factor = rsqrt_exact(static_cast<float>(size));
  for (int c = static_cast<int>(threadIdx.x); c < size; c += kThreads)
    put_value(y, first + c, __fmul_rn(values[c], factor));
}

__global__ void quantise_kernel(StepData step, int count, RecordShape shape, Values v, Values y) {
  wait_for_inputs();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * shape.channels;
  if (first / v.columns >= step.counts[count]) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto at = [&](int c) { return value_at(v, first + c); };
  const int quantised = quantised_channels(shape);
  const int groups = quantised > 0 ? (quantised + shape.group - 1) / shape.group : 0;
  for (int g = warp; g < groups; g += kThreads / 32)
    encode_group(shape, g, lane, at, [&](int c, unsigned code, unsigned, float scale) {
      const float value =
          shape.code == RecordCode::kFp8 ? e4m3_value(static_cast<std::uint8_t>(code)) : e2m1_value(code);
      put_value(y, first + c, __fmul_rn(scale, value));
    });
  const bool exact = shape.code == RecordCode::kF32 || (shape.code == RecordCode::kFp8 && shape.tail_f32);
  for (int c = quantised + static_cast<int>(threadIdx.x); c < shape.channels; c += kThreads)
    put_value(y, first + c, exact ? at(c) : round_bf16(at(c)));
}

// One block writes one record.
template <class At>
__device__ void encode_record(const RecordShape& shape, const RecordAddress& record, At at) {
  if (shape.code == RecordCode::kF32 || shape.code == RecordCode::kBf16) {
    for (int c = static_cast<int>(threadIdx.x); c < shape.channels; c += kThreads) {
      if (shape.code == RecordCode::kF32)
        reinterpret_cast<float*>(record.codes)[c] = at(c);
      else
        reinterpret_cast<__nv_bfloat16*>(record.codes)[c] = __float2bfloat16_rn(at(c));
    }
    return;
  }
  const int quantised = quantised_channels(shape);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int g = warp; g < (quantised + shape.group - 1) / shape.group; g += kThreads / 32) {
    const std::uint8_t byte =
        encode_group(shape, g, lane, at, [&](int c, unsigned code, unsigned next, float) {
          if (shape.code == RecordCode::kFp8)
            record.codes[c] = static_cast<std::uint8_t>(code);
          else if (c % 2 == 0)
            record.codes[c / 2] = static_cast<std::uint8_t>(code | (next << 4));
        });
    if (lane == 0) record.scales[g] = byte;
  }
  for (int c = static_cast<int>(threadIdx.x); c < shape.channels - quantised; c += kThreads) {
    if (shape.tail_f32)
      reinterpret_cast<float*>(record.tails)[c] = at(quantised + c);
    else
      reinterpret_cast<__nv_bfloat16*>(record.tails)[c] = __float2bfloat16_rn(at(quantised + c));
  }
}

// Block (s, i): row i from the end of sequence s.
__global__ void window_kernel(StepData step, RowAxis axis, Record record, Values rows) {
  wait_for_inputs();
  if (static_cast<int>(blockIdx.y) >= step.counts[kSequenceCount]) return;
  const SequenceData sequence = step.sequences[blockIdx.y];
  const SequenceRows mine = rows_of(sequence, axis);
  const int i = mine.count - 1 - static_cast<int>(blockIdx.x);
  if (i < 0) return;
  const std::int64_t first = static_cast<std::int64_t>(mine.first_row + i) * rows.columns;
  encode_record(record.shape, ring_record(sequence, record.place, mine.first_position + i),
                [&](int c) { return value_at(rows, first + c); });
}

__global__ void blocks_kernel(StepData step, RowSpace rows, int group_list, Record record, Values values) {
  wait_for_inputs();
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= step.counts[rows.count]) return;
  const GroupData group = step.groups[group_list][row];
  encode_record(record.shape, block_record(step, step.sequences[group.sequence], record.place, group.index),
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
  if (static_cast<int>(blockIdx.y) >= step.counts[kSequenceCount]) return;
  const SequenceData sequence = step.sequences[blockIdx.y];
  const int i = sequence.tokens - 1 - static_cast<int>(blockIdx.x);
  if (i < 0) return;
  auto* kept = reinterpret_cast<float*>(ring_record(sequence, ring, sequence.start + i).codes);
  const std::int64_t first = static_cast<std::int64_t>(sequence.first_token_row + i) * u.columns;
  for (int c = static_cast<int>(threadIdx.x); c < u.columns; c += kThreads) {
    kept[c] = value_at(u, first + c);
    kept[u.columns + c] = value_at(g, first + c);
  }
}

int group_list(const RowSpace& rows) {
  return rows.axis == RowAxis::kGroups ? rows.count - kGroupCount : 0;
}

}  // namespace

void rope_angles(const StepData& step, RowSpace rows, const float* frequencies, int pairs, Angle* angles,
                 cudaStream_t stream) {
  launch(angles_kernel, dim3(blocks_for(static_cast<std::int64_t>(rows.most) * pairs, 128)), 128, 0, stream,
         step, frequencies, pairs, angles);
}

void rope(const StepData& step, RowSpace rows, Rotation rotation, Values v, int vectors, Values y,
          cudaStream_t stream) {
  launch_chained(rope_kernel, dim3(static_cast<unsigned>(rows.most), blocks_for(vectors, kRopeVectors)),
                 kThreads, 0, stream, step, rows, group_list(rows), rotation, v, vectors, y);
}

void hadamard(const StepData& step, RowSpace rows, Values v, int size, Values y, cudaStream_t stream) {
  launch(hadamard_kernel, dim3(static_cast<unsigned>(rows.most * (v.columns / size))), kThreads, 0, stream,
         step, rows.count, v, size, y);
}

void fake_quantise(const StepData& step, RowSpace rows, RecordShape shape, Values v, Values y,
                   cudaStream_t stream) {
  launch_chained(quantise_kernel, dim3(static_cast<unsigned>(rows.most * (v.columns / shape.channels))),
                 kThreads, 0, stream, step, rows.count, shape, v, y);
}

void write_window(const StepData& step, int sequences, RowAxis axis, Record record, Values rows,
                  cudaStream_t stream) {
  launch_chained(window_kernel,
                 dim3(static_cast<unsigned>(record.place.rows), static_cast<unsigned>(sequences)), kThreads,
                 0, stream, step, axis, record, rows);
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

void write_compressor(const StepData& step, int sequences, RecordPlace ring, Values u, Values g,
                      cudaStream_t stream) {
  launch_chained(compressor_kernel, dim3(static_cast<unsigned>(ring.rows), static_cast<unsigned>(sequences)),
                 kThreads, 0, stream, step, ring, u, g);
}

}  // namespace deepinfer::backend::cuda
