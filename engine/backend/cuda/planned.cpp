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

Result<TableChoice> choose_tables(const Device::Properties& device, const graph::Graph& graph,
                                  const state::Registry& registry, const StepLimits& limits,
                                  EngramTables asked, const MemoryRoom& room) {
  TableChoice choice;
  TableDemand& demand = choice.demand;
  demand.budget = room.budget;
  demand.beside = room.beside;
  demand.host = room.host;
  demand.tables = table_bytes(graph, engram_tables(graph));
  if (demand.tables == 0) return choice;
  if (asked != EngramTables::kHost) {
    const auto imagined = Device::imagine(device);
    DI_ASSIGN(const auto executable,
              Executor::compile(imagined, graph, registry, limits, nullptr, TablePlace::kHost));
    demand.others = static_cast<std::int64_t>(imagined->ledger().used());
  }
  choice.place = place_tables(asked, demand);
  return choice;
}

Result<std::vector<Executable::Memory>> planned_memory(const std::string& device, const graph::Graph& graph,
                                                       const state::Registry& registry,
                                                       const StepLimits& limits, EngramTables asked,
                                                       const MemoryRoom& room) {
  const Known* const known = find(device);
  DI_CHECK(known != nullptr);
  MemoryRoom left = room;
  if (left.budget == 0) left.budget = known->properties.total_bytes;
  left.budget -= kReservedBytes;
  DI_ASSIGN(const TableChoice choice, choose_tables(known->properties, graph, registry, limits, asked, left));
  const auto imagined = Device::imagine(known->properties);
  DI_ASSIGN(const auto executable,
            Executor::compile(imagined, graph, registry, limits, nullptr, choice.place));
  std::vector<Executable::Memory> rows;
  for (const LedgerRow& row : imagined->ledger().rows())
    if (row.bytes > 0) rows.push_back({row.tag, static_cast<std::int64_t>(row.bytes)});
  for (const Executable::Memory& row : executable->memory())
    if (row.on_host && row.bytes > 0) rows.push_back(row);
  rows.push_back({"driver and graphs", kReservedBytes});
  return rows;
}

}  // namespace deepinfer::backend::cuda
