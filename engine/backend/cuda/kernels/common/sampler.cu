// A cluster of blocks samples a row, which stays in its shared memory: each warp has a segment of consecutive ids, and each value is
// read and written by one thread alone. What blocks tell each other are a few numbers: the highest logit, sums, ids.
//
// Sums have one order: a lane's values ascending, the lanes of a warp by a butterfly, then warps and blocks ascending. top_k and top_p
// are the same search: of the candidates the fewest, from the highest down, whose measure (1 or the weight) reaches a target. It
// counts values in bins, whose weights have bounds, and looks closer at the bins that may hold the lowest value that stays.
#include <cooperative_groups.h>

#include <algorithm>

#include "backend/cuda/kernels/common/device.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/sample_row.cuh"
#include "backend/cuda/kernels/common/sample_weights.cuh"
#include "backend/cuda/kernels/common/sampler.h"
#include "backend/cuda/kernels/common/shared_memory.cuh"

namespace deepinfer::backend::cuda {

namespace {

namespace groups = cooperative_groups;

constexpr int kBlocks = 8;  // of a cluster
constexpr int kThreads = 384;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksEach = 3;       // of a multiprocessor: one computes while another's logits come
constexpr int kChunk = 128;          // ids of a warp at a time, four a lane
constexpr int kFetched = 16;         // chunks on their way to shared memory at a time
constexpr int kBins = 2 * kThreads;  // of a level of the search, two a thread
constexpr std::size_t kMostShared = 200 * 1024;

constexpr unsigned kAll = 0xffffffffu;

__host__ __device__ constexpr int segment_of(int vocab) {
  constexpr int kSegments = kBlocks * kWarps;
  return ((vocab + kSegments - 1) / kSegments + kChunk - 1) / kChunk * kChunk;
}

std::size_t shared_bytes(int vocab) {
  return sizeof(float) * static_cast<std::size_t>(kWarps) * static_cast<std::size_t>(segment_of(vocab));
}

// Bins of the first level of a search: by how far a logit is below the highest, in units of the temperature, so that the weights
// of a bin are near each other. Bin 0 is the highest.
constexpr int kWideBins = 128;                  // past kNarrow
constexpr float kNarrow = 16.0f, kWide = 0.7f;  // where they begin, and how wide they are: up to 105
constexpr float kNarrowBins = (kBins - kWideBins) / kNarrow;  // of a unit
constexpr double kFloatError =
    1e-6;  // more than what the operations of distance_bin round, relative to the distance
constexpr double kWeightError = 1e-4;  // more than what that makes of a weight

__device__ inline int distance_bin(float logit, float top, float reciprocal) {
  const float distance = __fmul_rn(__fsub_rn(top, logit), reciprocal);
  if (distance < kNarrow)
    return min(static_cast<int>(__fmul_rn(distance, kNarrowBins)), kBins - kWideBins - 1);
  const float past = __fmul_rn(__fsub_rn(distance, kNarrow), 1.0f / kWide);
  return kBins - kWideBins + static_cast<int>(fminf(past, kWideBins - 1.0f));
}
// Where a bin begins; that of kBins is where the last one ends, though values past it are counted there.
__device__ inline float bin_begin(int bin) {
  constexpr int kFirstWide = kBins - kWideBins;
  return bin < kFirstWide ? static_cast<float>(bin) / kNarrowBins
                          : kNarrow + static_cast<float>(bin - kFirstWide) * kWide;
}

struct Shared {
  double slots[2][kBlocks];  // what each block of the cluster gave; every second time the same
  double given;              // what this block gives
  double warp_sums[kWarps];
  double warp_bounds[2][kWarps];
  double found_before;
  std::uint32_t counts[2][kThreads];  // of bins, two a word: one level's while the next one's are cleared
  std::uint32_t found_count;
  int reached[2];  // first bins at whose end the target may be reached, and is
  int last;        // bin that is not empty
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

using Gathered = const double*;  // [kBlocks]

struct Sum {
  double before, total;  // of the blocks before this one, of the row
  Gathered blocks;       // until the gather after the next
};

// What a search knows: the lowest value that stays has an order in [low, high]; `above` is the measure of values above `decided`,
// which is high or more.
struct Search {
  std::uint32_t low, high, decided;
  double above;
};
enum class Level { kByDistance, kByOrder, kSumOnly };

// One row as a thread of its cluster sees it.
class Row {
 public:
  __device__ Row(float* values, int vocab, Shared& shared)
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
    shared_.counts[0][threadIdx.x] = shared_.counts[1][threadIdx.x] = 0;
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
          at(c) = no_logits();
        else if (whole)
          copy_async(at(c), logits + id);
        else
          at(c) = four_logits(logits, id, vocab, false);
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

  // The highest of the row from those of its warps.
  __device__ float highest(float warp_top) {
    if (lane_ == 0) shared_.warp_tops[warp_] = warp_top;
    __syncthreads();
    if (threadIdx.x == 0) {
      float top = shared_.warp_tops[0];
      for (int warp = 1; warp < kWarps; ++warp)
        top = max_or_nan(top, shared_.warp_tops[warp]);
      shared_.given = static_cast<double>(top);
    }
    const Gathered blocks = gather();
    float top = static_cast<float>(blocks[0]);
    for (int block = 1; block < kBlocks; ++block)
      top = max_or_nan(top, static_cast<float>(blocks[block]));
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
      shared_.given = static_cast<double>(lowest);
    }
    const Gathered blocks = gather();
    double lowest = blocks[0];
    for (int block = 1; block < kBlocks; ++block)
      lowest = fmin(lowest, blocks[block]);
    return id != kNoId && static_cast<double>(id) == lowest;
  }

  // The sum of the weights; values of a weight below `least` are removed.
  __device__ Sum sum_weights(const Weight& weigh, float least) {
    double own = 0;
#pragma unroll 1
    for (int c = 0; c < chunks_; ++c) {
      float weights[4];
      float4 four = at(c);
      weigh.four(four, weights);
      if (least > 0) {
        if (weights[0] < least) four.x = minus_infinity(), weights[0] = 0;
        if (weights[1] < least) four.y = minus_infinity(), weights[1] = 0;
        if (weights[2] < least) four.z = minus_infinity(), weights[2] = 0;
        if (weights[3] < least) four.w = minus_infinity(), weights[3] = 0;
        at(c) = four;
      }
#pragma unroll
      for (const float weight : weights)
        own += static_cast<double>(weight);
    }
    return sum_of(own);
  }

  // Keeps the fewest values, from the highest down and of equal ones from the lowest id up, whose measure reaches `target`; all, if
  // it does not. The measure is 1 or, if `weighted`, the weight; every value above -inf has a weight above 0; 0 < target.
  __device__ void keep_highest(const Weight& weigh, bool weighted, double target) {
    constexpr std::uint32_t kLowestOrder = 0x00800000u;  // of a finite value
    const double temperature = weigh.temperature();
    // A weight above 0 is of a logit less than 104 temperatures below the highest.
    Search search = {
        max(kLowestOrder, order_of(__double2float_rd(static_cast<double>(weigh.top()) - 105 * temperature))),
        order_of(weigh.top()), kAll, 0.0};
    Level level = temperature > 1e-20 && temperature < 1e20 ? Level::kByDistance : Level::kByOrder;
    int shift = 0, bin = 0;
#pragma unroll 1
    while (true) {
      if (level == Level::kByOrder) shift = shift_of(search.high - search.low);
      Search looked = search;
      if (level == Level::kSumOnly) looked.high = search.low + (search.high - search.low) / 2;
      const Sum newly = sum_of(visit(weigh, weighted, looked, level, shift));
      if (level == Level::kSumOnly) {
        level = Level::kByOrder;
        if (search.above + newly.total >= target)
          search.low = looked.high + 1;
        else
          search = {search.low, looked.high, looked.high, search.above + newly.total};
        continue;
      }
      if (level == Level::kByOrder) search.above += newly.total, search.decided = search.high;
      const bool exact = level == Level::kByOrder && shift == 0;
      find_bins(weigh, weighted, search, level, shift, target);
      const int last = shared_.last;
      if (!weighted && shared_.reached[1] > last) return;  // fewer than are wanted
      bin = min(shared_.reached[1], last);
      const int first = min(shared_.reached[0], bin);
      if (exact) break;
      // Where bounds say little, the range is halved by a sum.
      level = narrow(weigh, search, level, shift, first, bin) ? Level::kSumOnly : Level::kByOrder;
    }
    const std::uint32_t lowest = search.high - static_cast<std::uint32_t>(bin);
    const float value = value_of(lowest);
    float weights[4] = {1, 1, 1, 1};
    if (weighted) weigh.four({value, value, value, value}, weights);
    const int equal = static_cast<int>(shared_.found_count);
    int taken = equal;
    for (int least = 1; least < taken;) {
      const int middle = (least + taken) / 2;
      if (shared_.found_before + middle * static_cast<double>(weights[0]) >= target)
        taken = middle;
      else
        least = middle + 1;
    }
    keep_from(lowest, taken == equal ? taken : taken - equals_before(lowest));
  }

  // Draws an id by its weight. In one thread of the row true, with the id and its logit.
  __device__ bool draw(const Weight& weigh, const Sum& sum, double uniform, int& id, float& value) const {
    const double drawn = __dmul_rn(uniform, sum.total);
    const Place block = place_of(drawn, 0.0, kBlocks, [&](int i) { return sum.blocks[i]; });
    if (block.index != rank_) return false;
    const Place warp = place_of(drawn, block.before, kWarps, [&](int i) { return shared_.warp_sums[i]; });
    if (warp.index != warp_) return false;
    double before = warp.before;
    int owner = 0;
    for (int c = 0; c < chunks_; ++c) {
      const float4 four = at(c);
      float weights[4];
      weigh.four(four, weights);
      const double own = ((static_cast<double>(weights[0]) + static_cast<double>(weights[1])) +
                          static_cast<double>(weights[2])) +
                         static_cast<double>(weights[3]);
      const double up_to = scan_sum(own, lane_);
      const unsigned any = __ballot_sync(kAll, own > 0);
      const unsigned reached = __ballot_sync(kAll, own > 0 && drawn < before + up_to);
      const double left = __shfl_up_sync(kAll, up_to, 1);
      if (any != 0) {
        // The sums of a segment and of its chunks round differently: a draw past them takes the last candidate.
        owner = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : 31 - __clz(static_cast<int>(any));
        if (lane_ == owner) {
          const double start = lane_ == 0 ? before : before + left;
          const int i =
              place_of(drawn, start, 4, [&](int e) { return static_cast<double>(weights[e]); }).index;
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
  __device__ static void copy_async(float4& to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&to)), "l"(from)
                 : "memory");
  }

  // Gives shared.given to all blocks of the cluster; what all of them gave.
  __device__ Gathered gather() {
    __syncthreads();
    if (threadIdx.x < kBlocks)
      *cluster_.map_shared_rank(&shared_.slots[turn_][rank_], threadIdx.x) = shared_.given;
    // A slot is written again two gathers later: its writer has then passed the barrier of the next one, which every
    // reader reaches only after it has read.
    cluster_.sync();
    const Gathered gathered = shared_.slots[turn_];
    turn_ ^= 1;
    return gathered;
  }

  __device__ Sum sum_of(double own) {
    own = butterfly_sum(own);
    __syncthreads();  // other warps may still read the sums before
    if (lane_ == 0) shared_.warp_sums[warp_] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
      double total = 0;
      for (int warp = 0; warp < kWarps; ++warp)
        total += shared_.warp_sums[warp];
      shared_.given = total;
    }
    Sum sum{0, 0, gather()};
    for (int block = 0; block < kBlocks; ++block) {
      if (block == rank_) sum.before = sum.total;
      sum.total += sum.blocks[block];
    }
    return sum;
  }

  // The fewest bits that orders must lose for a range of them to have no more than kBins.
  __device__ static int shift_of(std::uint32_t range) {
    const int shift = max(0, 32 - __clz(static_cast<int>(range)) - 10);
    return shift + ((range >> shift) >= kBins ? 1 : 0);
  }

  // Counts values between low and high in the level's bins, from the highest down. The measure of this thread's values above high
  // that were not decided before.
  __device__ double visit(const Weight& weigh, bool weighted, const Search& search, Level level, int shift) {
    std::uint32_t* const counts = shared_.counts[level_];
    const auto add = [&](int bin) { atomicAdd(&counts[bin / 2], 1u << (16 * (bin % 2))); };
    const float reciprocal = static_cast<float>(1.0 / weigh.temperature());
    double own = 0;
#pragma unroll 1
    for (int c = 0; c < chunks_; ++c) {
      const float4 four = at(c);
      const float in[4] = {four.x, four.y, four.z, four.w};
      if (level == Level::kByDistance) {
#pragma unroll
        for (const float value : in)
          if (value > minus_infinity()) add(distance_bin(value, weigh.top(), reciprocal));
        continue;
      }
      bool any = false;
      float newly[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t order = order_of(in[i]);
        if (level == Level::kByOrder && order - search.low <= search.high - search.low)
          add(static_cast<int>((search.high - order) >> shift));
        const bool is_new = order > search.high && order <= search.decided;
        newly[i] = is_new ? in[i] : minus_infinity();
        any = any || is_new;
      }
      if (!any) continue;
      float weights[4];
      if (weighted)
        weigh.four({newly[0], newly[1], newly[2], newly[3]}, weights);
      else
#pragma unroll
        for (int i = 0; i < 4; ++i)
          weights[i] = newly[i] > minus_infinity() ? 1.0f : 0.0f;
#pragma unroll
      for (const float weight : weights)
        own += static_cast<double>(weight);
    }
    return own;
  }

  // After visit() and a gather: shared.reached, .last, and, where bins are single values, .found_before and .found_count of bin
  // min(reached[1], last). The same in every block.
  __device__ void find_bins(const Weight& weigh, bool weighted, const Search& search, Level level, int shift,
                            double target) {
    const int first = 2 * static_cast<int>(threadIdx.x);
    std::uint32_t counts[2] = {0, 0};
#pragma unroll
    for (unsigned block = 0; block < kBlocks; ++block) {
      const std::uint32_t both = cluster_.map_shared_rank(shared_.counts[level_], block)[threadIdx.x];
      counts[0] += both & 0xffffu;
      counts[1] += both >> 16;
    }
    // Of the next level; what it had been filled with was read before the gather.
    level_ ^= 1;
    shared_.counts[level_][threadIdx.x] = 0;

    double bounds[2][2];  // of each bin: what its measure is at most, at least
    bin_bounds(weigh, weighted, search, level, shift, counts, bounds);
    double before[2], scanned[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scanned[i] = scan_sum(bounds[0][i] + bounds[1][i], lane_);
      const double left = __shfl_up_sync(kAll, scanned[i], 1);
      before[i] = lane_ == 0 ? 0.0 : left;
      if (lane_ == 31) shared_.warp_bounds[i][warp_] = scanned[i];
    }
    if (threadIdx.x == 0) shared_.reached[0] = shared_.reached[1] = kNoId, shared_.last = 0;
    __syncthreads();
    const int last = counts[1] > 0 ? first + 1 : counts[0] > 0 ? first : 0;
    if (const int of_warp = __reduce_max_sync(kAll, last); lane_ == 0) atomicMax(&shared_.last, of_warp);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      double base = search.above;
      for (int warp = 0; warp < warp_; ++warp)
        base += shared_.warp_bounds[i][warp];
      before[i] += base;
      const bool at_first = counts[0] > 0 && before[i] + bounds[0][i] >= target;
      const bool at_second = counts[1] > 0 && before[i] + (bounds[0][i] + bounds[1][i]) >= target;
      const int reached = __reduce_min_sync(kAll, at_first ? first : at_second ? first + 1 : kNoId);
      if (lane_ == 0 && reached != kNoId) atomicMin(&shared_.reached[i], reached);
    }
    __syncthreads();
    const int found = min(shared_.reached[1], shared_.last);
    if (found / 2 == static_cast<int>(threadIdx.x)) {
      shared_.found_before = before[1] + (found == first ? 0.0 : bounds[0][1]);
      shared_.found_count = found == first ? counts[0] : counts[1];
    }
    __syncthreads();
  }

  __device__ void bin_bounds(const Weight& weigh, bool weighted, const Search& search, Level level, int shift,
                             const std::uint32_t (&counts)[2], double (&bounds)[2][2]) const {
    const int first = 2 * static_cast<int>(threadIdx.x);
    float weights[4] = {1, 1, 1, 1};  // the highest and the lowest of each bin
    double error = 0;
    if (weighted && level == Level::kByDistance) {
      error = kWeightError;
      weights[0] = -bin_begin(first), weights[1] = weights[2] = -bin_begin(first + 1);
      weights[3] = first + 2 == kBins ? minus_infinity() : -bin_begin(first + 2);
      exp_of_nonpositive(weights);
    } else if (weighted) {
      if (shift > 0) error = kFloatError;
      float edges[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Bins that do not exist have no values.
        const std::uint32_t highest =
            counts[i] == 0 ? search.high : search.high - (static_cast<std::uint32_t>(first + i) << shift);
        const std::uint32_t width = min(highest - search.low, (1u << shift) - 1);
        edges[2 * i] = value_of(highest), edges[2 * i + 1] = value_of(highest - width);
      }
      weigh.four({edges[0], edges[1], edges[2], edges[3]}, weights);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bounds[i][0] = counts[i] * (static_cast<double>(weights[2 * i]) * (1 + error));
      bounds[i][1] = counts[i] * (static_cast<double>(weights[2 * i + 1]) * (1 - error));
    }
  }

  // Narrows [low, high] to bins first .. last of the level; whether another level of the same kind might not get much further.
  __device__ static bool narrow(const Weight& weigh, Search& search, Level level, int shift, int first,
                                int last) {
    if (level == Level::kByDistance) {
      const double top = static_cast<double>(weigh.top());
      const double begin = weigh.temperature() * static_cast<double>(bin_begin(first));
      const double end = weigh.temperature() * static_cast<double>(bin_begin(last + 1));
      search.high = min(search.high, order_of(__double2float_ru(top - begin * (1 - kFloatError))));
      if (last + 1 < kBins)
        search.low = max(search.low, order_of(__double2float_rd(top - end * (1 + kFloatError))));
      return false;
    }
    const std::uint32_t lowest = search.high - (static_cast<std::uint32_t>(last) << shift);
    search.low = lowest - min(lowest - search.low, (1u << shift) - 1);
    search.high -= static_cast<std::uint32_t>(first) << shift;
    return last - first + 1 > kBins / 2;
  }

  // Of the row's values of an order, those that come before this warp's.
  __device__ int equals_before(std::uint32_t order) {
    int own = 0;
    for (int c = 0; c < chunks_; ++c) {
      const float4 four = at(c);
      own += (order_of(four.x) == order) + (order_of(four.y) == order) + (order_of(four.z) == order) +
             (order_of(four.w) == order);
    }
    own = static_cast<int>(__reduce_add_sync(kAll, static_cast<unsigned>(own)));
    if (lane_ == 0) shared_.warp_ids[warp_] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
      int total = 0;
      for (int warp = 0; warp < kWarps; ++warp)
        total += shared_.warp_ids[warp];
      shared_.given = static_cast<double>(total);
    }
    const Gathered blocks = gather();
    int before = 0;
    for (int block = 0; block < rank_; ++block)
      before += static_cast<int>(blocks[block]);
    for (int warp = 0; warp < warp_; ++warp)
      before += shared_.warp_ids[warp];
    return before;
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
  int turn_ = 0;   // of the slots
  int level_ = 0;  // whose counts are clear
};

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
  // In float: what is at least min_p is at least the next float from there up. A candidate's weight is not 0.
  const float least = filters ? fmaxf(__double2float_ru(asked.min_p), 0x1p-149f) : 0.0f;
  // The sums that a row needs, each made by the same code: of all values at temperature 1; then of the candidates, and of what
  // top_k and top_p leave of them.
  enum Stage { kAllValues, kCandidates, kTopK, kTopP, kEnd };
  const bool draws = asked.temperature > 0, same_sum = asked.temperature == 1 && !filters;
  const auto needed = [&](int stage) {
    switch (stage) {
      case kAllValues: return asked.wants_exp_sum != 0 && !same_sum;
      case kCandidates: return draws;
      case kTopK: return draws && asked.top_k > 0;
      default: return draws && asked.top_p < 1;
    }
  };
  Sum sum{};
#pragma unroll 1
  for (int stage = kAllValues; stage < kEnd; ++stage) {
    if (!needed(stage)) continue;
    const Weight weigh(top, stage == kAllValues ? 1.0 : asked.temperature);
    if (stage >= kTopK)
      row.keep_highest(weigh, stage == kTopP,
                       stage == kTopK ? static_cast<double>(asked.top_k) : __dmul_rn(asked.top_p, sum.total));
    sum = row.sum_weights(weigh, stage == kCandidates ? least : 0.0f);
    if (stage == kAllValues || (stage == kCandidates && same_sum)) answer.exp_sum = sum.total;
  }
  if (asked.wants_exp_sum == 0) answer.exp_sum = 0;
  if (draws) {
    if (row.draw(Weight(top, asked.temperature), sum, asked.uniform, answer.id, answer.logit))
      sampled = answer;
  } else if (row.first_of(
                 warp_top == top, [&](float value) { return value == top; }, answer.id, answer.logit)) {
    sampled = answer;
  }
}

// A cluster answers every gridDim / kBlocks-th row, those that the highest logit answers excepted (sampler_highest.cu).
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kThreads, kBlocksEach)
    sample_kernel(StepData step, const float* logits, int vocab, const std::uint32_t* never,
                  Sampled* sampled) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared shared;
  wait_for_inputs();
  const int first = static_cast<int>(blockIdx.x) / kBlocks, stride = static_cast<int>(gridDim.x) / kBlocks;
  const int count = step.counts[kSampleCount];
  bool any = false;
  for (int index = first + static_cast<int>(threadIdx.x) * stride; index < count; index += kThreads * stride)
    any = any || !wants_highest(step.samples[index]);
  if (!__syncthreads_or(any)) return;  // as does every block of the cluster
  // No block may write to another one's memory before that has started.
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  auto* const values = reinterpret_cast<float*>(dynamic);
  Row row(values, vocab, shared);
  bool together = false;
  for (int index = first; index < count; index += stride) {
    const SampleRow& asked = step.samples[index];
    if (wants_highest(asked)) continue;
    const float warp_top = row.load(logits + static_cast<std::int64_t>(asked.row) * vocab, vocab, never);
    if (!together) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    together = true;
    answer_row(row, asked, warp_top, sampled[index]);
  }
}

}  // namespace

bool can_sample(int vocab) {
  return vocab >= 1 && shared_bytes(vocab) <= kMostShared;
}

void sample_rows(const StepData& step, int most, const float* logits, int vocab, const std::uint32_t* never,
                 RowHighest* highest, Sampled* sampled, cudaStream_t stream) {
  sample_highest(step, most, logits, vocab, never, highest, sampled, stream);
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
