// What this machine can do right now: memory reads and multiply-adds, with the threads and the kernel set of a bench.
#pragma once

#include <cstdint>

#include "backend/common/parallel.h"
#include "backend/cpu/kernels/kernel_set.h"
#include "base/huge_buffer.h"
#include "base/result.h"

namespace deepinfer::bench {

class MachineProbe {
 public:
  // Takes a buffer of `bytes` (1 GiB finds the memory, not a cache).
  static Result<MachineProbe> create(backend::Parallel& parallel, const backend::cpu::KernelSet& set,
                                     std::size_t bytes = std::size_t{1} << 30);

  // Bytes a second, all threads reading disjoint parts through four streams each.
  double read();
  // Multiply-adds a second in the number format of `operand`.
  double multiply_add(backend::cpu::Operand operand);

 private:
  MachineProbe(backend::Parallel& parallel, const backend::cpu::KernelSet& set)
      : parallel_(&parallel), set_(&set) {}

  backend::Parallel* parallel_;
  const backend::cpu::KernelSet* set_;
  HugeBuffer buffer_;
};

}  // namespace deepinfer::bench
