#include <fmt/format.h>

#include "backend/reference/arithmetic.h"
#include "backend/reference/table.h"

namespace deepinfer::backend::reference {

namespace {

// y[row][n] = W x[row], one panel of outputs at a time so that its weights stay in cache for all rows. The input of
// panel p starts at x + p / panels_per_group * W.k: block-diagonal matrices read one slice a group.
void multiply(const NodeRun& run, const Panels& weight, int64_t panels_per_group) {
  const FloatRows x = run.input(0);
  const FloatRows y = run.output(0);
  const bool round = run.rounds(0);
  run.parallel->run(weight.panels(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * Panels::kPanel;
      const int64_t count = std::min<int64_t>(Panels::kPanel, weight.n - first);
      const int64_t slice = p / panels_per_group * weight.k;
      for (int64_t row = 0; row < x.rows; ++row) {
        float sums[Panels::kPanel];
        multiply_panel(weight.panel(p), weight.k, x.row(row) + slice, sums);
        for (int64_t lane = 0; lane < count; ++lane)
          y.row(row)[first + lane] = rounded(round, sums[lane]);
      }
    }
  });
}

Result<Kernel> linear(PrepareContext& context, const graph::Node& node) {
  DI_ASSIGN(const auto weight, context.weights.panels(node.weights[0]));
  return Kernel([weight](const NodeRun& run) { multiply(run, *weight, weight->panels()); });
}

Result<Kernel> grouped_linear(PrepareContext& context, const graph::Node& node) {
  DI_ASSIGN(const auto weight, context.weights.panels(node.weights[0]));
  int64_t inputs = 1;
  const graph::Shape& shape = context.graph.values[static_cast<size_t>(node.inputs[0])].shape;
  for (size_t i = 1; i < shape.size(); ++i)
    inputs *= shape[i].value;
  const int64_t groups = inputs / weight->k;
  const int64_t outputs = groups > 0 ? weight->n / groups : 0;
  if (groups == 0 || inputs % weight->k != 0 || weight->n % groups != 0 || outputs % Panels::kPanel != 0)
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile {}: [{}, {}] on {} inputs; each group needs a multiple of {} outputs",
                    context.weights.weight(node.weights[0]).name, weight->n, weight->k, inputs,
                    Panels::kPanel));
  const int64_t panels_per_group = outputs / Panels::kPanel;
  return Kernel([weight, panels_per_group](const NodeRun& run) { multiply(run, *weight, panels_per_group); });
}

}  // namespace

void add_linear_kernels(OpTable& table) {
  table[graph::Op::kLinear] = linear;
  table[graph::Op::kGroupedLinear] = grouped_linear;
}

OpTable op_table() {
  OpTable table;
  add_stream_kernels(table);
  add_linear_kernels(table);
  add_record_kernels(table);
  add_attention_kernels(table);
  add_expert_kernels(table);
  return table;
}

}  // namespace deepinfer::backend::reference
