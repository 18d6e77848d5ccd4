#include <fmt/format.h>

#include "backend/cuda/kernels/common/streams.h"
#include "backend/cuda/ops.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

HcShape hc_shape(const Prepare& prepare, const Node& node) {
  const auto& attributes = std::get<graph::HcAttributes>(node.attributes);
  return {attributes.streams, prepare.graph.hidden, attributes.sinkhorn_iterations, attributes.rms_eps,
          attributes.hc_eps};
}

Result<DeviceOp> norm(const Prepare& prepare, const Node& node, bool heads) {
  const float* weight = nullptr;
  if (!heads) {
    DI_ASSIGN(weight, prepare.weights.values(node.weights[0]));
  }
  const Values x = prepare.values(node.inputs[0]), y = prepare.values(node.outputs[0]);
  const float eps = std::get<graph::NormAttributes>(node.attributes).eps;
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  const int vectors = heads ? static_cast<int>(x.columns) / prepare.last_dimension(node.outputs[0]) : 1;
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    rms_norm(step->data(), launch.sized(rows), x, weight, vectors, eps, y, launch.stream);
  });
}

// kHcCoefficients with sums in f64, or kHcHeadPre.
Result<DeviceOp> hc_site(const Prepare& prepare, const Node& node) {
  const HcShape shape = hc_shape(prepare, node);
  if (shape.streams != 4)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile {}: {} residual streams; the cuda backend takes 4",
                                  graph::op_name(node.op), shape.streams));
  HcSite site;
  DI_ASSIGN(site.fn, prepare.weights.values(node.weights[0]));
  DI_ASSIGN(site.base, prepare.weights.values(node.weights[1]));
  DI_ASSIGN(site.scale, prepare.weights.values(node.weights[2]));
  const Values h = prepare.values(node.inputs[0]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  const bool wide = prepare.wide();
  const bool head = node.op == Op::kHcHeadPre;
  const int outputs = head ? shape.streams : shape.streams * (2 + shape.streams);
  prepare.want_scratch(static_cast<std::size_t>(hc_workspace_values(
                           shape, outputs, static_cast<int>(prepare.most_rows(node.outputs[0])))) *
                       (wide ? sizeof(double) : sizeof(float)));
  float* const pre = prepare.floats(node.outputs[0]);
  if (head)
    return DeviceOp([=, step = &prepare.step, scratch = prepare.scratch](const Launch& launch) {
      hc_head_pre(step->data(), launch.sized(rows), shape, site, h, wide, scratch->at<void>(), pre,
                  launch.stream);
    });
  float* const post = prepare.floats(node.outputs[1]);
  float* const comb = prepare.floats(node.outputs[2]);
  return DeviceOp([=, step = &prepare.step, scratch = prepare.scratch](const Launch& launch) {
    hc_coefficients(step->data(), launch.sized(rows), shape, site, h, scratch->at<double>(), pre, post, comb,
                    launch.stream);
  });
}

Result<DeviceOp> engram_rows_op(const Prepare& prepare, const Node& node) {
  const auto& attributes = std::get<graph::EngramAttributes>(node.attributes);
  EngramTable table;
  table.orders = attributes.max_ngram;
  table.heads = attributes.heads;
  table.pad_id = attributes.pad_id;
  table.vocab = static_cast<int>(prepare.weights.weight(node.weights[0]).k);
  DI_ASSIGN(table.token_map, prepare.weights.integers(node.weights[0]));
  DI_ASSIGN(table.multipliers, prepare.keep(attributes.multipliers));
  DI_ASSIGN(table.primes, prepare.keep(attributes.primes));
  DI_ASSIGN(table.offsets, prepare.keep(attributes.offsets));
  const state::StateClass* history = prepare.reads(node, state::Kind::kTokenHistory);
  const RecordPlace place = prepare.record(*history).place;
  std::int32_t* const out = prepare.ints(node.outputs[0]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    engram_rows(step->data(), launch.sized(rows), table, place, out, launch.stream);
  });
}

Result<DeviceOp> engram_gather_op(const Prepare& prepare, const Node& node) {
  DI_ASSIGN(const PlainMatrix table, prepare.weights.table(node.weights[0]));
  if (table.code != PlainCode::kFp8Rows || table.k % 32 != 0)
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile {} of layer {}: its table is not FP8 with a scale for each 32 "
                    "of its {} columns",
                    graph::op_name(node.op), node.layer, table.k));
  const std::int32_t* const indices = prepare.ints(node.inputs[0]);
  const auto columns = static_cast<int>(columns_of(prepare.value(node.inputs[0])));
  const Values out = prepare.values(node.outputs[0]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    engram_gather(step->data(), launch.sized(rows), table, indices, columns, out, launch.stream);
  });
}

Result<DeviceOp> engram_mix_op(const Prepare& prepare, const Node& node) {
  DI_ASSIGN(const float* const q_weight, prepare.weights.values(node.weights[0]));
  DI_ASSIGN(const float* const k_weight, prepare.weights.values(node.weights[1]));
  const Values h = prepare.values(node.inputs[0]), kv = prepare.values(node.inputs[1]);
  const Values mixed = prepare.values(node.outputs[0]);
  const float eps = std::get<graph::EngramAttributes>(node.attributes).eps;
  HcShape shape;
  shape.hidden = prepare.graph.hidden;
  shape.streams = static_cast<int>(h.columns) / prepare.graph.hidden;
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    engram_mix(step->data(), launch.sized(rows), shape, q_weight, k_weight, eps, h, kv, mixed, launch.stream);
  });
}

Result<DeviceOp> gather(const Prepare& prepare, const Node& node) {
  const RowSpace to = prepare.space_of(node.outputs[0]);
  const RowAxis from_axis = prepare.space_of(node.inputs[0]).axis;
  const graph::Value& value = prepare.value(node.inputs[0]);
  const std::int64_t bytes = columns_of(value) * (value.type == graph::ElementType::kBf16 ? 2 : 4);
  if (bytes % 4 != 0)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile gather_rows of '{}': rows of {} bytes", value.name, bytes));
  const void* const from = prepare.addresses[static_cast<std::size_t>(node.inputs[0])];
  void* const out = prepare.addresses[static_cast<std::size_t>(node.outputs[0])];
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    gather_rows(step->data(), launch.sized(to), from_axis, from, out, static_cast<int>(bytes / 4),
                launch.stream);
  });
}

}  // namespace

Result<DeviceOp> prepare_stream(const Prepare& prepare, const Node& node) {
  const StepBuffers* step = &prepare.step;
  const RowSpace rows = node.outputs.empty() ? RowSpace{} : prepare.space_of(node.outputs[0]);
  switch (node.op) {
    case Op::kEmbed: {
      DI_ASSIGN(const PlainMatrix table, prepare.weights.plain(node.weights[0]));
      const Values x = prepare.values(node.outputs[0]);
      return DeviceOp(
          [=](const Launch& launch) { embed(step->data(), launch.sized(rows), table, x, launch.stream); });
    }
    case Op::kBroadcastStreams: {
      const Values x = prepare.values(node.inputs[0]), h = prepare.values(node.outputs[0]);
      const auto streams = static_cast<int>(h.columns / x.columns);
      return DeviceOp([=](const Launch& launch) {
        broadcast_streams(step->data(), launch.sized(rows), x, streams, h, launch.stream);
      });
    }
    case Op::kGatherRows: return gather(prepare, node);
    case Op::kHistoryWrite: {
      const auto target = std::get<graph::StateAttributes>(node.attributes).target;
      const RecordPlace place = prepare.record(prepare.registry.at(target)).place;
      return DeviceOp([=](const Launch& launch) {
        write_history(step->data(), launch.most[kSequenceCount], place, launch.stream);
      });
    }
    case Op::kRmsNorm: return norm(prepare, node, false);
    case Op::kHeadRmsNorm: return norm(prepare, node, true);
    case Op::kHcCoefficients:
      return prepare.wide() ? hc_site(prepare, node) : prepare_coefficients(prepare, node);
    case Op::kHcHeadPre: return hc_site(prepare, node);
    case Op::kHcFirstPre: {
      float* const pre = prepare.floats(node.outputs[0]);
      const int streams = prepare.last_dimension(node.outputs[0]);
      return DeviceOp([=](const Launch& launch) {
        hc_first_pre(step->data(), launch.sized(rows), streams, pre, launch.stream);
      });
    }
    case Op::kHcCollapse: {
      const HcShape shape = hc_shape(prepare, node);
      const Values h = prepare.values(node.inputs[0]), x = prepare.values(node.outputs[0]);
      const float* const pre = prepare.floats(node.inputs[1]);
      return DeviceOp([=](const Launch& launch) {
        hc_collapse(step->data(), launch.sized(rows), shape, h, pre, x, launch.stream);
      });
    }
    case Op::kHcExpand: {
      const HcShape shape = hc_shape(prepare, node);
      const Values y = prepare.values(node.inputs[0]), h = prepare.values(node.inputs[1]);
      const float *const post = prepare.floats(node.inputs[2]), *const comb = prepare.floats(node.inputs[3]);
      const Values expanded = prepare.values(node.outputs[0]);
      return DeviceOp([=](const Launch& launch) {
        hc_expand(step->data(), launch.sized(rows), shape, y, h, post, comb, expanded, launch.stream);
      });
    }
    case Op::kEngramRows: return engram_rows_op(prepare, node);
    case Op::kEngramGather: return engram_gather_op(prepare, node);
    case Op::kEngramMix: return engram_mix_op(prepare, node);
    default: break;
  }
  return make_error(ErrorKind::kUnsupported,
                    fmt::format("cannot compile: operation {} (layer {}) has no kernel in the cuda backend",
                                graph::op_name(node.op), node.layer));
}

}  // namespace deepinfer::backend::cuda
