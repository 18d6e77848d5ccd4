// Written by `deepinfer bench tune --write`: data of choices.h.
#include "backend/cuda/plan/choices.h"

namespace deepinfer::backend::cuda {

std::span<const KernelChoices> choices_table() {
  // Capability, many rows, many pairs, fused queries, fused queries over NVFP4, shared index queries, measured.
  static constexpr KernelChoices kTable[] = {
      {90, 16, 16, 128, 64, 256, "NVIDIA H200, 2026-12-01"},
      {0, 16, 16, 128, 64, 256, "not measured, as 9.0"},
  };
  return kTable;
}

}  // namespace deepinfer::backend::cuda
