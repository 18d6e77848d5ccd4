// Weights of a graph in device memory, each made on first request and shared by the nodes that use it; Engram tables there or on the
// host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/host_tables.h"
#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/plan/engram_tables.h"
#include "base/result.h"
#include "graph/graph.h"

namespace deepinfer::backend::cuda {

class DeviceWeights {
 public:
  DeviceWeights(std::shared_ptr<Device> device, const graph::Graph& graph, TablePlace place)
      : device_(std::move(device)), graph_(graph), place_(place) {}

  const graph::Weight& weight(graph::WeightId id) const {
    return graph_.weights[static_cast<std::size_t>(id)];
  }
  // Part 0 as f32, row-major; for vectors and hyper-connection matrices.
  Result<const float*> values(graph::WeightId id);
  // A hyper-connection matrix [24, 4 * hidden] as residual sites read it: site_terms of kernels/common/hc_site.h.
  Result<const std::uint32_t*> terms_of_site(graph::WeightId id);
  // An integer weight, all rows.
  Result<const std::int32_t*> integers(graph::WeightId id);
  // Part 0 in the checkpoint's layout.
  Result<PlainMatrix> plain(graph::WeightId id);
  // An Engram table, in the checkpoint's layout, where the tables of this graph lie.
  Result<PlainMatrix> table(graph::WeightId id);
  // All parts in the checkpoint's layout.
  Result<PlainStack> plain_stack(graph::WeightId id);
  // All parts as packed units. kFormat names the weight when it holds codes or scales that packed units have no value for.
  Result<PackedStack> packed(graph::WeightId id);
  bool packable(graph::WeightId id) const;

  // Device bytes held so far, without Engram tables.
  std::int64_t bytes() const;
  TablePlace place() const { return place_; }
  // Bytes of Engram tables held so far, in that place.
  std::int64_t table_bytes() const;

 private:
  Result<std::byte*> keep(std::size_t bytes);
  Result<std::byte*> upload(const void* from, std::size_t bytes);
  // Part 0 as f32, on the host.
  static Result<std::vector<float>> decoded(const graph::Weight& from);
  Result<PlainMatrix> upload_part(const graph::Weight& weight, const graph::WeightPart& part);

  std::shared_ptr<Device> device_;
  const graph::Graph& graph_;
  const TablePlace place_;
  std::vector<DeviceBuffer> buffers_;
  std::map<graph::WeightId, PlainMatrix> tables_;
  std::vector<DeviceBuffer> device_tables_;
  std::optional<HostTables> host_tables_;
  std::map<graph::WeightId, const float*> values_;
  std::map<graph::WeightId, const std::uint32_t*> site_terms_;
  std::map<graph::WeightId, const std::int32_t*> integers_;
  std::map<graph::WeightId, PlainStack> plain_;
  std::map<graph::WeightId, PlainMatrix> plain_first_;
  std::map<graph::WeightId, PackedStack> packed_;
};

}  // namespace deepinfer::backend::cuda
