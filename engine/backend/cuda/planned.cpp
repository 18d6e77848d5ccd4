#include "backend/cuda/planned.h"

#include <string_view>

#include "backend/cuda/backend.h"
#include "backend/cuda/executor.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

namespace {

struct Known {
  std::string_view name;
  Device::Properties properties;
};
const Known* find(std::string_view name) {
  static const Known kKnown[] = {{"h200", {"NVIDIA H200", 132, 90, 141'000'000'000}}};
  for (const Known& known : kKnown)
    if (known.name == name) return &known;
  return nullptr;
}

}  // namespace

bool can_imagine(const std::string& device) {
  return find(device) != nullptr;
}

Result<std::vector<Executable::Memory>> planned_memory(const std::string& device, const graph::Graph& graph,
                                                       const state::Registry& registry,
                                                       const StepLimits& limits) {
  const Known* const known = find(device);
  DI_CHECK(known != nullptr);
  const auto imagined = Device::imagine(known->properties);
  DI_ASSIGN(const auto executable, Executor::compile(imagined, graph, registry, limits, nullptr));
  std::vector<Executable::Memory> rows;
  for (const LedgerRow& row : imagined->ledger().rows())
    if (row.bytes > 0) rows.push_back({row.tag, static_cast<std::int64_t>(row.bytes)});
  rows.push_back({"driver and graphs", kReservedBytes});
  return rows;
}

}  // namespace deepinfer::backend::cuda
