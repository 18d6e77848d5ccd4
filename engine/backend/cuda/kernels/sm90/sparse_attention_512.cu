// Sparse attention on Hopper: one block takes one query's 64 heads at a time. Of its four warpgroups one decodes keys into shared
// memory, one makes logits and numerators, two hold the running sums of 256 channels each (docs/kernels/sparse_attention.md).
#include <algorithm>

#include "backend/cuda/kernels/common/attention_keys.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/sparse_attention.h"
#include "backend/cuda/kernels/sm90/warpgroup.cuh"

namespace deepinfer::backend::cuda {

namespace {

constexpr int kHeadsOfBlock = 64;
constexpr int kWarpgroup = 128;
constexpr int kThreads = 4 * kWarpgroup;
constexpr int kDecodeWarps = 4;
[[maybe_unused]] constexpr int kKeysOfWarp = kKeyTile / kDecodeWarps;
constexpr int kStages = 2;
constexpr int kWeightBytes = kKeyTile * kHeadsOfBlock * 2;

// 512 threads start with 128 registers each; the shares add up to that. The sums need more than 152.
[[maybe_unused]] constexpr int kSumRegisters = 160, kLogitRegisters = 80, kDecodeRegisters = 112;

struct Fused {
  SparseAttention attention;
  int groups;  // of 64 heads
  float factor;
};

struct SharedState {
  float bias[kStages][kKeyTile];         // 0, or -inf where an entry is no key
  float shrink[kStages][kHeadsOfBlock];  // of the tile's raised maximum
  float last[kHeadsOfBlock];             // last_factor of the query
  std::uint64_t keys_full[kStages], keys_free[kStages];
  std::uint64_t weights_full[kStages], weights_free[kStages];
  std::uint64_t query_full, query_free, last_full, last_free;
};

constexpr int kQueryOffset = kStages * kTileBytes;
constexpr int kWeightOffset = kQueryOffset + kTileBytes;
constexpr int kStateOffset = kWeightOffset + kStages * kWeightBytes;
constexpr int kSharedBytes = kStateOffset + static_cast<int>(sizeof(SharedState));

#if DEEPINFER_WARPGROUP

// Walks the work of a block: queries (and head groups) blockIdx.x, blockIdx.x + gridDim.x, ... The roles walk it in step.
struct Work {
  int index, end;
  int row, group;

  __device__ explicit Work(const Fused& fused)
      : index(static_cast<int>(blockIdx.x)),
        end(fused.attention.step.counts[fused.attention.queries.count] * fused.groups) {}
  __device__ bool take(const Fused& fused) {
    if (index >= end) return false;
    row = index / fused.groups;
    group = index - row * fused.groups;
    index += static_cast<int>(gridDim.x);
    return true;
  }
};

// A place in a ring of stages, and the parity of its barriers.
struct Stage {
  int index = 0;
  int parity = 0;
  __device__ void advance() {
    if (++index == kStages) index = 0, parity ^= 1;
  }
};

__device__ inline KeyPlace place_of_lane(const KeyPlace& mine, int lane) {
  KeyPlace place;
  place.base = reinterpret_cast<const std::uint8_t*>(
      __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(mine.base), lane));
  place.slot = __shfl_sync(0xffffffffu, mine.slot, lane);
  place.source = static_cast<KeySource>(__shfl_sync(0xffffffffu, static_cast<int>(mine.source), lane));
  return place;
}

// Decodes keys. A warp has 16 keys of a tile, a lane 16 channels of each.
struct Decoder {
  const Fused& fused;
  std::uint8_t* shared;
  SharedState& state;
  int warp, lane;
  bool swapped;
  Stage stage;

  // Where this lane's first chunk of the warp's key 0 lies; key k is 128 k further on, chunks exchanged by k % 8.
  __device__ std::uint32_t first_chunk() const {
    return warpgroup::shared_address(shared + stage.index * kTileBytes) +
           static_cast<std::uint32_t>(chunk_offset(warp * kKeysOfWarp, 2 * lane + swapped));
  }
  __device__ static void store_key(std::uint32_t first, int key, const uint4& one, const uint4& other) {
    const std::uint32_t at = (first ^ ((key & 7) << 4)) + key * 128;
    warpgroup::store_16(at, one);
    warpgroup::store_16(at ^ 16, other);
  }

  // FP4 codes of kAhead keys on their way.
  static constexpr int kAhead = 8;
  struct Fp4Keys {
    uint2 codes[kAhead];
    std::uint32_t scales[kAhead];
  };

  // Of `keys` keys that are NVFP4 records (at least one), the one at `key`; past them the last again.
  __device__ void load_fp4(const KeyPlace& mine, int keys, int key, uint2& codes,
                           std::uint32_t& scale) const {
    const RecordPlace& planes = fused.attention.rows.place;
    const KeyPlace place = place_of_lane(mine, key < keys ? key : keys - 1);
    codes = load_8(place.base + planes.code_offset +
                   static_cast<std::uint32_t>(place.slot * planes.code_bytes + lane * 8));
    scale = __ldg(place.base + planes.scale_offset +
                  static_cast<std::uint32_t>(place.slot * planes.scale_bytes + lane));
  }
  __device__ void load_fp4_tile(const KeyPlace& mine, int keys, Fp4Keys& ahead) const {
#pragma unroll
    for (int key = 0; key < kAhead; ++key)
      load_fp4(mine, keys, key, ahead.codes[key], ahead.scales[key]);
  }

  // Decodes a tile whose first eight keys of this warp are in `ahead`, and fetches the next tile's first eight (next_keys > 0).
  __device__ void fp4_tile(const KeyPlace& mine, int keys, const KeyPlace& next, int next_keys,
                           Fp4Keys& ahead) {
    warpgroup::barrier_wait(&state.keys_free[stage.index], stage.parity ^ 1);
    const std::uint32_t first = first_chunk();
#pragma unroll 1
    for (int done = 0; done < kKeysOfWarp; done += kAhead) {
      // What comes after: this tile's other keys, then the next tile's. At the end of a list nothing: loads that are not used.
      const bool onward = done > 0 && next_keys > 0;
      KeyPlace from = mine;
      if (onward) from = next;
      const int from_keys = onward ? next_keys : keys, from_first = done > 0 ? 0 : kAhead;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        // Without a scale, codes are zeros.
        const std::uint32_t factor = fp4_factor(done + i < keys ? ahead.scales[i] : 0);
        const uint2 codes = ahead.codes[i];
        const uint4 one = fp4_chunk(swapped ? codes.y : codes.x, factor);
        const uint4 other = fp4_chunk(swapped ? codes.x : codes.y, factor);
        load_fp4(from, from_keys, from_first + i, ahead.codes[i], ahead.scales[i]);
        store_key(first, done + i, one, other);
      }
    }
  }

  // Decodes the warp's keys [begin, end), all of one source and code; kBatch of them are on their way at a time.
  template <UnitCode kCode, int kBatch>
  __device__ void segment(const KeyPlace& mine, const Record& record, int begin, int end,
                          std::uint32_t first) const {
#pragma unroll 1
    for (; begin < end; begin += kBatch) {
      Unit units[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const KeyPlace place = place_of_lane(mine, begin + i < end ? begin + i : end - 1);
        UnitPlace from = {place.base + lane * 32, nullptr, kCode};
        if (place.source != KeySource::kStepRow) from = record_unit<kCode>(record, place, lane);
        units[i] = load_unit(from, swapped);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        uint4 one, other;
        decode_unit(units[i], swapped, one, other);
        if (begin + i < end) store_key(first, begin + i, one, other);
      }
    }
  }

  __device__ void any_tile(const KeyPlace& mine) {
    warpgroup::barrier_wait(&state.keys_free[stage.index], stage.parity ^ 1);
    const std::uint32_t first = first_chunk();
    // Sources follow each other in the list: ring, step, blocks, none.
#pragma unroll 1
    for (int begin = 0; begin < kKeysOfWarp;) {
      const auto source =
          static_cast<KeySource>(__shfl_sync(0xffffffffu, static_cast<int>(mine.source), begin));
      const std::uint32_t same =
          __ballot_sync(0xffffffffu, mine.source == source) & ((1u << kKeysOfWarp) - 1);
      const int end = 32 - __clz(same);
      const Record& record = source == KeySource::kRing ? fused.attention.ring : fused.attention.rows;
      if (source == KeySource::kNone) {
        for (int key = begin; key < end; ++key)
          store_key(first, key, {0, 0, 0, 0}, {0, 0, 0, 0});
      } else if (source == KeySource::kStepRow || record.shape.code == RecordCode::kBf16) {
        segment<UnitCode::kBf16, 4>(mine, record, begin, end, first);
      } else if (record.shape.code == RecordCode::kFp8) {
        segment<UnitCode::kFp8, 4>(mine, record, begin, end, first);
      } else {
        segment<UnitCode::kFp4, 4>(mine, record, begin, end, first);
      }
      begin = end;
    }
  }

  __device__ void finish_tile(const KeyPlace& mine) {
    if (lane < kKeysOfWarp)
      state.bias[stage.index][warp * kKeysOfWarp + lane] =
          mine.source == KeySource::kNone ? __int_as_float(0xff800000) : 0.0f;
    warpgroup::publish_writes();
    warpgroup::barrier_arrive(&state.keys_full[stage.index]);
    stage.advance();
  }

  // A quarter of the query is fetched before its place is free.
  __device__ void load_query(int row, int group, int parity) const {
    const SparseAttention& attention = fused.attention;
    constexpr int kChunks = kAttentionChannels / 8;
    constexpr int kBatch = 8;
    constexpr int kTotal = kHeadsOfBlock * kChunks / (kDecodeWarps * 32);
    const int first_head = group * kHeadsOfBlock;
    const auto* q = static_cast<const std::uint8_t*>(attention.q) +
                    (static_cast<std::int64_t>(row) * attention.heads + first_head) * (kChunks * 16);
    // Thread t has chunk t % 64 of heads t / 64, t / 64 + 2, ...
    const int thread = warp * 32 + lane, chunk = thread % kChunks;
    constexpr int kHeadStep = kDecodeWarps * 32 / kChunks;
    const auto fetch = [&](int i) {
      const int head = thread / kChunks + i * kHeadStep;
      uint4 value = {0, 0, 0, 0};
      if (first_head + head < attention.heads) value = load_16(q + (head * kChunks + chunk) * 16);
      return value;
    };
    const Angle* angles = angles_of(attention, attention.q_rotation, row);
    uint4 values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      values[i] = fetch(i);
    warpgroup::barrier_wait(&state.query_free, parity ^ 1);
    std::uint8_t* query = shared + kQueryOffset;
#pragma unroll 1
    for (int first = 0; first < kTotal; first += kBatch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int head = thread / kChunks + (first + i) * kHeadStep;
        *reinterpret_cast<uint4*>(query + chunk_offset(head, chunk)) =
            interleave_chunk(turned_chunk(values[i], chunk, angles, attention.q_rotation.inverse));
        if (first + kBatch < kTotal) values[i] = fetch(first + kBatch + i);
      }
    }
    warpgroup::publish_writes();
    warpgroup::barrier_arrive(&state.query_full);
  }

  __device__ void run() {
    Work work(fused);
    const SparseAttention& attention = fused.attention;
    const bool fp4 = attention.rows.shape.code == RecordCode::kNvfp4;
    int parity = 0;
    while (work.take(fused)) {
      const KeyList list = key_list(attention, work.row);
      const int tiles = list.tiles();
      // Lanes past the warp's keys follow the last of them.
      KeyStream stream(attention, list, warp * kKeysOfWarp + (lane < kKeysOfWarp ? lane : kKeysOfWarp - 1));
      // Rows are the end of the list, so a tile that begins past the window has nothing else.
      const auto fp4_keys = [&](int tile, const KeyPlace& places) {
        if (!fp4 || tile >= tiles || tile * kKeyTile < list.window_keys) return 0;
        return __popc(__ballot_sync(0xffffffffu, places.source == KeySource::kBlock) &
                      ((1u << kKeysOfWarp) - 1));
      };
      Fp4Keys ahead;
      int keys = fp4_keys(0, stream.place);
      if (keys > 0) load_fp4_tile(stream.place, keys, ahead);
      for (int tile = 0; tile < tiles; ++tile) {
        const KeyPlace mine = stream.place;
        stream.advance(attention, list);
        const int next_keys = fp4_keys(tile + 1, stream.place);
        if (keys > 0) {
          fp4_tile(mine, keys, stream.place, next_keys, ahead);
        } else {
          any_tile(mine);
          if (next_keys > 0) load_fp4_tile(stream.place, next_keys, ahead);
        }
        keys = next_keys;
        finish_tile(mine);
        if (tile == 0) load_query(work.row, work.group, parity);
      }
      parity ^= 1;
    }
  }
};

// Makes logits, keeps maxima and denominators, hands numerators and shrink factors on.
struct Weigher {
  const Fused& fused;
  std::uint8_t* shared;
  SharedState& state;
  int warp, lane;
  Stage stage;

  __device__ void logits_of(float (&logits)[32]) const {
    const auto query = warpgroup::rows_operand(warpgroup::shared_address(shared + kQueryOffset));
    const auto keys = warpgroup::rows_operand(warpgroup::shared_address(shared + stage.index * kTileBytes));
    warpgroup::pin(logits);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < kAttentionChannels / 16; ++step) {
      const std::uint32_t offset = step / 4 * kPanelBytes + step % 4 * 32;
      warpgroup::multiply_64x64(logits, query.at(offset), keys.at(offset), step != 0);
    }
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::pin(logits);
  }

  __device__ void weigh(float (&logits)[32], RunningSum (&running)[2]) {
    const float* bias = state.bias[stage.index];
    float upper = __int_as_float(0xff800000), lower = upper;
#pragma unroll
    for (int column = 0; column < 8; ++column) {
      const float2 both = *reinterpret_cast<const float2*>(bias + column * 8 + 2 * (lane % 4));
      logits[4 * column] += both.x, logits[4 * column + 1] += both.y;
      logits[4 * column + 2] += both.x, logits[4 * column + 3] += both.y;
      upper = fmaxf(upper, fmaxf(logits[4 * column], logits[4 * column + 1]));
      lower = fmaxf(lower, fmaxf(logits[4 * column + 2], logits[4 * column + 3]));
    }
    float shrink[2];
    shrink[0] = running[0].raise(quad_largest(upper), fused.factor);
    shrink[1] = running[1].raise(quad_largest(lower), fused.factor);
    warpgroup::barrier_wait(&state.weights_free[stage.index], stage.parity ^ 1);
    const int row = warp * 16 + lane / 4;
    if (lane % 4 == 0) {
      state.shrink[stage.index][row] = shrink[0];
      state.shrink[stage.index][row + 8] = shrink[1];
    }
    std::uint8_t* weights = shared + kWeightOffset + stage.index * kWeightBytes + (lane % 4) * 4;
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int column = 0; column < 8; ++column) {
      const float a = running[0].numerator(logits[4 * column], fused.factor);
      const float b = running[0].numerator(logits[4 * column + 1], fused.factor);
      const float c = running[1].numerator(logits[4 * column + 2], fused.factor);
      const float d = running[1].numerator(logits[4 * column + 3], fused.factor);
      sums[0] = __fadd_rn(__fadd_rn(sums[0], a), b);
      sums[1] = __fadd_rn(__fadd_rn(sums[1], c), d);
      *reinterpret_cast<std::uint32_t*>(weights + chunk_offset(row, column)) = pack_bf16(a, b);
      *reinterpret_cast<std::uint32_t*>(weights + chunk_offset(row + 8, column)) = pack_bf16(c, d);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      running[half].denominator = __fmaf_rn(running[half].denominator, shrink[half], sums[half]);
    warpgroup::publish_writes();
    warpgroup::barrier_arrive(&state.weights_full[stage.index]);
  }

  __device__ void run() {
    Work work(fused);
    int parity = 0;
    while (work.take(fused)) {
      const int tiles = key_list(fused.attention, work.row).tiles();
      RunningSum running[2];
      for (int tile = 0; tile < tiles; ++tile) {
        if (tile == 0) warpgroup::barrier_wait(&state.query_full, parity);
        warpgroup::barrier_wait(&state.keys_full[stage.index], stage.parity);
        float logits[32];
        logits_of(logits);
        if (tile + 1 == tiles) warpgroup::barrier_arrive(&state.query_free);
        weigh(logits, running);
        stage.advance();
      }
      warpgroup::barrier_wait(&state.last_free, parity ^ 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + lane / 4 + 8 * half;
        const int head = work.group * kHeadsOfBlock + row;
        const float sink = head < fused.attention.heads ? fused.attention.sinks[head] : 0.0f;
        const float last =
            last_factor(quad_sum(running[half].denominator), running[half].largest, fused.factor, sink);
        if (lane % 4 == 0) state.last[row] = last;
      }
      warpgroup::barrier_arrive(&state.last_full);
      parity ^= 1;
    }
  }
};

// Lane q of a quad holds word q of four chunks; afterwards all four words of chunk q.
__device__ inline void transpose_quad(std::uint32_t (&words)[4], int lane) {
  const bool odd = (lane & 1) != 0, upper = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t given = __shfl_xor_sync(0xffffffffu, odd ? words[i] : words[i + 1], 1);
    words[i] = odd ? given : words[i];
    words[i + 1] = odd ? words[i + 1] : given;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t given = __shfl_xor_sync(0xffffffffu, upper ? words[i] : words[i + 2], 2);
    words[i] = upper ? given : words[i];
    words[i + 2] = upper ? words[i + 2] : given;
  }
}

// Keeps the sums of 64 heads x 256 channels.
struct Summer {
  const Fused& fused;
  std::uint8_t* shared;
  SharedState& state;
  int warp, lane, half;  // half of the channels
  Stage stage;

  __device__ void add_tile(float (&sums)[2][64]) {
    const int row = warp * 16 + lane / 4;
    const float upper = state.shrink[stage.index][row], lower = state.shrink[stage.index][row + 8];
    // Multiplying by one changes nothing, so leaving it out does not either.
    if (__any_sync(0xffffffffu, upper != 1.0f || lower != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 128; i += 4) {
        float* four = sums[i / 64] + i % 64;
        four[0] *= upper, four[1] *= upper;
        four[2] *= lower, four[3] *= lower;
      }
    }
    const auto weights = warpgroup::rows_operand(
        warpgroup::shared_address(shared + kWeightOffset + stage.index * kWeightBytes));
    const auto keys = warpgroup::columns_operand(
        warpgroup::shared_address(shared + stage.index * kTileBytes + half * (kTileBytes / 2)), kPanelBytes);
    warpgroup::pin(sums[0]);
    warpgroup::pin(sums[1]);
    warpgroup::arrive();
#pragma unroll
    for (int step = 0; step < kKeyTile / 16; ++step)
#pragma unroll
      for (int part = 0; part < 2; ++part)
        warpgroup::multiply_values_64x128(sums[part], weights.at(step * 32),
                                          keys.at(part * 2 * kPanelBytes + step * 2048), 1);
    warpgroup::commit();
    warpgroup::wait<0>();
    warpgroup::pin(sums[0]);
    warpgroup::pin(sums[1]);
    warpgroup::barrier_arrive(&state.keys_free[stage.index]);
    warpgroup::barrier_arrive(&state.weights_free[stage.index]);
    stage.advance();
  }

  __device__ void write(const float (&sums)[2][64], int row, int group, const float (&last)[2]) const {
    auto* o = static_cast<std::uint8_t*>(fused.attention.o);
    const Angle* angles = angles_of(fused.attention, fused.attention.o_rotation, row);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int head = group * kHeadsOfBlock + warp * 16 + lane / 4 + 8 * side;
      const bool real = head < fused.attention.heads;
      std::uint8_t* out =
          o + ((static_cast<std::int64_t>(row) * fused.attention.heads + head) * kAttentionChannels +
               half * 256) *
                  2;
#pragma unroll
      for (int chunk = 0; chunk < 32; chunk += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (chunk + i) * 4 + 2 * side;
          const float* both = sums[at / 64] + at % 64;
          words[i] = pack_bf16(__fmul_rn(both[0], last[side]), __fmul_rn(both[1], last[side]));
        }
        transpose_quad(words, lane);
        if (real)
          *reinterpret_cast<uint4*>(out + (chunk + lane % 4) * 16) =
              turned_chunk(natural_chunk({words[0], words[1], words[2], words[3]}),
                           half * 32 + chunk + lane % 4, angles, fused.attention.o_rotation.inverse);
      }
    }
  }

  __device__ void run() {
    Work work(fused);
    int parity = 0;
    while (work.take(fused)) {
      const int tiles = key_list(fused.attention, work.row).tiles();
      float sums[2][64];
#pragma unroll
      for (int i = 0; i < 128; ++i)
        sums[i / 64][i % 64] = 0.0f;
      for (int tile = 0; tile < tiles; ++tile) {
        warpgroup::barrier_wait(&state.weights_full[stage.index], stage.parity);
        add_tile(sums);
      }
      warpgroup::barrier_wait(&state.last_full, parity);
      const float last[2] = {state.last[warp * 16 + lane / 4], state.last[warp * 16 + lane / 4 + 8]};
      warpgroup::barrier_arrive(&state.last_free);
      write(sums, work.row, work.group, last);
      parity ^= 1;
    }
  }
};

#endif  // DEEPINFER_WARPGROUP

__global__ void __launch_bounds__(kThreads, 1) fused_kernel(__grid_constant__ const Fused fused) {
#if DEEPINFER_WARPGROUP
  extern __shared__ __align__(1024) std::uint8_t shared[];
  SharedState& state = *reinterpret_cast<SharedState*>(shared + kStateOffset);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      warpgroup::barrier_init(&state.keys_full[i], kDecodeWarps * 32);
      warpgroup::barrier_init(&state.keys_free[i], 2 * kWarpgroup);
      warpgroup::barrier_init(&state.weights_full[i], kWarpgroup);
      warpgroup::barrier_init(&state.weights_free[i], 2 * kWarpgroup);
    }
    warpgroup::barrier_init(&state.query_full, kDecodeWarps * 32);
    warpgroup::barrier_init(&state.query_free, kWarpgroup);
    warpgroup::barrier_init(&state.last_full, kWarpgroup);
    warpgroup::barrier_init(&state.last_free, 2 * kWarpgroup);
  }
  warpgroup::publish_writes();
  __syncthreads();
  wait_for_inputs();
  const int role = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (role < 2) {
    warpgroup::take_registers<kSumRegisters>();
    Summer{fused, shared, state, warp, lane, role, {}}.run();
  } else if (role == 2) {
    warpgroup::give_registers<kLogitRegisters>();
    Weigher{fused, shared, state, warp, lane, {}}.run();
  } else {
    warpgroup::give_registers<kDecodeRegisters>();
    Decoder{fused, shared, state, warp, lane, ((lane >> 2) & 1) != 0, {}}.run();
  }
#endif
}

}  // namespace

cudaError_t launch_fused_attention(const SparseAttention& attention, int multiprocessors,
                                   cudaStream_t stream) {
  if (attention.heads < 1 || attention.heads > kMostAttentionHeads || attention.window < 1 ||
      multiprocessors < 1)
    return cudaErrorInvalidValue;
  const cudaError_t error =
      cudaFuncSetAttribute(fused_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  Fused fused;
  fused.attention = attention;
  fused.groups = (attention.heads + kHeadsOfBlock - 1) / kHeadsOfBlock;
  fused.factor = attention.scale * kKeyUnit * kLogTwoE;
  const int blocks = std::min(attention.queries.most * fused.groups, multiprocessors);
  launch_chained(fused_kernel, dim3(static_cast<unsigned>(blocks)), kThreads, kSharedBytes, stream, fused);
  return cudaGetLastError();
}

}  // namespace deepinfer::backend::cuda
