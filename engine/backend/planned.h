// What an executable will take of a device's memory, before there is a device or a weight.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"

namespace deepinfer::backend {

// As Executable::memory() will say, and "driver and graphs": what those may take beside it. `device`: "h200". The graph needs no
// weights. `tables` and `room` as compile_within() will have them; a budget of 0 is all that the device has, and "driver and graphs"
// come out of it. kUnsupported for a device that this build has no backend for, or knows nothing of; and the errors of compile().
Result<std::vector<Executable::Memory>> planned_memory(const std::string& device, const graph::Graph& graph,
                                                       const state::Registry& registry,
                                                       const StepLimits& limits,
                                                       EngramTables tables = EngramTables::kAuto,
                                                       const MemoryRoom& room = {});

}  // namespace deepinfer::backend
