// A cluster of blocks samples a row, which stays in its shared memory: each warp has a segment of consecutive ids, and each value is
// read and written by one thread alone. What blocks tell each other are a few numbers: the highest logit, sums, ids.
//
// Sums have one order: a lane's values ascending, the lanes of a warp by a butterfly, then warps and blocks ascending. top_k and top_p
// are the same search: of the candidates the fewest, from the highest down, whose measure (1 or the weight) reaches a target. It
// finds the lowest logit that stays three bits at a time; a thread knows which of its values are still undecided.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/sampler.h"
#include "backend/cuda/kernels/common/shared_memory.cuh"
#include "base/math.h"

namespace deepinfer::backend::cuda {

namespace {

namespace groups = cooperative_groups;

constexpr int kBlocks = 8;  // of a cluster
constexpr int kThreads = 384;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksEach = 3;     // of a multiprocessor: one computes while another's logits come
constexpr int kChunk = 128;        // ids of a warp at a time, four a lane
constexpr int kInFlight = 6;       // chunks that a thread loads into registers at a time
constexpr int kFetched = 16;       // chunks on their way to shared memory at a time
constexpr int kFlaggedChunks = 8;  // whose values one word of flags covers
constexpr int kBounds = 7;         // of digits of three bits: 1 to 7
constexpr std::size_t kMostShared = 200 * 1024;

constexpr unsigned kAll = 0xffffffffu;
constexpr int kNoId = 0x7fffffff;

__host__ __device__ constexpr int segment_of(int vocab) {
  constexpr int kSegments = kBlocks * kWarps;
  return ((vocab + kSegments - 1) / kSegments + kChunk - 1) / kChunk * kChunk;
}
__host__ __device__ constexpr int flag_words_of(int segment) {
  return (segment / kChunk + kFlaggedChunks - 1) / kFlaggedChunks;
}
std::size_t shared_bytes(int vocab) {
  const int segment = segment_of(vocab);
  return sizeof(float) * static_cast<std::size_t>(kWarps) * static_cast<std::size_t>(segment) +
         sizeof(std::uint32_t) * kThreads * static_cast<std::size_t>(flag_words_of(segment));
}

__device__ inline float minus_infinity() {
  return __int_as_float(static_cast<int>(0xff800000u));
}

// NaN if either is.
__device__ inline float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Ascends with the value, equal where values are equal: -0 counts as 0.
__device__ inline std::uint32_t order_of(float value) {
  const std::uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits ^ ((bits & 0x80000000u) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float value_of(std::uint32_t order) {
  return __uint_as_float(order ^ ((order & 0x80000000u) != 0 ? 0x80000000u : 0xffffffffu));
}

// exp_exact's bits for x <= 0. Where the result is normal, its two factors are one sum of exponents, and one product is exact.
__device__ inline float exp_of_nonpositive(float x) {
  if (!(x > -86.0f)) return x < -104.0f ? 0.0f : exp_exact(x);
  const float t = __fadd_rn(__fmul_rn(x, kLog2E), kExpMagic);
  const float n = __fsub_rn(t, kExpMagic);
  const float a = __fmaf_rn(-n, kLn2High, x);
  const float c = __fmul_rn(n, kLn2Low);
  const float r = __fsub_rn(a, c);
  const float e = __fsub_rn(__fsub_rn(a, r), c);
  float q = __fadd_rn(__fmul_rn(kExpC4, r), kExpC3);
  q = __fadd_rn(__fmul_rn(q, r), kExpC2);
  q = __fadd_rn(__fmul_rn(q, r), kExpC1);
  q = __fadd_rn(__fmul_rn(q, r), kExpC0);
  const float p = __fadd_rn(1.0f, __fadd_rn(r, __fadd_rn(__fmul_rn(q, __fmul_rn(r, r)), e)));
  // The last bits of t are those of the integer that was added to the magic number, which ends in zeros.
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

// A logit's weight: exp((logit - top) / temperature), the argument in double rounded once.
class Weight {
 public:
  __device__ Weight(float top, double temperature)
      : top_(top),
        plain_(temperature == 1),
        divides_(!(temperature > 0x1p-1000 && temperature < 0x1p+1000)),
        temperature_(temperature),
        reciprocal_(1.0 / temperature) {}

  __device__ float operator()(float logit) const { return exp_of_nonpositive(scaled(logit)); }

 private:
  __device__ float scaled(float logit) const {
    // A difference of two floats rounded to double and then to float is the one rounded to float.
    if (plain_) return __fsub_rn(logit, top_);
    const double difference = __dsub_rn(static_cast<double>(logit), static_cast<double>(top_));
    if (!divides_) {
      // Within 3 units in the last place of the quotient: the same float, unless half way between two floats is as near.
      const double quotient = __dmul_rn(difference, reciprocal_);
      const std::uint32_t below = static_cast<std::uint32_t>(__double2loint(quotient)) & 0x1fffffffu;
      if (below - 0x0ffffff8u > 16u) return __double2float_rn(quotient);
    }
    return __double2float_rn(__ddiv_rn(difference, temperature_));
  }

  float top_;
  bool plain_, divides_;
  double temperature_, reciprocal_;
};

struct Shared {
  double slots[2][kBlocks][kBounds];  // what each block of the cluster gave; every second time the same
  double given[kBounds];              // what this block gives
  double warp_bounds[kWarps][kBounds];
  double warp_sums[kWarps];
  std::uint64_t warp_keys[kWarps];
  float warp_tops[kWarps];
  int warp_ids[kWarps];
};

__device__ inline double butterfly_sum(double value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kAll, value, offset);
  return value;
}
template <class T>
__device__ inline T scan_sum(T value, int lane) {
  for (int offset = 1; offset < 32; offset *= 2) {
    const T left = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += left;
  }
  return value;
}

// The first part whose end a draw does not reach, or the last that is not empty.
struct Place {
  int index = -1;
  double before = 0;  // the sum up to it
};
template <class Part>
__device__ inline Place place_of(double drawn, double before, int count, const Part& part) {
  Place place;
  for (int i = 0; i < count; ++i) {
    const double own = part(i);
    if (own > 0) {
      place = {i, before};
      if (drawn < before + own) break;
    }
    before += own;
  }
  return place;
}

using Gathered = const double (*)[kBounds];  // [kBlocks]

struct Sum {
  double before, total;  // of the blocks before this one, of the row
  Gathered blocks;       // until the gather after the next
};

// One row as a thread of its cluster sees it.
class Row {
 public:
  __device__ Row(float* values, std::uint32_t* undecided, int vocab, Shared& shared)
      : cluster_(groups::this_cluster()),
        shared_(shared),
        rank_(static_cast<int>(cluster_.block_rank())),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    const int segment = segment_of(vocab);
    const int first = (rank_ * kWarps + warp_) * segment;
    const int ids = max(0, min(segment, vocab - first));
    chunks_ = (ids + kChunk - 1) / kChunk;
    first_ = first + 4 * lane_;
    values_ = values + warp_ * segment + 4 * lane_;
    undecided_ = undecided + threadIdx.x;
  }

  // Takes the logits in; ids that do not exist or are never sampled get -inf. The highest of the warp, NaN if one is.
  __device__ float load(const float* logits, int vocab, const std::uint32_t* never) {
    const bool whole = is_whole(logits, vocab);
    float top = minus_infinity();
    for (int first = 0; first < chunks_; first += kFetched) {
      const int end = min(chunks_, first + kFetched);
      for (int c = first; c < end; ++c) {
        const int id = id_at(c);
        if (id >= vocab)
          at(c) = none();
        else if (whole)
          copy_async(at(c), logits + id);
        else
          at(c) = four(logits, id, vocab, false);
      }
      std::uint64_t removed = 0;  // four bits a chunk
#pragma unroll 4
      for (int c = first; c < end; ++c)
        removed |= static_cast<std::uint64_t>(removed_bits(never, id_at(c), vocab)) << (4 * (c - first));
      asm volatile("cp.async.wait_all;" ::: "memory");
      for (int c = first; c < end; ++c) {
        float4 value = at(c);
        const auto bits = static_cast<std::uint32_t>(removed >> (4 * (c - first))) & 15u;
        if (bits != 0) {
          remove(value, bits);
          at(c) = value;
        }
        top = max_or_nan(top, max_of(value));
      }
    }
    for (int offset = 16; offset > 0; offset /= 2)
      top = max_or_nan(top, __shfl_xor_sync(kAll, top, offset));
    return top;
  }

  // Answers a row whose highest logit is all that is asked for, without keeping it: of the highest the lowest id. What is not finite
  // is above everything.
  __device__ void answer_highest(const float* logits, int vocab, const std::uint32_t* never,
                                 Sampled& sampled) {
    const bool whole = is_whole(logits, vocab);
    float best = minus_infinity(), value = best;  // `value` as it is, `best` +inf for one that is not finite
    int best_id = kNoId;
    for (int c = 0; c < chunks_; c += kInFlight) {
      float4 loaded[kInFlight];
      std::uint32_t removed[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int id = id_at(c + i);
        const bool exists = c + i < chunks_ && id < vocab;
        loaded[i] = exists ? four(logits, id, vocab, whole) : none();
        removed[i] = exists ? removed_bits(never, id, vocab) : 0u;
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (removed[i] != 0) remove(loaded[i], removed[i]);
        if (max_of(loaded[i]) <= best) continue;
        const float in[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float own = in[j] == in[j] ? in[j] : -minus_infinity();
          if (own > best) best = own, value = in[j], best_id = id_at(c + i) + j;
        }
      }
    }
    const std::uint64_t own_key = best_id == kNoId ? 0
                                                   : static_cast<std::uint64_t>(order_of(best)) << 32 |
                                                         static_cast<std::uint32_t>(kNoId - best_id);
    std::uint64_t key = own_key;
    for (int offset = 16; offset > 0; offset /= 2)
      key = max(key, __shfl_xor_sync(kAll, key, offset));
    if (lane_ == 0) shared_.warp_keys[warp_] = key;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 1; warp < kWarps; ++warp)
        key = max(key, shared_.warp_keys[warp]);
      shared_.given[0] = __longlong_as_double(static_cast<long long>(key));
    }
    const Gathered blocks = gather(1);
    key = 0;
    for (int block = 0; block < kBlocks; ++block)
      key = max(key, static_cast<std::uint64_t>(__double_as_longlong(blocks[block][0])));
    Sampled answer;
    if (key == 0) {
      answer.outcome = SampleOutcome::kNoneLeft;
      answer.top = minus_infinity();
      if (rank_ == 0 && threadIdx.x == 0) sampled = answer;
      return;
    }
    if (own_key != key) return;
    if (best == -minus_infinity()) answer.outcome = SampleOutcome::kNotFinite;
    answer.id = best_id;
    answer.logit = answer.top = value;
    sampled = answer;
  }

  // The highest of the row from those of its warps.
  __device__ float highest(float warp_top) {
    if (lane_ == 0) shared_.warp_tops[warp_] = warp_top;
    __syncthreads();
    if (threadIdx.x == 0) {
      float top = shared_.warp_tops[0];
      for (int warp = 1; warp < kWarps; ++warp)
        top = max_or_nan(top, shared_.warp_tops[warp]);
      shared_.given[0] = static_cast<double>(top);
    }
    const Gathered blocks = gather(1);
    float top = static_cast<float>(blocks[0][0]);
    for (int block = 1; block < kBlocks; ++block)
      top = max_or_nan(top, static_cast<float>(blocks[block][0]));
    return top;
  }

  // Of the row's values that `wanted` takes, the one of the lowest id: only one thread gets true, with the id and the value.
  // `warp_has`: the warp may have one.
  template <class Wanted>
  __device__ bool first_of(bool warp_has, const Wanted& wanted, int& id, float& value) {
    id = kNoId;
    if (warp_has) {
      for (int c = chunks_ - 1; c >= 0; --c) {
        const float4 four = at(c);
        const float in[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 3; i >= 0; --i)
          if (wanted(in[i])) id = id_at(c) + i, value = in[i];
      }
    }
    const int of_warp = __reduce_min_sync(kAll, id);
    if (lane_ == 0) shared_.warp_ids[warp_] = of_warp;
    __syncthreads();
    if (threadIdx.x == 0) {
      int lowest = kNoId;
      for (int warp = 0; warp < kWarps; ++warp)
        lowest = min(lowest, shared_.warp_ids[warp]);
      shared_.given[0] = static_cast<double>(lowest);
    }
    const Gathered blocks = gather(1);
    double lowest = blocks[0][0];
    for (int block = 1; block < kBlocks; ++block)
      lowest = fmin(lowest, blocks[block][0]);
    return id != kNoId && static_cast<double>(id) == lowest;
  }

  // `kChanges`: the measure takes a reference, and what it leaves there stays.
  template <bool kChanges = false, class Measure>
  __device__ Sum sum_over(const Measure& measure) {
    double own = 0;
#pragma unroll 2
    for (int c = 0; c < chunks_; ++c) {
      float4 four = at(c);
      own += measure(four.x);
      own += measure(four.y);
      own += measure(four.z);
      own += measure(four.w);
      if constexpr (kChanges) at(c) = four;
    }
    own = butterfly_sum(own);
    __syncthreads();  // other warps may still read the sums before
    if (lane_ == 0) shared_.warp_sums[warp_] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
      double total = 0;
      for (int warp = 0; warp < kWarps; ++warp)
        total += shared_.warp_sums[warp];
      shared_.given[0] = total;
    }
    Sum sum{0, 0, gather(1)};
    for (int block = 0; block < kBlocks; ++block) {
      if (block == rank_) sum.before = sum.total;
      sum.total += sum.blocks[block][0];
    }
    return sum;
  }

  // Keeps the fewest values, from the highest down and of equal ones from the lowest id up, whose measure reaches `target`; all, if
  // it does not. measure > 0 for every value above -inf; 0 < target.
  template <class Measure>
  __device__ void keep_highest(const Measure& measure, double target) {
    begin_undecided();
    std::uint32_t lowest = 0;  // leading bits of the lowest that stays
    double above = 0;          // measure of the values that are above those
    for (int shift = 30; shift >= 0; shift -= 3) {
      sum_digits(measure, lowest, shift);
      const Gathered blocks = gather(kBounds);
      std::uint32_t digit = 0;
      double higher = 0;  // measure of larger digits
#pragma unroll 1
      for (int bound = kBounds - 1; bound >= 0; --bound) {
        double sum = 0;
        for (int block = 0; block < kBlocks; ++block)
          sum += blocks[block][bound];
        if (above + sum >= target) {
          digit = static_cast<std::uint32_t>(bound) + 1;
          break;
        }
        higher = sum;
      }
      above += higher;
      lowest = lowest << 3 | digit;
    }
    const Sum equal = sum_over([&](float value) { return order_of(value) == lowest ? 1.0 : 0.0; });
    int taken = static_cast<int>(equal.total);
    if (taken > 0) {
      const double each = measure(value_of(lowest));
      for (int least = 1; least < taken;) {
        const int middle = (least + taken) / 2;
        if (above + middle * each >= target)
          taken = middle;
        else
          least = middle + 1;
      }
    }
    double before = equal.before;
    for (int warp = 0; warp < warp_; ++warp)
      before += shared_.warp_sums[warp];
    keep_from(lowest, taken - static_cast<int>(before));
  }

  // Draws an id by its weight. In one thread of the row true, with the id and its logit.
  template <class Measure>
  __device__ bool draw(const Measure& weight, const Sum& sum, double uniform, int& id, float& value) const {
    const double drawn = __dmul_rn(uniform, sum.total);
    const Place block = place_of(drawn, 0.0, kBlocks, [&](int i) { return sum.blocks[i][0]; });
    if (block.index != rank_) return false;
    const Place warp = place_of(drawn, block.before, kWarps, [&](int i) { return shared_.warp_sums[i]; });
    if (warp.index != warp_) return false;
    double before = warp.before;
    int owner = 0;
    for (int c = 0; c < chunks_; ++c) {
      const float4 four = at(c);
      const double weights[4] = {weight(four.x), weight(four.y), weight(four.z), weight(four.w)};
      const double own = ((weights[0] + weights[1]) + weights[2]) + weights[3];
      const double up_to = scan_sum(own, lane_);
      const unsigned any = __ballot_sync(kAll, own > 0);
      const unsigned reached = __ballot_sync(kAll, own > 0 && drawn < before + up_to);
      const double left = __shfl_up_sync(kAll, up_to, 1);
      if (any != 0) {
        // The sums of a segment and of its chunks round differently: a draw past them takes the last candidate.
        owner = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : 31 - __clz(static_cast<int>(any));
        if (lane_ == owner) {
          const double start = lane_ == 0 ? before : before + left;
          const int i = place_of(drawn, start, 4, [&](int e) { return weights[e]; }).index;
          id = id_at(c) + i;
          value = i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
        }
      }
      if (reached != 0) break;
      before += __shfl_sync(kAll, up_to, 31);
    }
    return lane_ == owner;
  }

 private:
  __device__ float4& at(int chunk) const { return *reinterpret_cast<float4*>(values_ + chunk * kChunk); }
  __device__ int id_at(int chunk) const { return first_ + chunk * kChunk; }
  __device__ static bool is_whole(const float* logits, int vocab) {
    return vocab % 4 == 0 && reinterpret_cast<std::uintptr_t>(logits) % 16 == 0;
  }
  __device__ static void copy_async(float4& to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&to)), "l"(from)
                 : "memory");
  }
  // Which of ids id .. id + 3 are never sampled, a bit each.
  __device__ static std::uint32_t removed_bits(const std::uint32_t* never, int id, int vocab) {
    return id < vocab ? never[id / 32] >> (id % 32) & 15u : 0u;
  }
  __device__ static void remove(float4& value, std::uint32_t bits) {
    if (bits & 1u) value.x = minus_infinity();
    if (bits & 2u) value.y = minus_infinity();
    if (bits & 4u) value.z = minus_infinity();
    if (bits & 8u) value.w = minus_infinity();
  }
  __device__ static float max_of(const float4& value) {
    return max_or_nan(max_or_nan(value.x, value.y), max_or_nan(value.z, value.w));
  }
  __device__ static float4 none() {
    return {minus_infinity(), minus_infinity(), minus_infinity(), minus_infinity()};
  }
  __device__ static float4 four(const float* logits, int id, int vocab, bool whole) {
    if (whole) return __ldcs(reinterpret_cast<const float4*>(logits + id));
    float4 loaded = none();
    loaded.x = logits[id];
    if (id + 1 < vocab) loaded.y = logits[id + 1];
    if (id + 2 < vocab) loaded.z = logits[id + 2];
    if (id + 3 < vocab) loaded.w = logits[id + 3];
    return loaded;
  }

  // Gives shared.given[0, count) to all blocks of the cluster; what all of them gave.
  __device__ Gathered gather(int count) {
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kBlocks * count) {
      const int i = thread % count;
      *cluster_.map_shared_rank(&shared_.slots[turn_][rank_][i], static_cast<unsigned>(thread / count)) =
          shared_.given[i];
    }
    // A slot is written again two gathers later: its writer has then passed the barrier of the next one, which every
    // reader reaches only after it has read.
    cluster_.sync();
    const Gathered gathered = shared_.slots[turn_];
    turn_ ^= 1;
    return gathered;
  }

  // A flag a value: bit 4 (chunk % 8) + i of word chunk / 8.
  __device__ void begin_undecided() {
    for (int first = 0; first < chunks_; first += kFlaggedChunks) {
      std::uint32_t flags = 0;
      for (int c = first; c < min(chunks_, first + kFlaggedChunks); ++c) {
        const float4 four = at(c);
        const std::uint32_t own =
            (four.x > minus_infinity() ? 1u : 0u) | (four.y > minus_infinity() ? 2u : 0u) |
            (four.z > minus_infinity() ? 4u : 0u) | (four.w > minus_infinity() ? 8u : 0u);
        flags |= own << (4 * (c - first));
      }
      undecided_[first / kFlaggedChunks * kThreads] = flags;
    }
  }

  // Decides about values whose leading bits are not `prefix`, and puts the measures of the others into shared.given[b]: of those
  // whose next three bits (two at first) are more than b.
  template <class Measure>
  __device__ void sum_digits(const Measure& measure, std::uint32_t prefix, int shift) {
    double sums[kBounds] = {};
    bool any = false;
    for (int first = 0; first < chunks_; first += kFlaggedChunks) {
      std::uint32_t& flags = undecided_[first / kFlaggedChunks * kThreads];
      std::uint32_t kept = 0;
      for (std::uint32_t left = flags; left != 0; left &= left - 1) {
        const int bit = __ffs(static_cast<int>(left)) - 1;
        const float value = values_[(first + bit / 4) * kChunk + bit % 4];
        const std::uint32_t order = order_of(value);
        if (shift < 30 && order >> (shift + 3) != prefix) continue;
        kept |= 1u << bit;
        const int digit = static_cast<int>(order >> shift & 7u);
        const double own = measure(value);
#pragma unroll
        for (int bound = 0; bound < kBounds; ++bound)
          if (digit > bound) sums[bound] += own;
      }
      flags = kept;
      any = any || kept != 0;
    }
    if (__any_sync(kAll, any)) {
#pragma unroll
      for (int bound = 0; bound < kBounds; ++bound)
        sums[bound] = butterfly_sum(sums[bound]);
    }
    if (lane_ == 0) {
#pragma unroll
      for (int bound = 0; bound < kBounds; ++bound)
        shared_.warp_bounds[warp_][bound] = sums[bound];
    }
    __syncthreads();
    if (threadIdx.x < kBounds) {
      double total = 0;
      for (int warp = 0; warp < kWarps; ++warp)
        total += shared_.warp_bounds[warp][threadIdx.x];
      shared_.given[threadIdx.x] = total;
    }
  }

  // Removes values below `lowest`, and the warp's equal ones but the first `equal`, which may be less than none.
  __device__ void keep_from(std::uint32_t lowest, int equal) {
    for (int c = 0; c < chunks_; ++c) {
      float4& four = at(c);
      const std::uint32_t orders[4] = {order_of(four.x), order_of(four.y), order_of(four.z),
                                       order_of(four.w)};
      int own = 0;
#pragma unroll
      for (const std::uint32_t order : orders)
        own += order == lowest ? 1 : 0;
      int up_to = 0, all = 0;
      if (__any_sync(kAll, own != 0)) {
        up_to = scan_sum(own, lane_);
        all = __shfl_sync(kAll, up_to, 31);
      }
      int left = equal - (up_to - own);
      const auto stays = [&](std::uint32_t order) {
        return order > lowest || (order == lowest && left-- > 0);
      };
      if (!stays(orders[0])) four.x = minus_infinity();
      if (!stays(orders[1])) four.y = minus_infinity();
      if (!stays(orders[2])) four.z = minus_infinity();
      if (!stays(orders[3])) four.w = minus_infinity();
      equal -= all;
    }
  }

  groups::cluster_group cluster_;
  Shared& shared_;
  int rank_, warp_, lane_;
  int chunks_;  // of the warp's segment that have ids
  int first_;   // id of the thread's first value
  float* values_;
  std::uint32_t* undecided_;
  int turn_ = 0;
};

__device__ double count(float value) {
  return value > minus_infinity() ? 1.0 : 0.0;
}

// Answers one row, whose logits are in; `warp_top` is the highest of the warp's.
__device__ void answer_row(Row& row, const SampleRow& asked, float warp_top, Sampled& sampled) {
  const float top = row.highest(warp_top);

  Sampled answer;
  answer.top = top;
  const auto is_wrong = [](float value) { return !(value < -minus_infinity()); };
  if (is_wrong(top)) {
    answer.outcome = SampleOutcome::kNotFinite;
    if (row.first_of(is_wrong(warp_top), is_wrong, answer.id, answer.logit)) sampled = answer;
    return;
  }
  if (top == minus_infinity()) {
    answer.outcome = SampleOutcome::kNoneLeft;
    if (blockIdx.x % kBlocks == 0 && threadIdx.x == 0) sampled = answer;
    return;
  }
  const bool filters = asked.min_p > 0 || asked.top_k > 0 || asked.top_p < 1;
  const bool same_sum = asked.temperature == 1 && !filters;
  if (asked.wants_exp_sum != 0 && !same_sum)
    answer.exp_sum = row.sum_over([&](float value) {
                          return static_cast<double>(exp_of_nonpositive(__fsub_rn(value, top)));
                        })
                         .total;
  if (asked.temperature == 0) {
    if (row.first_of(
            warp_top == top, [&](float value) { return value == top; }, answer.id, answer.logit))
      sampled = answer;
    return;
  }
  const Weight weigh(top, asked.temperature);
  const auto weight = [&](float value) { return static_cast<double>(weigh(value)); };
  Sum sum;
  if (filters) {
    // In float: what is at least min_p is at least the next float from there up. A candidate's weight is not 0.
    const float least = fmaxf(__double2float_ru(asked.min_p), 0x1p-149f);
    sum = row.sum_over<true>([&](float& value) {
      const float own = weigh(value);
      if (own >= least) return static_cast<double>(own);
      value = minus_infinity();
      return 0.0;
    });
    if (asked.top_k > 0) {
      if (row.sum_over(count).total > asked.top_k) row.keep_highest(count, static_cast<double>(asked.top_k));
      sum = row.sum_over(weight);
    }
    if (asked.top_p < 1) {
      row.keep_highest(weight, __dmul_rn(asked.top_p, sum.total));
      sum = row.sum_over(weight);
    }
  } else {
    sum = row.sum_over(weight);
  }
  if (asked.wants_exp_sum != 0 && same_sum) answer.exp_sum = sum.total;
  if (row.draw(weight, sum, asked.uniform, answer.id, answer.logit)) sampled = answer;
}

// A cluster answers every gridDim / kBlocks-th row.
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kThreads, kBlocksEach)
    sample_kernel(StepData step, const float* logits, int vocab, const std::uint32_t* never,
                  Sampled* sampled) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared shared;
  wait_for_inputs();
  const int first = static_cast<int>(blockIdx.x) / kBlocks;
  const int count = step.counts[kSampleCount];
  if (first >= count) return;  // as does every block of the cluster
  // No block may write to another one's memory before that has started.
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  auto* const values = reinterpret_cast<float*>(dynamic);
  auto* const undecided = reinterpret_cast<std::uint32_t*>(values + kWarps * segment_of(vocab));
  Row row(values, undecided, vocab, shared);
  for (int index = first; index < count; index += static_cast<int>(gridDim.x) / kBlocks) {
    const SampleRow& asked = step.samples[index];
    const float* const own = logits + static_cast<std::int64_t>(asked.row) * vocab;
    const bool highest_only = asked.temperature == 0 && asked.wants_exp_sum == 0;
    const float warp_top = highest_only ? 0.0f : row.load(own, vocab, never);
    if (index == first) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    if (highest_only)
      row.answer_highest(own, vocab, never, sampled[index]);
    else
      answer_row(row, asked, warp_top, sampled[index]);
  }
}

}  // namespace

bool can_sample(int vocab) {
  return vocab >= 1 && shared_bytes(vocab) <= kMostShared;
}

void sample_rows(const StepData& step, int most, const float* logits, int vocab, const std::uint32_t* never,
                 Sampled* sampled, cudaStream_t stream) {
  const std::size_t shared = shared_bytes(vocab);
  (void)cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared));
  (void)cudaFuncSetAttribute(sample_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);  // for kBlocksEach
  // No more clusters than run at a time: each then has its share of rows, and waits for nothing between two.
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(kBlocks * most));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, sample_kernel, &config) != cudaSuccess || clusters < 1)
    clusters = most;  // the launch says what is wrong
  launch_chained(sample_kernel, dim3(static_cast<unsigned>(kBlocks * std::min(clusters, most))), kThreads,
                 shared, stream, step, logits, vocab, never, sampled);
}

}  // namespace deepinfer::backend::cuda
