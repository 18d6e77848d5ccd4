#include <fmt/format.h>

#include <array>

#include "backend/cuda/kernels/common/experts.h"
#include "backend/cuda/kernels/common/records.h"
#include "backend/cuda/kernels/sm90/experts_many.h"
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
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile {}: {} of {} experts; the cuda backend takes up to 32 of {}",
                    graph::op_name(node.op), gate.top_k, gate.experts, kMostExperts));
  return gate;
}

Result<void> add_bias(const Prepare& prepare, const Node& node, Gate& gate) {
  DI_ASSIGN(gate.bias, prepare.weights.values(node.weights[0]));
  gate.image_bias = gate.bias;
  if (node.weights.size() > 1) {
    DI_ASSIGN(gate.image_bias, prepare.weights.values(node.weights[1]));
  }
  return {};
}

// Places of an assignment in memory, counted in 4-byte words.
std::size_t assignment_words(int experts, std::int64_t pairs) {
  return static_cast<std::size_t>(2 * experts + 2 + most_passes(experts, pairs) + pairs);
}
Assignment assignment_at(std::int32_t* words, int experts, std::int64_t pairs) {
  Assignment assignment;
  assignment.counts = words;
  assignment.first = words + experts;
  assignment.active_count = words + 2 * experts + 1;
  assignment.active = words + 2 * experts + 2;
  assignment.slots = assignment.active + most_passes(experts, pairs);
  return assignment;
}

// Does the gate that makes `ids` assign the pairs of few rows, for the fused experts that read it? Both ask.
bool gate_assigns(const Prepare& prepare, graph::ValueId ids) {
  const auto part = [&](const Node& node, std::size_t i) -> const Node& {
    return prepare.graph
        .fused_parts[static_cast<std::size_t>(std::get<graph::FusedAttributes>(node.attributes).parts[i])];
  };
  int gates = 0, readers = 0, segment = -1;
  for (const ScheduledNode& scheduled : prepare.schedule.nodes()) {
    const Node& node = *scheduled.node;
    if (scheduled.ahead()) continue;
    if (node.op == Op::kFusedGate && part(node, 1).op == Op::kGateTopK && part(node, 1).outputs[0] == ids &&
        !prepare.has_memory(part(node, 0).outputs[0])) {
      ++gates;
      segment = scheduled.segment;
    }
    if (node.op == Op::kFusedExperts && part(node, 0).inputs[1] == ids && scheduled.segment == segment)
      ++readers;
  }
  return gates == 1 && readers == 1;
}
Assignment gates_assignment(const Scratch& scratch, int experts, int top_k) {
  return assignment_at(scratch.at<std::int32_t>(scratch.routing_at()), experts,
                       std::int64_t{kMostAssigningRows} * top_k);
}

// Router scores and choice in one: the parts are the scores, and a gate or a table look-up.
Result<DeviceOp> fused_gate_op(const Prepare& prepare, const Node& node) {
  const auto& parts = std::get<graph::FusedAttributes>(node.attributes).parts;
  const Node& scores = prepare.graph.fused_parts[static_cast<std::size_t>(parts[0])];
  const Node& choice = prepare.graph.fused_parts[static_cast<std::size_t>(parts[1])];
  DI_ASSIGN(Gate gate, gate_of(prepare, choice));
  const float temperature = std::get<graph::GateAttributes>(scores.attributes).gate_temp;
  const float* const z = prepare.floats(scores.inputs[0]);
  std::int32_t* const ids = prepare.ints(choice.outputs[0]);
  float* const weights = prepare.floats(choice.outputs[1]);
  const RowSpace rows = prepare.space_of(choice.outputs[0]);
  const StepBuffers* const step = &prepare.step;
  if (choice.op == Op::kGateTopK && !prepare.has_memory(scores.outputs[0])) {
    DI_TRY(add_bias(prepare, choice, gate));
    const bool assigns = gate_assigns(prepare, choice.outputs[0]);
    if (assigns)
      prepare.scratch->routing_bytes =
          std::max(prepare.scratch->routing_bytes,
                   assignment_words(gate.experts, std::int64_t{kMostAssigningRows} * gate.top_k) *
                       sizeof(std::int32_t));
    const DeferredMix mix = deferred_mix(prepare, node);
    return DeviceOp([=, scratch = prepare.scratch](const Launch& launch) {
      const RowSpace sized = launch.sized(rows);
      const Assignment assignment = gates_assignment(*scratch, gate.experts, gate.top_k);
      GateAlso also;
      if (assigns && gate_can_assign(sized.most, gate.experts)) also.assignment = &assignment;
      if (sized.most <= kMostFewSiteRows) also.mix = mix;
      fused_gate(step->data(), sized, gate, z, temperature, ids, weights, also, launch.stream);
    });
  }
  // Scores that something else reads, and tables, in two launches.
  const std::int32_t* table = nullptr;
  if (choice.op == Op::kHashRoute) {
    DI_ASSIGN(table, prepare.weights.integers(choice.weights[0]));
  } else {
    DI_TRY(add_bias(prepare, choice, gate));
  }
  float* const kept = prepare.has_memory(scores.outputs[0]) ? prepare.floats(scores.outputs[0]) : nullptr;
  prepare.want_scratch(static_cast<std::size_t>(prepare.most_rows(choice.outputs[0]) * gate.experts) *
                       sizeof(float));
  return DeviceOp([=, scratch = prepare.scratch](const Launch& launch) {
    float* const s = kept != nullptr ? kept : scratch->at<float>();
    router_scores(step->data(), launch.sized(rows), z, gate.experts, temperature, s, launch.stream);
    if (table != nullptr)
      hash_route(step->data(), launch.sized(rows), gate, table, s, ids, weights, launch.stream);
    else
      gate_top_k(step->data(), launch.sized(rows), gate, s, ids, weights, launch.stream);
  });
}

Result<DeviceOp> gate_op(const Prepare& prepare, const Node& node) {
  DI_ASSIGN(Gate gate, gate_of(prepare, node));
  DI_TRY(add_bias(prepare, node, gate));
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
  if (prepare.wide() || !prepare.weights.packable(node.weights[0]) || first.k % 2 != 0 ||
      !experts_fit(first.k)) {
    constexpr std::int64_t kMostPairs = 65535;  // the second dimension of a grid
    if (prepare.most_rows(node.inputs[1]) * top_k > kMostPairs)
      return make_error(
          ErrorKind::kUnsupported,
          fmt::format("cannot compile {}: {} rows of {} experts in f32; the cuda backend takes {} together",
                      graph::op_name(node.op), prepare.most_rows(node.inputs[1]), top_k, kMostPairs),
          "lower --step-tokens");
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
  const std::int64_t pairs = prepare.most_rows(node.inputs[1]) * top_k;
  prepare.want_scratch(assignment_words(experts, pairs) * sizeof(std::int32_t));
  return DeviceOp([=, scratch = prepare.scratch, device = prepare.device,
                   count = static_cast<int>(node.weights.size())](const Launch& launch) {
    const Assignment assignment = assignment_at(scratch->at<std::int32_t>(), experts, pairs);
    assign_experts(step->data(), launch.sized(rows), ids, experts, top_k, assignment, launch.stream);
    experts_few(launch.sized(rows), parts.data(), count, top_k, share, {}, input, assignment, false,
                device->multiprocessors(), launch.stream);
  });
}

// The kernels for many rows an expert, where the shapes are what they are made for. Addresses of scratch memory come with a launch.
struct ManyExperts {
  bool usable = false;
  ExpertsGateUpPlan gate_up;
  ExpertsDownPlan down;
};
ManyExperts plan_many(const std::array<StackPart, 2>& stacks, const StackPart& last,
                      const Activation& activation, const Values& x, int top_k) {
  ManyExperts many;
  ExpertsGateUp gate_up;
  gate_up.gate = stacks[0].weight.matrix;
  gate_up.up = stacks[1].weight.matrix;
  gate_up.pairs.experts = stacks[0].weight.experts;
  gate_up.pairs.top_k = top_k;
  gate_up.x = x.data;
  gate_up.x_stride = x.columns;
  gate_up.weight = activation.weights;
  gate_up.limit = activation.limit;
  gate_up.t = x.data;  // any aligned address while it is planned
  ExpertsDown down;
  down.down = last.weight.matrix;
  down.pairs = gate_up.pairs;
  down.t = x.data;
  down.y = x.data;
  many.usable = plan_experts_gate_up_many(gate_up, &many.gate_up) == cudaSuccess &&
                plan_experts_down_many(down, &many.down) == cudaSuccess;
  return many;
}

// All of the routed experts: assignment, gate and up with their SwiGLU, down. What is between lies in scratch memory.
Result<DeviceOp> fused_experts_op(const Prepare& prepare, const Node& node) {
  const auto& indices = std::get<graph::FusedAttributes>(node.attributes).parts;
  const auto part = [&](std::size_t i) -> const Node& {
    return prepare.graph.fused_parts[static_cast<std::size_t>(indices[i])];
  };
  const std::size_t end = indices.size();
  const Node &gate_up = part(0), &activation = part(1), &down = part(end - 1);
  const Node* const quantise = end == 4 ? &part(2) : nullptr;  // of the activation
  for (std::size_t inside = 0; inside + 1 < end; ++inside)
    for (const graph::ValueId id : part(inside).outputs)
      if (prepare.has_memory(id))
        return make_error(
            ErrorKind::kUnsupported,
            fmt::format("cannot compile: '{}' is read from inside the fused experts of layer {}",
                        prepare.value(id).name, node.layer));
  for (const graph::WeightId id : {gate_up.weights[0], gate_up.weights[1], down.weights[0]})
    if (!prepare.weights.packable(id) || prepare.weights.weight(id).k % 2 != 0 ||
        !experts_fit(prepare.weights.weight(id).k))
      return make_error(
          ErrorKind::kUnsupported,
          fmt::format(
              "cannot compile {} of {} columns: the cuda backend takes experts in FP4, FP8 or bf16 of an "
              "even width that fits into shared memory",
              prepare.weights.weight(id).name, prepare.weights.weight(id).k));
  const Values x = prepare.values(gate_up.inputs[0]);
  const std::int32_t* const ids = prepare.ints(gate_up.inputs[1]);
  const auto top_k = static_cast<int>(columns_of(prepare.value(gate_up.inputs[1])));
  const RowSpace rows = prepare.space_of(gate_up.inputs[1]);
  std::array<StackPart, 2> stacks = {};
  for (std::size_t i = 0; i < 2; ++i) {
    DI_ASSIGN(stacks[i].weight, prepare.weights.packed(gate_up.weights[i]));
  }
  StackPart last;
  DI_ASSIGN(last.weight, prepare.weights.packed(down.weights[0]));
  Activation swiglu;
  swiglu.fused = true;
  swiglu.limit = std::get<graph::SwiGluAttributes>(activation.attributes).limit;
  if (activation.inputs.size() > 2) swiglu.weights = prepare.floats(activation.inputs[2]);
  const int experts = stacks[0].weight.experts;
  last.out = prepare.values(down.outputs[0]);
  last.out.columns = last.weight.matrix.n;  // a pair's row
  DI_CHECK_MSG(last.out.bf16, "contributions of experts are rounded to bf16");
  const std::int64_t width = stacks[0].weight.matrix.n;
  const std::int64_t pairs = prepare.most_rows(gate_up.inputs[1]) * top_k;
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t t_at = aligned(assignment_words(experts, pairs) * sizeof(std::int32_t));
  prepare.want_scratch(t_at + static_cast<std::size_t>(pairs * width) * 2);
  RecordShape held;  // of the activation
  if (quantise != nullptr) {
    held = record_shape(std::get<graph::QuantiseAttributes>(quantise->attributes).record);
    DI_CHECK(held.channels == width);
  }
  const bool by_gate = gate_assigns(prepare, gate_up.inputs[1]);
  const ManyExperts many =
      prepare.device->hopper() ? plan_many(stacks, last, swiglu, x, top_k) : ManyExperts{};
  return DeviceOp(
      [=, step = &prepare.step, scratch = prepare.scratch, device = prepare.device](const Launch& launch) {
        const RowSpace sized = launch.sized(rows);
        const bool assigned = by_gate && gate_can_assign(sized.most, experts);
        const Assignment assignment = assigned ? gates_assignment(*scratch, experts, top_k)
                                               : assignment_at(scratch->at<std::int32_t>(), experts, pairs);
        const Values t{scratch->at<void>(t_at), true, width};
        std::array<StackPart, 2> first = stacks;
        first[0].out = t;
        // In place, pair by pair: rows of t are pairs in either kernel.
        const auto quantise_activation = [&] {
          if (held.channels == 0) return;
          const Values vectors{t.data, true, width * top_k};
          fake_quantise(step->data(), sized, held, vectors, vectors, launch.stream);
        };
        if (!assigned) assign_experts(step->data(), sized, ids, experts, top_k, assignment, launch.stream);
        if (launch.assigned) launch.assigned();
        if (many.usable && device->choices().has_many_pairs(sized.most, top_k, experts)) {
          ExpertsGateUpPlan gate_up_plan = many.gate_up;
          gate_up_plan.experts.pairs.first = assignment.first;
          gate_up_plan.experts.pairs.slots = assignment.slots;
          gate_up_plan.experts.t = t.data;
          ExpertsDownPlan down_plan = many.down;
          down_plan.experts.pairs = gate_up_plan.experts.pairs;
          down_plan.experts.t = t.data;
          down_plan.experts.y = last.out.data;
          device->note(launch_experts_gate_up_many(gate_up_plan, launch.stream), "launched experts");
          quantise_activation();
          device->note(launch_experts_down_many(down_plan, launch.stream), "launched experts");
        } else {
          experts_few(sized, first.data(), 2, top_k, top_k, swiglu, x, assignment, false,
                      device->multiprocessors(), launch.stream);
          quantise_activation();
          experts_few(sized, &last, 1, top_k, 1, {}, t, assignment, true, device->multiprocessors(),
                      launch.stream);
        }
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
    case Op::kFusedGate: return fused_gate_op(prepare, node);
    case Op::kFusedExperts: return fused_experts_op(prepare, node);
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
