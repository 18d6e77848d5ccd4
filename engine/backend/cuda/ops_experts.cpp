#include <fmt/format.h>

#include <array>

#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/ops.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

Result<Gate> gate_of(const Prepare& prepare, const Node& node) {
  const auto& attributes = std::get<graph::GateAttributes>(node.attributes);
  Gate gate;
  gate.experts = attributes.experts;
  gate.top_k = static_cast<int>(columns_of(prepare.value(node.outputs[0])));
  gate.normalise = attributes.normalise && (gate.top_k > 1 || attributes.normalise_single);
  gate.routed_scale = attributes.routed_scale;
  if (gate.experts > kMostExperts || gate.top_k > 32)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile {}: {} of {} experts; the cuda backend takes up to 32 of {}",
                                  graph::op_name(node.op), gate.top_k, gate.experts, kMostExperts));
  return gate;
}

Result<DeviceOp> gate_op(const Prepare& prepare, const Node& node) {
  DI_ASSIGN(Gate gate, gate_of(prepare, node));
  DI_ASSIGN(gate.bias, prepare.weights.values(node.weights[0]));
  gate.image_bias = gate.bias;
  if (node.weights.size() > 1) {
    DI_ASSIGN(gate.image_bias, prepare.weights.values(node.weights[1]));
  }
  const float* const s = prepare.floats(node.inputs[0]);
  std::int32_t* const ids = prepare.ints(node.outputs[0]);
  float* const weights = prepare.floats(node.outputs[1]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    gate_top_k(step->data(), launch.sized(rows), gate, s, ids, weights, launch.stream);
  });
}

Result<DeviceOp> hash_op(const Prepare& prepare, const Node& node) {
  DI_ASSIGN(const Gate gate, gate_of(prepare, node));
  DI_ASSIGN(const std::int32_t* const table, prepare.weights.integers(node.weights[0]));
  const float* const s = prepare.floats(node.inputs[0]);
  std::int32_t* const ids = prepare.ints(node.outputs[0]);
  float* const weights = prepare.floats(node.outputs[1]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    hash_route(step->data(), launch.sized(rows), gate, table, s, ids, weights, launch.stream);
  });
}

// Places of an assignment in scratch memory, counted in 4-byte words.
std::size_t assignment_words(int experts, std::int64_t pairs) {
  return static_cast<std::size_t>(3 * experts + 2 + pairs);
}
Assignment assignment_in(const Scratch& scratch, int experts) {
  auto* const words = scratch.at<std::int32_t>();
  Assignment assignment;
  assignment.counts = words;
  assignment.first = words + experts;
  assignment.active = words + 2 * experts + 1;
  assignment.active_count = words + 3 * experts + 1;
  assignment.slots = words + 3 * experts + 2;
  return assignment;
}

// Gate and up (two weights, the token's row), or down (one weight, the pair's own row).
Result<DeviceOp> stack_op(const Prepare& prepare, const Node& node) {
  const bool down = node.op == Op::kExpertDown;
  const Values x = prepare.values(node.inputs[0]);
  const std::int32_t* const ids = prepare.ints(node.inputs[1]);
  const auto top_k = static_cast<int>(columns_of(prepare.value(node.inputs[1])));
  const int share = down ? 1 : top_k;
  const RowSpace rows = prepare.space_of(node.inputs[1]);
  const graph::Weight& first = prepare.weights.weight(node.weights[0]);
  const auto experts = static_cast<int>(first.parts.size());
  const StepBuffers* const step = &prepare.step;
  if (prepare.wide() || !prepare.weights.packable(node.weights[0]) || first.k % 2 != 0) {
    std::vector<std::pair<PlainStack, Values>> parts;
    for (std::size_t i = 0; i < node.weights.size(); ++i) {
      DI_ASSIGN(const PlainStack stack, prepare.weights.plain_stack(node.weights[i]));
      parts.emplace_back(stack, prepare.values(node.outputs[i]));
    }
    return DeviceOp([=](const Launch& launch) {
      for (const auto& [stack, out] : parts)
        experts_plain(step->data(), launch.sized(rows), stack, top_k, share, ids, x, out, launch.stream);
    });
  }
  // Rows of a pair: x for `down` is [R, top_k, width], one row a pair.
  Values input = x;
  input.columns = first.k;
  std::array<StackPart, 2> parts = {};
  for (std::size_t i = 0; i < node.weights.size(); ++i) {
    DI_ASSIGN(parts[i].weight, prepare.weights.packed(node.weights[i]));
    parts[i].out = prepare.values(node.outputs[i]);
  }
  prepare.want_scratch(assignment_words(experts, prepare.most_rows(node.inputs[1]) * top_k) * sizeof(std::int32_t));
  return DeviceOp([=, scratch = prepare.scratch, count = static_cast<int>(node.weights.size())](const Launch& launch) {
    const Assignment assignment = assignment_in(*scratch, experts);
    assign_experts(step->data(), launch.sized(rows), ids, experts, top_k, assignment, launch.stream);
    experts_few(step->data(), launch.sized(rows), parts.data(), count, top_k, share, input, assignment, launch.stream);
  });
}

Result<DeviceOp> swiglu_op(const Prepare& prepare, const Node& node) {
  const Values g = prepare.values(node.inputs[0]), u = prepare.values(node.inputs[1]);
  const Values t = prepare.values(node.outputs[0]);
  const int vectors = static_cast<int>(g.columns) / prepare.last_dimension(node.inputs[0]);
  const float limit = std::get<graph::SwiGluAttributes>(node.attributes).limit;
  const float* const weights = node.inputs.size() > 2 ? prepare.floats(node.inputs[2]) : nullptr;
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    swiglu(step->data(), launch.sized(rows), vectors, limit, weights, g, u, t, launch.stream);
  });
}

}  // namespace

Result<DeviceOp> prepare_experts(const Prepare& prepare, const Node& node) {
  const StepBuffers* step = &prepare.step;
  switch (node.op) {
    case Op::kRouterScores: {
      const auto& attributes = std::get<graph::GateAttributes>(node.attributes);
      const float* const z = prepare.floats(node.inputs[0]);
      float* const s = prepare.floats(node.outputs[0]);
      const int experts = prepare.last_dimension(node.outputs[0]);
      const float temperature = attributes.gate_temp;
      const RowSpace rows = prepare.space_of(node.outputs[0]);
      return DeviceOp([=](const Launch& launch) {
        router_scores(step->data(), launch.sized(rows), z, experts, temperature, s, launch.stream);
      });
    }
    case Op::kGateTopK: return gate_op(prepare, node);
    case Op::kHashRoute: return hash_op(prepare, node);
    case Op::kSwiGlu: return swiglu_op(prepare, node);
    case Op::kExpertSum: {
      const Values y = prepare.values(node.inputs[0]), shared = prepare.values(node.inputs[2]);
      const Values sum = prepare.values(node.outputs[0]);
      const std::int32_t* const ids = prepare.ints(node.inputs[1]);
      const auto top_k = static_cast<int>(columns_of(prepare.value(node.inputs[1])));
      const RowSpace rows = prepare.space_of(node.outputs[0]);
      return DeviceOp([=](const Launch& launch) {
        expert_sum(step->data(), launch.sized(rows), ids, top_k, y, shared, sum, launch.stream);
      });
    }
    default: return stack_op(prepare, node);
  }
}

}  // namespace deepinfer::backend::cuda
