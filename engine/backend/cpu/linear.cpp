#include "backend/cpu/linear.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace deepinfer::backend::cpu {

namespace {

constexpr const char* kTag = "cpu workspace";
constexpr int kOperands = 4;
constexpr std::int64_t kRowsPreparedByEach =
    4;  // up to here every worker prepares its own copy: no extra barrier
constexpr std::int64_t kMostWorkers = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Where each operand layout of one input lies, for the layouts that the jobs need.
struct PreparedLayout {
  std::array<std::int64_t, kOperands> offset{-1, -1, -1, -1};
  std::array<std::int64_t, kOperands> stride{};
  std::int64_t bytes = 0;

  PreparedLayout(std::int64_t rows, std::span<const LinearJob> jobs) {
    for (const LinearJob& job : jobs) {
      const auto index = static_cast<std::size_t>(job.matrix->operand);
      if (offset[index] >= 0) continue;
      offset[index] = bytes;
      stride[index] = aligned(operand_row_bytes(job.matrix->operand, job.matrix->blocks));
      bytes += rows * stride[index];
    }
  }

  void prepare(const KernelSet& set, const PackedMatrix& shape, const float* x, std::int64_t row,
               std::byte* base) const {
    for (std::size_t i = 0; i < kOperands; ++i)
      if (offset[i] >= 0)
        set.prepare_row(static_cast<Operand>(i), x, shape.k, shape.blocks,
                        base + offset[i] + row * stride[i]);
  }
};

// Bytes of one row in every layout that one input may need at once.
std::int64_t prepared_bytes(std::int64_t k) {
  const std::int64_t blocks = (k + kBlock - 1) / kBlock;
  return aligned(operand_row_bytes(Operand::kF32, blocks)) +
         aligned(operand_row_bytes(Operand::kF32Raised, blocks)) +
         aligned(operand_row_bytes(Operand::kFixed, blocks));
}

}  // namespace

Result<Workspace> Workspace::create(int workers) {
  Workspace workspace;
  workspace.workers_ = workers;
  DI_TRY(workspace.reserve(64, 64));
  return workspace;
}

Result<void> Workspace::reserve(std::int64_t shared, std::int64_t each) {
  DI_CHECK(workers_ <= kMostWorkers);
  if (shared > static_cast<std::int64_t>(shared_.size())) {
    DI_ASSIGN(shared_, HugeBuffer::create(host_ledger(), kTag, static_cast<std::size_t>(shared)));
  }
  each = aligned(each);
  if (each > each_) {
    DI_ASSIGN(workers_memory_,
              HugeBuffer::create(host_ledger(), kTag, static_cast<std::size_t>(each * workers_)));
    each_ = each;
  }
  return {};
}

Result<void> reserve_linears(Workspace& workspace, std::int64_t rows, std::int64_t k) {
  const std::int64_t row = prepared_bytes(k);
  return workspace.reserve(rows * row, kLinearScratchBytes + kRowsPreparedByEach * row);
}

void run_linears(const KernelSet& set, Parallel& parallel, Workspace& workspace, const float* x,
                 std::int64_t x_stride, std::int64_t rows, std::span<const LinearJob> jobs) {
  if (rows == 0 || jobs.empty()) return;
  const PackedMatrix& shape = *jobs.front().matrix;
  const PreparedLayout layout(rows, jobs);
  const bool each = rows <= kRowsPreparedByEach;
  std::array<bool, kMostWorkers> ready{};
  if (!each)
    parallel.run(rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        layout.prepare(set, shape, x + row * x_stride, row, workspace.shared());
    });
  std::int64_t tiles = 0;
  for (const LinearJob& job : jobs) {
    DI_CHECK(job.matrix->k == shape.k);
    tiles += (job.matrix->groups + kTileGroups - 1) / kTileGroups;
  }
  parallel.run(tiles, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    std::byte* own = workspace.worker(worker);
    std::byte* prepared = each ? own + kLinearScratchBytes : workspace.shared();
    if (each && !ready[static_cast<std::size_t>(worker)]) {
      for (std::int64_t row = 0; row < rows; ++row)
        layout.prepare(set, shape, x + row * x_stride, row, prepared);
      ready[static_cast<std::size_t>(worker)] = true;
    }
    std::int64_t first = 0;
    for (const LinearJob& job : jobs) {
      const std::int64_t count = (job.matrix->groups + kTileGroups - 1) / kTileGroups;
      const std::int64_t from = std::max(begin, first);
      const std::int64_t to = std::min(end, first + count);
      if (from < to) {
        const auto operand = static_cast<std::size_t>(job.matrix->operand);
        LinearTile tile;
        tile.matrix = job.matrix;
        tile.group_begin = (from - first) * kTileGroups;
        tile.group_end = std::min(job.matrix->groups, (to - first) * kTileGroups);
        tile.x = prepared + layout.offset[operand];
        tile.x_stride = layout.stride[operand];
        tile.rows = rows;
        tile.y = job.y;
        tile.y_stride = job.y_stride;
        tile.round_bf16 = job.round_bf16;
        tile.scratch = own;
        set.linear(tile);
      }
      first += count;
    }
  });
}

}  // namespace deepinfer::backend::cpu
