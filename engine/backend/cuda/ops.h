// Nodes of a graph as launches. Preparing a node takes its weights and addresses once; the launch that comes of it holds no value
// of a step: rows and offsets are read from the step's device buffer, and only the grid's size is chosen by the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/common/schedule.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/common/hc_site.h"
#include "backend/cuda/kernels/common/records.h"
#include "backend/cuda/kernels/common/values.h"
#include "backend/cuda/step_buffers.h"
#include "backend/cuda/weights.h"
#include "base/result.h"
#include "graph/graph.h"
#include "state/registry.h"

namespace deepinfer::backend::cuda {

// How far a launch must reach: upper bounds of the step's counts, which may be those of a tier.
struct Launch {
  cudaStream_t stream = nullptr;
  int most[kCounts] = {};
  std::int64_t context = 0;  // longest sequence
  // Fused experts call it when pairs are assigned to experts and before these are launched; may be empty.
  std::function<void()> assigned;

  RowSpace sized(RowSpace space) const {
    space.most = most[space.count];
    return space;
  }
};
using DeviceOp = std::function<void(const Launch&)>;

// Scratch memory that the launches of an executable share, since they follow each other on one stream.
struct Scratch {
  std::size_t bytes = 0;          // the most that any node wants
  std::size_t routing_bytes = 0;  // behind these: what a gate leaves for the experts after it
  DeviceBuffer memory;
  std::size_t routing_at() const { return (bytes + 255) / 256 * 256; }
  template <class T>
  T* at(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(memory.data() + offset);
  }
};

// A RoPE table on the device.
struct DeviceRope {
  int pairs = 0;
  const float* frequencies = nullptr;
  Angle* angles = nullptr;  // [T, pairs], made at the start of each step
};

// An index site's scores where a seam keeps them: [rows, stride].
struct KeptScores {
  DeviceBuffer memory;
  std::int64_t stride = 0;
};

// What preparing a node sees.
struct Prepare {
  const graph::Graph& graph;
  const state::Registry& registry;
  const StepLimits& limits;
  const Schedule& schedule;
  std::shared_ptr<Device> device;
  DeviceWeights& weights;
  const StepBuffers& step;
  const std::vector<std::byte*>& addresses;  // of each value
  const std::vector<DeviceRope>& ropes;
  std::vector<KeptScores>& kept;  // one a site
  std::vector<DeviceBuffer>& tables;
  std::shared_ptr<Scratch> scratch;

  bool wide() const { return graph.precision == graph::Precision::kF32; }  // sums in f64
  const graph::Value& value(graph::ValueId id) const { return graph.values[static_cast<std::size_t>(id)]; }
  Values values(graph::ValueId id) const;
  std::int32_t* ints(graph::ValueId id) const;
  float* floats(graph::ValueId id) const;  // a value of type f32
  RowSpace space(graph::Dim dim) const;
  RowSpace space_of(graph::ValueId id) const { return space(value(id).shape[0]); }
  bool has_memory(graph::ValueId id) const { return addresses[static_cast<std::size_t>(id)] != nullptr; }
  int last_dimension(graph::ValueId id) const { return static_cast<int>(value(id).shape.back().value); }
  std::int64_t most_rows(graph::ValueId id) const {
    return StepView::largest_extent(value(id).shape[0], limits);
  }
  Record record(const state::StateClass& entry) const;
  // The class of `kind` among those that a node reads; null when there is none.
  const state::StateClass* reads(const graph::Node& node, state::Kind kind) const;
  // A table of the host for the life of the executable.
  template <class T>
  Result<const T*> keep(const std::vector<T>& content) const;
  Result<std::byte*> keep_bytes(const void* content, std::size_t bytes) const;
  void want_scratch(std::size_t bytes) const { scratch->bytes = std::max(scratch->bytes, bytes); }
};

template <class T>
Result<const T*> Prepare::keep(const std::vector<T>& content) const {
  DI_ASSIGN(std::byte* const data, keep_bytes(content.data(), content.size() * sizeof(T)));
  return reinterpret_cast<const T*>(data);
}

// What a kRope node does.
Rotation rotation_of(const Prepare& prepare, const graph::Node& rope);
RecordShape record_shape(const state::RecordLayout& layout);

// kUnsupported, by name, for what no kernel can do.
Result<DeviceOp> prepare_node(const Prepare& prepare, const ScheduledNode& node);
// Fused operations are for bf16 values; with `wide` sums they are run part by part.
bool has_op(graph::Op op, bool wide);

// Its parts, by topic.
Result<DeviceOp> prepare_stream(const Prepare& prepare, const graph::Node& node);
// Of bf16 streams: kHcCoefficients alone.
Result<DeviceOp> prepare_coefficients(const Prepare& prepare, const graph::Node& node);
Result<DeviceOp> prepare_residual_site(const Prepare& prepare, const graph::Node& node);
// What a fused gate does, where rows are few, of the residual site before it; without comb: nothing.
DeferredMix deferred_mix(const Prepare& prepare, const graph::Node& gate);
Result<DeviceOp> prepare_linear(const Prepare& prepare, const graph::Node& node);
Result<DeviceOp> prepare_record(const Prepare& prepare, const graph::Node& node);
Result<DeviceOp> prepare_attention(const Prepare& prepare, const graph::Node& node);
Result<DeviceOp> prepare_index(const Prepare& prepare, const graph::Node& node, int site);
Result<DeviceOp> prepare_experts(const Prepare& prepare, const graph::Node& node);

}  // namespace deepinfer::backend::cuda
