// Written by `deepinfer bench tune --write`: data of choices.h.
#include "backend/cuda/plan/choices.h"

namespace deepinfer::backend::cuda {

std::span<const KernelChoices> choices_table() {
  // Capability, many rows, many pairs, fused queries, fused queries over NVFP4, shared index queries, measured.
  static constexpr KernelChoices kTable[] = {
      {90, 9, 4, 128, 64, 192, "NVIDIA H200, 2026-11-30; pairs a guess, queries counted"},
      {0, 9, 4, 128, 64, 192, "not measured, as 9.0"},
  };
  return kTable;
}

}  // namespace deepinfer::backend::cuda
