// backend/planned.h for GPUs.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"

namespace deepinfer::backend::cuda {

bool can_imagine(const std::string& device);
// Of one that can be imagined (checked).
Result<std::vector<Executable::Memory>> planned_memory(const std::string& device, const graph::Graph& graph,
                                                       const state::Registry& registry,
                                                       const StepLimits& limits);

}  // namespace deepinfer::backend::cuda
