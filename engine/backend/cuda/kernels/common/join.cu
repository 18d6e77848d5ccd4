#include "backend/cuda/kernels/common/join.h"
#include "backend/cuda/kernels/common/launch.cuh"

namespace deepinfer::backend::cuda {

namespace {

__global__ void join_kernel() {}

}  // namespace

void join_point(cudaStream_t stream) {
  launch(join_kernel, dim3(1), 32, 0, stream);
}

}  // namespace deepinfer::backend::cuda
