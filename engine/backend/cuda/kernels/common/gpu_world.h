// Test support: steps over sequences whose every value follows from (sequence, position), so that one row can be computed in many
// different steps and must come out the same. Needs a GPU; gpu_missing() says why there is none.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/kernels/common/records.h"
#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda::test {

inline std::string gpu_missing() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return "";
  return std::string("no GPU: ") + cudaGetErrorString(error);
}

inline cudaDeviceProp device() {
  cudaDeviceProp properties{};
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  return properties;
}

inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0) {
  std::uint64_t x =
      a * 0x9e3779b97f4a7c15u + b * 0xc2b2ae3d27d4eb4fu + c * 0x165667b19e3779f9u + 0x27d4eb2f165667c5u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Small generator of one record or row.
struct Random {
  std::uint64_t state;
  std::uint64_t next() { return state = mixed(state, 0x51); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2 * std::log(uniform() + 1e-300)) * std::cos(6.283185307179586 * uniform());
  }
};

inline std::uint16_t bf16_bits(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline double bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
inline double e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}
inline double e2m1(unsigned code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

// A device copy of a vector, or poisoned space.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    allocate();
    EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  explicit DeviceArray(size_t size) : size_(size) {
    allocate();
    EXPECT_EQ(cudaMemset(data_, 0xcd, bytes()), cudaSuccess);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t bytes() const { return size_ * sizeof(T); }
  std::vector<T> host() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  void allocate() { EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() + 16), cudaSuccess); }
  T* data_ = nullptr;
  size_t size_ = 0;
};

// A record shape with planes laid out as state::Registry does, from byte `offset`; `end` is where they end.
struct PlacedRecord {
  Record record;
  size_t end = 0;
};
inline PlacedRecord placed(RecordShape shape, int rows, size_t offset) {
  PlacedRecord result;
  result.record.shape = shape;
  RecordPlace& place = result.record.place;
  place.rows = rows;
  const int c = shape.channels;
  if (shape.code == RecordCode::kBf16) place.code_bytes = 2 * c;
  if (shape.code == RecordCode::kFp8) {
    place.code_bytes = shape.quantised;
    place.tail_bytes = 2 * (c - shape.quantised);
    place.scale_bytes = shape.quantised == c ? c / shape.group : 8;
  }
  if (shape.code == RecordCode::kNvfp4) place.code_bytes = c / 2, place.scale_bytes = c / 16;
  if (shape.code == RecordCode::kMxfp4) place.code_bytes = c / 2, place.scale_bytes = c / 32;
  const auto take = [&](int row_bytes) {
    const size_t at = offset;
    offset = (offset + static_cast<size_t>(rows) * static_cast<size_t>(row_bytes) + 63) / 64 * 64;
    return at;
  };
  place.code_offset = take(place.code_bytes);
  place.tail_offset = take(place.tail_bytes);
  place.scale_offset = take(place.scale_bytes);
  result.end = offset;
  return result;
}

// One record of random codes and what it decodes to.
struct RandomRecord {
  std::vector<std::uint8_t> codes, tails, scales;
  std::vector<double> values;
};
inline RandomRecord random_record(const RecordShape& shape, std::uint64_t seed) {
  Random random{seed};
  RandomRecord record;
  record.values.resize(static_cast<size_t>(shape.channels));
  const auto put_bf16 = [&](std::vector<std::uint8_t>& to, int channel) {
    const std::uint16_t bits = bf16_bits(random.normal());
    to.push_back(static_cast<std::uint8_t>(bits & 255));
    to.push_back(static_cast<std::uint8_t>(bits >> 8));
    record.values[static_cast<size_t>(channel)] = bf16_value(bits);
  };
  const int quantised = shape.code == RecordCode::kBf16  ? 0
                        : shape.code == RecordCode::kFp8 ? shape.quantised
                                                         : shape.channels;
  double scale = 0;
  for (int c = 0; c < quantised; ++c) {
    if (c % shape.group == 0) {
      const bool e4m3_scale = shape.code == RecordCode::kNvfp4;
      // Powers of two about 1/256 for FP8, 1/4 for FP4; E4M3 scales from subnormal to past 4.
      const auto byte = static_cast<std::uint8_t>(
          e4m3_scale ? (random.next() % 16 == 0 ? 1 + random.next() % 0x50 : 0x20 + random.next() % 8)
                     : (shape.code == RecordCode::kFp8 ? 118 : 124) + random.next() % 3);
      record.scales.push_back(byte);
      scale = e4m3_scale ? e4m3(byte) : std::ldexp(1.0, byte - 127);
    }
    if (shape.code == RecordCode::kFp8) {
      auto code = static_cast<std::uint8_t>(random.next());
      if ((code & 0x7f) == 0x7f) code ^= 1;
      record.codes.push_back(code);
      record.values[static_cast<size_t>(c)] = e4m3(code) * scale;
    } else {
      const unsigned code = random.next() & 15;
      if (c % 2 == 0)
        record.codes.push_back(static_cast<std::uint8_t>(code));
      else
        record.codes.back() = static_cast<std::uint8_t>(record.codes.back() | (code << 4));
      record.values[static_cast<size_t>(c)] = e2m1(code) * scale;
    }
  }
  for (int c = quantised; c < shape.channels; ++c)
    put_bf16(shape.code == RecordCode::kBf16 ? record.codes : record.tails, c);
  if (shape.code == RecordCode::kFp8 && !record.tails.empty()) record.scales.resize(8, 0);
  return record;
}
inline void store_record(const RandomRecord& record, const RecordPlace& place,
                         std::vector<std::uint8_t>& memory, size_t base, std::int64_t slot) {
  const auto put = [&](const std::vector<std::uint8_t>& bytes, size_t offset, int row_bytes) {
    EXPECT_EQ(static_cast<int>(bytes.size()), row_bytes);
    std::memcpy(memory.data() + base + offset + static_cast<size_t>(slot * row_bytes), bytes.data(),
                bytes.size());
  };
  put(record.codes, place.code_offset, place.code_bytes);
  if (place.tail_bytes > 0) put(record.tails, place.tail_offset, place.tail_bytes);
  if (place.scale_bytes > 0) put(record.scales, place.scale_offset, place.scale_bytes);
}

// A sequence's part in a step. `id` names its contents.
struct SequenceSpec {
  std::uint64_t id = 0;
  std::int64_t start = 0;
  int tokens = 1;
  std::int64_t decoder_from = 0, window_floor = 0, decoder_window_floor = 0;
};

// (sequence id, position) of a row.
using RowName = std::pair<std::uint64_t, std::int64_t>;

// The step's numbers on the device. Sequence states and blocks are given as addresses.
class StepArrays {
 public:
  StepArrays(const std::vector<SequenceSpec>& specs, std::byte* state, size_t state_bytes,
             std::byte* block_memory, size_t block_bytes)
      : tables_(build(specs, state, state_bytes, block_memory, block_bytes)),
        counts_(tables_.counts),
        positions_(tables_.positions),
        sequence_of_(tables_.sequence_of),
        decoder_rows_(tables_.decoder_rows),
        sequences_(tables_.sequences),
        blocks_(tables_.blocks) {}

  StepData data() const {
    StepData step{};
    step.counts = counts_.data();
    step.positions = positions_.data();
    step.sequence_of = sequence_of_.data();
    step.decoder_rows = decoder_rows_.data();
    step.sequences = sequences_.data();
    step.blocks = blocks_.data();
    return step;
  }
  RowSpace rows(RowAxis axis, int spare) const {
    return {axis, axis == RowAxis::kTokens ? kTokenCount : kDecoderCount, 1,
            static_cast<int>(names(axis).size()) + spare};
  }
  const std::vector<RowName>& names(RowAxis axis) const {
    return axis == RowAxis::kTokens ? tables_.token_names : tables_.decoder_names;
  }

  static std::int64_t blocks_of(const SequenceSpec& spec) { return (spec.start + spec.tokens + 127) / 128; }

 private:
  struct Tables {
    std::vector<std::int32_t> counts, positions, sequence_of, decoder_rows;
    std::vector<SequenceData> sequences;
    std::vector<std::byte*> blocks;
    std::vector<RowName> token_names, decoder_names;
  };
  static Tables build(const std::vector<SequenceSpec>& specs, std::byte* state, size_t state_bytes,
                      std::byte* block_memory, size_t block_bytes) {
    Tables t;
    for (const SequenceSpec& spec : specs) {
      SequenceData data{};
      data.start = spec.start;
      data.decoder_from = spec.decoder_from;
      data.window_floor = spec.window_floor;
      data.decoder_window_floor = spec.decoder_window_floor;
      data.private_state = state + t.sequences.size() * state_bytes;
      data.first_token_row = static_cast<std::int32_t>(t.positions.size());
      data.tokens = spec.tokens;
      data.first_decoder_row = static_cast<std::int32_t>(t.decoder_rows.size());
      data.first_block = static_cast<std::int32_t>(t.blocks.size());
      data.blocks = static_cast<std::int32_t>(blocks_of(spec));
      for (int i = 0; i < spec.tokens; ++i) {
        const std::int64_t position = spec.start + i;
        if (position >= spec.decoder_from) {
          t.decoder_rows.push_back(static_cast<std::int32_t>(t.positions.size()));
          t.decoder_names.push_back({spec.id, position});
        }
        t.positions.push_back(static_cast<std::int32_t>(position));
        t.sequence_of.push_back(static_cast<std::int32_t>(t.sequences.size()));
        t.token_names.push_back({spec.id, position});
      }
      data.decoder_rows = static_cast<std::int32_t>(t.decoder_rows.size()) - data.first_decoder_row;
      // Block numbers run backwards, so that neighbours in a table are not neighbours in memory.
      for (std::int64_t b = 0; b < blocks_of(spec); ++b)
        t.blocks.push_back(block_memory +
                           static_cast<size_t>(data.first_block + blocks_of(spec) - 1 - b) * block_bytes);
      t.sequences.push_back(data);
    }
    t.counts.assign(kCounts, 0);
    t.counts[kTokenCount] = static_cast<std::int32_t>(t.positions.size());
    t.counts[kDecoderCount] = static_cast<std::int32_t>(t.decoder_rows.size());
    t.counts[kSequenceCount] = static_cast<std::int32_t>(t.sequences.size());
    return t;
  }

  Tables tables_;
  DeviceArray<std::int32_t> counts_, positions_, sequence_of_, decoder_rows_;
  DeviceArray<SequenceData> sequences_;
  DeviceArray<std::byte*> blocks_;
};

// Angles of the step's tokens [T, pairs].
inline std::vector<Angle> token_angles(const StepArrays& arrays, int pairs) {
  std::vector<Angle> angles;
  for (const RowName& name : arrays.names(RowAxis::kTokens))
    for (int pair = 0; pair < pairs; ++pair) {
      const double angle =
          static_cast<double>(name.second) * std::pow(10000.0, -static_cast<double>(pair) / pairs);
      angles.push_back({static_cast<float>(std::sin(angle)), static_cast<float>(std::cos(angle))});
    }
  return angles;
}

// Memory of a step: private areas and blocks, filled from the sequences' contents.
struct StepMemory {
  size_t state_bytes = 0, block_bytes = 0;
  std::vector<std::uint8_t> state, blocks;

  StepMemory(const std::vector<SequenceSpec>& specs, size_t state_size, size_t block_size)
      : state_bytes(state_size), block_bytes(block_size) {
    std::int64_t count = 0;
    for (const SequenceSpec& spec : specs)
      count += StepArrays::blocks_of(spec);
    // Poison: what is not written must not be read.
    state.assign(specs.size() * state_bytes, 0xff);
    blocks.assign(static_cast<size_t>(count) * block_bytes, 0xff);
  }
  // Writes row `row` of sequence number `sequence` whose first block is `first_block`, as StepArrays numbers blocks.
  void store_row(const RandomRecord& record, const RecordPlace& place, std::int64_t first_block,
                 std::int64_t blocks_of, std::int64_t row) {
    const std::int64_t block = first_block + blocks_of - 1 - row / place.rows;
    store_record(record, place, blocks, static_cast<size_t>(block) * block_bytes, row % place.rows);
  }
};

}  // namespace deepinfer::backend::cuda::test
