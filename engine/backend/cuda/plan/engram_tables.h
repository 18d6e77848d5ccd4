// Where the Engram tables of a graph go, decided from numbers: before loading by `plan`, and while loading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::backend::cuda {

enum class TablePlace : uint8_t { kDevice, kHost };

// Weights that rows are gathered from, each once, in the order of the nodes.
std::vector<graph::WeightId> engram_tables(const graph::Graph& graph);
std::int64_t table_bytes(const graph::Graph& graph, std::span<const graph::WeightId> tables);

// All in bytes; the first four of device memory.
struct TableDemand {
  std::int64_t budget = 0;  // for everything
  std::int64_t others = 0;  // what the executable takes without the tables
  std::int64_t beside = 0;  // what comes beside the executable
  std::int64_t tables = 0;
  std::int64_t host = 0;  // memory of the host; 0: not known
};
TablePlace place_tables(EngramTables asked, const TableDemand& demand);
// kOutOfMemory, with the numbers and what to do, for a place that cannot hold the tables.
Result<void> check_tables(TablePlace place, const TableDemand& demand);

// Bytes of the host at [begin, end).
struct HostRange {
  std::uintptr_t begin = 0, end = 0;
  friend bool operator==(const HostRange&, const HostRange&) = default;
};
// The whole pages that hold the ranges, ascending, ranges with a page in common as one: a page can be locked once only.
std::vector<HostRange> whole_pages(std::vector<HostRange> ranges, std::size_t page_bytes);

}  // namespace deepinfer::backend::cuda
