#include "backend/cuda/kernels/sm90/tensor_map.h"

namespace deepinfer::backend::cuda {

namespace {

// The encoder is the driver's; the program has to start where there is none, so it is asked for at run time.
cudaError_t encode(CUtensorMapDataType type, const void* base, const cuuint64_t (&sizes)[3],
                   const cuuint64_t (&strides)[2], const cuuint32_t (&box)[3], CUtensorMapSwizzle swizzle,
                   CUtensorMap* map) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                                 cudaEnableDefault, &found);
      error != cudaSuccess)
    return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
      map, type, 3, const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

}  // namespace

cudaError_t describe_rows(const void* x, std::int64_t rows, int groups, std::int64_t columns,
                          std::int64_t row_stride, int box_rows, CUtensorMap* map) {
  if (!aligned(x) || row_stride % 8 != 0 || (groups > 1 && columns % 8 != 0)) return cudaErrorInvalidValue;
  const std::int64_t group_stride = groups > 1 ? columns : 8;
  return encode(
      CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x,
      {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(groups), static_cast<cuuint64_t>(rows)},
      {static_cast<cuuint64_t>(group_stride * 2), static_cast<cuuint64_t>(row_stride * 2)},
      {64, 1, static_cast<cuuint32_t>(box_rows)}, CU_TENSOR_MAP_SWIZZLE_128B, map);
}

cudaError_t describe_units(const PackedMatrix& weight, int experts, int box_tiles, CUtensorMap* map) {
  if (!aligned(weight.units)) return cudaErrorInvalidValue;
  const std::int64_t tile_bytes = static_cast<std::int64_t>(weight.units_of_tile()) * kUnitBytes;
  return encode(CU_TENSOR_MAP_DATA_TYPE_FLOAT64, weight.units,
                {static_cast<cuuint64_t>(tile_bytes / 8), static_cast<cuuint64_t>(weight.tiles()),
                 static_cast<cuuint64_t>(experts)},
                {static_cast<cuuint64_t>(tile_bytes), static_cast<cuuint64_t>(weight.unit_bytes())},
                {static_cast<cuuint32_t>(kUnitBytes * 64 / unit_columns(weight.code) / 8),
                 static_cast<cuuint32_t>(box_tiles), 1},
                CU_TENSOR_MAP_SWIZZLE_NONE, map);
}

}  // namespace deepinfer::backend::cuda
