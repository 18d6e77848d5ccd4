// backend/planned.h for GPUs.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/plan/engram_tables.h"

namespace deepinfer::backend::cuda {

bool can_imagine(const std::string& device);
// Of one that can be imagined (checked).
Result<std::vector<Executable::Memory>> planned_memory(const std::string& device, const graph::Graph& graph,
                                                       const state::Registry& registry,
                                                       const StepLimits& limits, EngramTables asked,
                                                       const MemoryRoom& room);

// Where the Engram tables of a graph go on such a device, and the numbers behind it: `room.budget` is what there is (not 0). A run
// asks the same as a plan. Errors of Executor::compile.
struct TableChoice {
  TablePlace place = TablePlace::kDevice;
  TableDemand demand;
};
Result<TableChoice> choose_tables(const Device::Properties& device, const graph::Graph& graph,
                                  const state::Registry& registry, const StepLimits& limits,
                                  EngramTables asked, const MemoryRoom& room);

}  // namespace deepinfer::backend::cuda
