// Products of activation rows with packed matrices, spread over threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/common/parallel.h"
#include "backend/cpu/kernels/kernel_set.h"
#include "base/huge_buffer.h"
#include "base/result.h"

namespace deepinfer::backend::cpu {

// Scratch that the products of an executable share: prepared rows of the one running, and an area for each worker.
// reserve() while compiling; running takes no memory.
class Workspace {
 public:
  static Result<Workspace> create(int workers);

  // Room for `shared` bytes used by all workers and `each` bytes a worker.
  Result<void> reserve(std::int64_t shared, std::int64_t each);
  std::byte* shared() { return shared_.data(); }
  std::byte* worker(int index) { return workers_memory_.data() + index * each_; }
  std::span<std::int64_t> job_ends(std::size_t jobs);  // within what reserve_jobs promised (checked)
  void reserve_jobs(std::size_t jobs);
  std::int64_t taken() const { return static_cast<std::int64_t>(shared_.taken() + workers_memory_.taken()); }

 private:
  int workers_ = 1;
  std::int64_t each_ = 0;
  HugeBuffer shared_;
  HugeBuffer workers_memory_;
  std::vector<std::int64_t> job_ends_;
};

// One product y = x W^T, of all rows of x or of some.
struct LinearJob {
  const PackedMatrix* matrix = nullptr;
  float* y = nullptr;         // [rows, matrix->n]
  std::int64_t y_stride = 0;  // floats
  bool round_bf16 = false;
  // Job row i reads row x_rows[i] of x and goes to row y_rows[i] of y; null: row i. `rows` of them (-1: all of x).
  const std::int32_t* x_rows = nullptr;
  const std::int32_t* y_rows = nullptr;
  std::int64_t rows = -1;
};

// What run_linears needs for up to `rows` rows against up to `jobs` of these matrices, which share their columns.
Result<void> reserve_linears(Workspace& workspace, std::int64_t rows, std::span<const PackedMatrix> matrices,
                             std::int64_t jobs = 1);

// All jobs share x [rows, k], row r at x + r * x_stride floats. Results are those of KernelSet::linear.
void run_linears(const KernelSet& set, Parallel& parallel, Workspace& workspace, const float* x,
                 std::int64_t x_stride, std::int64_t rows, std::span<const LinearJob> jobs);

}  // namespace deepinfer::backend::cpu
