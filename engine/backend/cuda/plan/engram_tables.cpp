#include "backend/cuda/plan/engram_tables.h"

#include <fmt/format.h>

#include <algorithm>

namespace deepinfer::backend::cuda {

std::vector<graph::WeightId> engram_tables(const graph::Graph& graph) {
  std::vector<graph::WeightId> tables;
  for (const graph::Node& node : graph.nodes) {
    if (node.op != graph::Op::kEngramGather) continue;
    if (std::find(tables.begin(), tables.end(), node.weights[0]) == tables.end())
      tables.push_back(node.weights[0]);
  }
  return tables;
}

std::int64_t table_bytes(const graph::Graph& graph, std::span<const graph::WeightId> tables) {
  std::int64_t bytes = 0;
  for (const graph::WeightId id : tables)
    bytes += graph.weights[static_cast<std::size_t>(id)].bytes();
  return bytes;
}

TablePlace place_tables(EngramTables asked, const TableDemand& demand) {
  if (asked == EngramTables::kDevice) return TablePlace::kDevice;
  if (asked == EngramTables::kHost) return TablePlace::kHost;
  return demand.others + demand.beside + demand.tables <= demand.budget ? TablePlace::kDevice
                                                                        : TablePlace::kHost;
}

Result<void> check_tables(TablePlace place, const TableDemand& demand) {
  if (place == TablePlace::kDevice && demand.others + demand.tables > demand.budget)
    return make_error(
        ErrorKind::kOutOfMemory,
        fmt::format(
            "cannot keep Engram tables in the device's memory: they are {} bytes, all else that a step "
            "needs is {}, and there are {}",
            demand.tables, demand.others, demand.budget),
        "choose --engram-tables host, or auto");
  if (place == TablePlace::kHost && demand.host > 0 && demand.tables > demand.host)
    return make_error(
        ErrorKind::kOutOfMemory,
        fmt::format("cannot keep Engram tables in the host's memory: they are {} bytes, and {} can be had",
                    demand.tables, demand.host),
        "their pages are locked while the model is loaded: use a machine with more memory");
  return {};
}

std::vector<HostRange> whole_pages(std::vector<HostRange> ranges, std::size_t page_bytes) {
  const auto page = static_cast<std::uintptr_t>(page_bytes);
  std::erase_if(ranges, [](const HostRange& range) { return range.begin == range.end; });
  for (HostRange& range : ranges)
    range = {range.begin / page * page, (range.end + page - 1) / page * page};
  std::sort(ranges.begin(), ranges.end(),
            [](const HostRange& a, const HostRange& b) { return a.begin < b.begin; });
  std::vector<HostRange> pages;
  for (const HostRange& range : ranges) {
    if (!pages.empty() && range.begin < pages.back().end)
      pages.back().end = std::max(pages.back().end, range.end);
    else
      pages.push_back(range);
  }
  return pages;
}

}  // namespace deepinfer::backend::cuda
