// Copies that complete on barriers in shared memory, and what else Hopper's matrix kernels do there.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/kernels/common/shared_memory.cuh"

namespace deepinfer::backend::cuda {

// Makes initialised barriers visible to the copy engine.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive_expecting(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// --- copies to shared memory

// The box of `map` at these coordinates; its bytes count towards `barrier`. By one thread.
__device__ inline void tensor_copy(std::uint32_t to, const CUtensorMap& map, int first, int second, int third,
                                   std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(first), "r"(second), "r"(third), "r"(barrier)
      : "memory");
}
// 16 bytes of which the first `present` are read and the others are zero.
__device__ inline void small_copy(std::uint32_t to, const void* from, int present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present) : "memory");
}
// The thread's small copies so far count as one arrival when they are done. They are writes of the thread's, not of the copy engine's:
// who reads them with wgmma needs the fence below after waiting.
__device__ inline void barrier_arrive_after_small_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Orders writes to shared memory that the thread made, or has waited for, before later reads by wgmma.
__device__ inline void fence_for_matrix_reads() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Moves registers between warpgroups; all warps of a warpgroup execute it.
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// 8 x 8 blocks of bf16 from registers, transposed; lane l gives the address of row l % 8 of block l / 8.
__device__ inline void store_transposed(std::uint32_t address, const std::uint32_t (&blocks)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(blocks[0]), "r"(blocks[1]), "r"(blocks[2]), "r"(blocks[3])
               : "memory");
}
__device__ inline int load_shared_int(std::uint32_t address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline void store_shared_int(std::uint32_t address, int value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

}  // namespace deepinfer::backend::cuda
