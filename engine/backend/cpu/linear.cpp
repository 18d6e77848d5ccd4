#include "backend/cpu/linear.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace deepinfer::backend::cpu {

namespace {

constexpr const char* kTag = "workspace";
constexpr int kOperands = 5;
constexpr std::int64_t kRowsPreparedByEach =
    4;  // up to here every worker prepares its own copy: no extra barrier
constexpr std::int64_t kMostWorkers = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Distance of prepared rows: an odd number of cache lines, so that the same columns of many rows don't fall into the
// same few sets of the caches.
std::int64_t row_stride(Operand operand, std::int64_t blocks) {
  return (((operand_row_bytes(operand, blocks) + 63) / 64) | 1) * 64;
}

// Where each operand layout of one input lies, for the layouts that the jobs need.
struct PreparedLayout {
  std::array<std::int64_t, kOperands> offset{-1, -1, -1, -1, -1};
  std::array<std::int64_t, kOperands> stride{};
  std::int64_t bytes = 0;

  PreparedLayout(std::int64_t rows, std::span<const LinearJob> jobs) {
    for (const LinearJob& job : jobs) {
      const auto index = static_cast<std::size_t>(job.matrix->operand);
      if (offset[index] >= 0) continue;
      offset[index] = bytes;
      stride[index] = row_stride(job.matrix->operand, job.matrix->blocks);
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

// Bytes of one row in every layout that these matrices want.
std::int64_t prepared_bytes(std::span<const PackedMatrix> matrices) {
  std::array<std::int64_t, kOperands> bytes{};
  for (const PackedMatrix& matrix : matrices)
    bytes[static_cast<std::size_t>(matrix.operand)] = row_stride(matrix.operand, matrix.blocks);
  std::int64_t total = 0;
  for (const std::int64_t each : bytes)
    total += each;
  return total;
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

void Workspace::reserve_jobs(std::size_t jobs) {
  if (jobs > job_ends_.size()) job_ends_.resize(jobs);
}

std::span<std::int64_t> Workspace::job_ends(std::size_t jobs) {
  DI_CHECK(jobs <= job_ends_.size());
  return std::span(job_ends_).first(jobs);
}

Result<void> reserve_linears(Workspace& workspace, std::int64_t rows, std::span<const PackedMatrix> matrices,
                             std::int64_t jobs) {
  const std::int64_t row = prepared_bytes(matrices);
  workspace.reserve_jobs(static_cast<std::size_t>(jobs));
  return workspace.reserve(rows * row, kLinearScratchBytes + kRowsPreparedByEach * row);
}

namespace {

// How jobs are cut into work items: tiles of `groups` groups, and of `rows` rows when there are few tiles.
struct Cut {
  std::int64_t groups = kTileGroups;
  std::int64_t rows = 0;

  Cut(std::span<const LinearJob> jobs, std::int64_t most_rows, int workers) {
    std::int64_t total = 0;
    for (const LinearJob& job : jobs)
      total += job.matrix->groups;
    if (total < kTileGroups * kItemsAWorker * workers) groups = 1;
    rows = most_rows;
    if (total / groups < kItemsAWorker * workers) rows = std::min(rows, kFewTilesRows);
  }
  std::int64_t tiles(const LinearJob& job) const { return (job.matrix->groups + groups - 1) / groups; }
  std::int64_t pieces(std::int64_t job_rows) const { return (job_rows + rows - 1) / rows; }

  static constexpr std::int64_t kItemsAWorker = 4;
  static constexpr std::int64_t kFewTilesRows = 48;
};

}  // namespace

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
  std::int64_t most_rows = 0;
  for (const LinearJob& job : jobs)
    most_rows = std::max(most_rows, job.rows < 0 ? rows : job.rows);
  const Cut cut(jobs, most_rows, parallel.workers());
  const auto rows_of = [&](const LinearJob& job) { return job.rows < 0 ? rows : job.rows; };
  const std::span<std::int64_t> ends = workspace.job_ends(jobs.size());
  std::int64_t items = 0;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    DI_CHECK(jobs[j].matrix->k == shape.k);
    items += cut.tiles(jobs[j]) * cut.pieces(rows_of(jobs[j]));
    ends[j] = items;
  }
  parallel.run(items, 1, [&](std::int64_t item, std::int64_t, int worker) {
    std::byte* own = workspace.worker(worker);
    std::byte* prepared = each ? own + kLinearScratchBytes : workspace.shared();
    if (each && !ready[static_cast<std::size_t>(worker)]) {
      for (std::int64_t row = 0; row < rows; ++row)
        layout.prepare(set, shape, x + row * x_stride, row, prepared);
      ready[static_cast<std::size_t>(worker)] = true;
    }
    const auto j = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), item) - ends.begin());
    const LinearJob& job = jobs[j];
    const std::int64_t index = item - (j == 0 ? 0 : ends[j - 1]);
    const std::int64_t pieces = cut.pieces(rows_of(job));
    const std::int64_t group = index / pieces * cut.groups;
    const std::int64_t first = index % pieces * cut.rows;
    const auto operand = static_cast<std::size_t>(job.matrix->operand);
    LinearTile tile;
    tile.matrix = job.matrix;
    tile.group_begin = group;
    tile.group_end = std::min(job.matrix->groups, group + cut.groups);
    tile.x = prepared + layout.offset[operand];
    tile.x_stride = layout.stride[operand];
    tile.row_index = job.x_rows != nullptr ? job.x_rows + first : nullptr;
    if (job.x_rows == nullptr) tile.x += first * tile.x_stride;
    tile.rows = std::min(cut.rows, rows_of(job) - first);
    tile.y = job.y;
    tile.y_index = job.y_rows != nullptr ? job.y_rows + first : nullptr;
    if (job.y_rows == nullptr) tile.y += first * job.y_stride;
    tile.y_stride = job.y_stride;
    tile.round_bf16 = job.round_bf16;
    tile.scratch = own;
    set.linear(tile);
  });
}

}  // namespace deepinfer::backend::cpu
