#include <algorithm>
#include <vector>

#include "backend/reference/arithmetic.h"
#include "backend/reference/moe.h"
#include "backend/reference/table.h"
#include "base/check.h"

namespace deepinfer::backend::reference {

using graph::Axis;
using graph::Node;
using graph::Op;

namespace {

constexpr int64_t kRowGrain = 8;

std::span<float> span_of(const FloatRows& rows, int64_t row) {
  return {rows.row(row), static_cast<size_t>(rows.columns)};
}

std::span<int32_t> span_of(const IntRows& rows, int64_t row) {
  return {rows.row(row), static_cast<size_t>(rows.columns)};
}

void router_scores_kernel(const NodeRun& run) {
  const FloatRows z = run.input(0);
  const float temp = run.attributes<graph::GateAttributes>().gate_temp;
  run.parallel->run(z.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      router_scores(span_of(z, row), temp, span_of(run.output(0), row));
  });
}

Result<Kernel> gate_top_k_kernel(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto bias, context.weights.values(node.weights[0]));
  auto image_bias = bias;
  if (node.weights.size() > 1) {
    DI_ASSIGN(image_bias, context.weights.values(node.weights[1]));
  }
  return Kernel([bias, image_bias](const NodeRun& run) {
    const FloatRows s = run.input(0);
    const Axis axis = run.row_dim(run.node->inputs[0]).axis;
    run.parallel->run(s.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const bool image = run.step->is_image(run.step->token_row(axis, row));
        gate_top_k(run.attributes<graph::GateAttributes>(), span_of(s, row), image ? *image_bias : *bias,
                   span_of(run.int_output(0), row), span_of(run.output(1), row));
      }
    });
  });
}

Result<Kernel> hash_route(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto experts, context.weights.integers(node.weights[0]));
  const int64_t experts_per_token = context.weights.weight(node.weights[0]).k;
  return Kernel([experts, experts_per_token](const NodeRun& run) {
    const FloatRows s = run.input(0);
    const Axis axis = run.row_dim(run.node->inputs[0]).axis;
    for (int64_t row = 0; row < s.rows; ++row) {
      const int32_t id = run.step->inputs().ids[static_cast<size_t>(run.step->token_row(axis, row))];
      const auto chosen = experts->begin() + id * experts_per_token;
      std::copy(chosen, chosen + experts_per_token, run.int_output(0).row(row));
      for (int64_t i = 0; i < experts_per_token; ++i)
        DI_CHECK_MSG(chosen[i] >= 0 && chosen[i] < s.columns, "tid2eid names an expert that does not exist");
      gate_weights(run.attributes<graph::GateAttributes>(), span_of(s, row), span_of(run.int_output(0), row),
                   span_of(run.output(1), row));
    }
  });
}

using Stack = std::vector<std::shared_ptr<const Panels>>;

Result<std::shared_ptr<Stack>> stack_of(PrepareContext& context, graph::WeightId id) {
  auto stack = std::make_shared<Stack>();
  const int experts = static_cast<int>(context.weights.weight(id).parts.size());
  for (int expert = 0; expert < experts; ++expert) {
    DI_ASSIGN(auto panels, context.weights.panels(id, expert));
    stack->push_back(std::move(panels));
  }
  return stack;
}

// The (row, slot) pairs that chose each expert, so that an expert's weights are read once a step.
//   slots  pair = row * k + slot, grouped by expert, ascending within one; first[e] .. first[e + 1]
struct Assignment {
  std::vector<int64_t> first;
  std::vector<int64_t> slots;
};

std::shared_ptr<Assignment> assignment_for(const PrepareContext& context, const Node& node, size_t ids_input,
                                           size_t experts) {
  const graph::Shape& shape = context.graph.values[static_cast<size_t>(node.inputs[ids_input])].shape;
  auto assignment = std::make_shared<Assignment>();
  assignment->first.resize(experts + 1);
  assignment->slots.resize(
      static_cast<size_t>(StepView::largest_extent(shape[0], context.limits) * shape[1].value));
  return assignment;
}

void assign(const IntRows& ids, Assignment& assignment) {
  const auto pairs = static_cast<size_t>(ids.rows * ids.columns);
  std::fill(assignment.first.begin(), assignment.first.end(), 0);
  for (size_t pair = 0; pair < pairs; ++pair) {
    const auto expert = static_cast<size_t>(ids.data[pair]);
    DI_CHECK_MSG(expert + 1 < assignment.first.size(), "an expert that does not exist");
    ++assignment.first[expert + 1];
  }
  for (size_t e = 1; e < assignment.first.size(); ++e)
    assignment.first[e] += assignment.first[e - 1];
  for (size_t pair = pairs; pair-- > 0;) {
    // Filled from the end: first[e + 1] walks down to the start of e, and is the start of e afterwards.
    const auto expert = static_cast<size_t>(ids.data[pair]);
    assignment.slots[static_cast<size_t>(--assignment.first[expert + 1])] = static_cast<int64_t>(pair);
  }
  // Every entry now holds the start of the expert before it: shift back.
  for (size_t e = 0; e + 1 < assignment.first.size(); ++e)
    assignment.first[e] = assignment.first[e + 1];
  assignment.first.back() = static_cast<int64_t>(pairs);
}

// out[pair] = W[expert] in(pair) for all pairs of all experts.
template <class Input>
void multiply_stack(const NodeRun& run, const Stack& stack, const Assignment& assignment, Input input,
                    float* out, bool round) {
  run.parallel->run(static_cast<int64_t>(stack.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto e = static_cast<size_t>(begin); e < static_cast<size_t>(end); ++e) {
      const Panels& weight = *stack[e];
      for (int64_t p = 0; p < weight.panels(); ++p) {
        const int64_t first = p * Panels::kPanel;
        const int64_t count = std::min<int64_t>(Panels::kPanel, weight.n - first);
        for (int64_t i = assignment.first[e]; i < assignment.first[e + 1]; ++i) {
          const int64_t pair = assignment.slots[static_cast<size_t>(i)];
          float sums[Panels::kPanel];
          multiply_panel(weight.panel(p), weight.k, input(pair), sums);
          for (int64_t lane = 0; lane < count; ++lane)
            out[pair * weight.n + first + lane] = rounded(round, sums[lane]);
        }
      }
    }
  });
}

Result<Kernel> expert_gate_up(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto gate, stack_of(context, node.weights[0]));
  DI_ASSIGN(const auto up, stack_of(context, node.weights[1]));
  const auto assignment = assignment_for(context, node, 1, gate->size());
  return Kernel([gate, up, assignment](const NodeRun& run) {
    const FloatRows x = run.input(0);
    const IntRows ids = run.int_input(1);
    assign(ids, *assignment);
    const auto input = [&](int64_t pair) { return x.row(pair / ids.columns); };
    multiply_stack(run, *gate, *assignment, input, run.output(0).data, run.rounds(0));
    multiply_stack(run, *up, *assignment, input, run.output(1).data, run.rounds(1));
  });
}

Result<Kernel> expert_down(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto down, stack_of(context, node.weights[0]));
  const auto assignment = assignment_for(context, node, 1, down->size());
  return Kernel([down, assignment](const NodeRun& run) {
    const FloatRows t = run.input(0);
    const int64_t width = down->front()->k;
    assign(run.int_input(1), *assignment);
    multiply_stack(
        run, *down, *assignment, [&](int64_t pair) { return t.data + pair * width; }, run.output(0).data,
        run.rounds(0));
  });
}

void swiglu_kernel(const NodeRun& run) {
  const FloatRows g = run.input(0);
  const FloatRows u = run.input(1);
  const float limit = run.attributes<graph::SwiGluAttributes>().limit;
  const bool weighted = run.node->inputs.size() > 2;
  const auto width = static_cast<size_t>(run.value(run.node->inputs[0]).shape.back().value);
  run.parallel->run(g.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      for (size_t first = 0; first < static_cast<size_t>(g.columns); first += width) {
        const float* weight = weighted ? run.input(2).row(row) + first / width : nullptr;
        swiglu(span_of(g, row).subspan(first, width), span_of(u, row).subspan(first, width), limit, weight,
               run.rounds(0), span_of(run.output(0), row).subspan(first, width));
      }
    }
  });
}

void expert_sum_kernel(const NodeRun& run) {
  const FloatRows y = run.input(0);
  run.parallel->run(y.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      expert_sum(span_of(run.int_input(1), row), y.row(row), span_of(run.input(2), row), run.rounds(0),
                 span_of(run.output(0), row));
  });
}

PrepareKernel plain(void (*kernel)(const NodeRun&)) {
  return [kernel](PrepareContext&, const Node&) -> Result<Kernel> { return Kernel(kernel); };
}

}  // namespace

void add_expert_kernels(OpTable& table) {
  table[Op::kRouterScores] = plain(router_scores_kernel);
  table[Op::kGateTopK] = gate_top_k_kernel;
  table[Op::kHashRoute] = hash_route;
  table[Op::kExpertGateUp] = expert_gate_up;
  table[Op::kSwiGlu] = plain(swiglu_kernel);
  table[Op::kExpertDown] = expert_down;
  table[Op::kExpertSum] = plain(expert_sum_kernel);
}

}  // namespace deepinfer::backend::reference
