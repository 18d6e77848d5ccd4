#include <fmt/format.h>

#include "backend/cpu/pack.h"
#include "backend/cpu/table.h"
#include "backend/reference/table.h"

namespace deepinfer::backend::cpu {

using graph::Node;
using graph::Op;

Result<OpTable> op_table(const KernelSet& set, int workers) {
  auto shared = std::make_shared<Shared>();
  shared->set = &set;
  DI_ASSIGN(shared->workspace, Workspace::create(workers));
  OpTable table = reference::op_table();
  add_linear_kernels(table, shared);
  add_stream_kernels(table, shared);
  add_expert_kernels(table, shared);
  add_attention_kernels(table, shared);
  table.shared_bytes = [shared] { return shared->workspace.taken(); };
  return table;
}

std::int64_t most_rows(const PrepareContext& context, graph::ValueId value) {
  return StepView::largest_extent(context.graph.values[static_cast<std::size_t>(value)].shape[0],
                                  context.limits);
}

Result<PackedWeightPtr> pack_weight(PrepareContext& context, const Shared& shared, graph::WeightId id,
                                    graph::ValueId input, std::int64_t slices) {
  const graph::Weight& weight = context.weights.weight(id);
  DI_TRY(storage_of(weight));
  const bool bf16 = context.graph.values[static_cast<std::size_t>(input)].type == graph::ElementType::kBf16;
  const Activations activations = bf16 ? Activations::kBf16 : Activations::kF32;
  const auto parts = static_cast<std::int64_t>(weight.parts.size());
  const std::int64_t rows = weight.n / slices;
  const std::int64_t bytes = packed_size(weight, rows).total();
  auto packed = std::make_shared<PackedWeight>();
  DI_ASSIGN(packed->memory,
            HugeBuffer::create(host_ledger(), "weights", static_cast<std::size_t>(bytes * parts * slices)));
  for (std::int64_t part = 0; part < parts; ++part)
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      std::byte* place = packed->memory.data() + static_cast<std::int64_t>(packed->parts.size()) * bytes;
      DI_ASSIGN(PackedMatrix matrix, pack(*shared.set, context.parallel, weight, static_cast<int>(part),
                                          activations, place, slice * rows, rows));
      packed->parts.push_back(matrix);
    }
  context.kernel_bytes += static_cast<std::int64_t>(packed->memory.taken());
  return PackedWeightPtr(std::move(packed));
}

namespace {

Result<Kernel> linear(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  DI_ASSIGN(const PackedWeightPtr weight, pack_weight(context, *shared, node.weights[0], node.inputs[0]));
  DI_TRY(reserve_linears(shared->workspace, most_rows(context, node.inputs[0]), weight->parts));
  return Kernel([weight, shared](const NodeRun& run) {
    const FloatRows x = run.input(0);
    const FloatRows y = run.output(0);
    LinearJob job;
    job.matrix = &weight->parts[0];
    job.y = y.data;
    job.y_stride = y.columns;
    job.round_bf16 = run.rounds(0);
    run_linears(*shared->set, *run.parallel, shared->workspace, x.data, x.columns, x.rows, {&job, 1});
  });
}

// Linears of one input in one dispatch: none waits for another's last tile.
Result<Kernel> fused_linears(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  struct Part {
    PackedWeightPtr weight;
    graph::ValueId output;
  };
  std::vector<Part> parts;
  std::vector<PackedMatrix> matrices;
  for (const int index : std::get<graph::FusedAttributes>(node.attributes).parts) {
    const Node& part = context.graph.fused_parts[static_cast<std::size_t>(index)];
    DI_ASSIGN(PackedWeightPtr weight, pack_weight(context, *shared, part.weights[0], part.inputs[0]));
    matrices.push_back(weight->parts[0]);
    parts.push_back({std::move(weight), part.outputs[0]});
  }
  DI_TRY(reserve_linears(shared->workspace, most_rows(context, node.inputs[0]), matrices,
                         static_cast<std::int64_t>(parts.size())));
  const auto jobs = std::make_shared<std::vector<LinearJob>>(parts.size());
  return Kernel([parts = std::move(parts), jobs, shared](const NodeRun& run) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const FloatRows y = run.floats(parts[i].output);
      LinearJob& job = (*jobs)[i];
      job.matrix = &parts[i].weight->parts[0];
      job.y = y.data;
      job.y_stride = y.columns;
      job.round_bf16 = run.value(parts[i].output).type == graph::ElementType::kBf16;
    }
    const FloatRows x = run.input(0);
    run_linears(*shared->set, *run.parallel, shared->workspace, x.data, x.columns, x.rows, *jobs);
  });
}

// Block diagonal: slice g of the outputs reads slice g of the inputs (attention.md 3.8).
Result<Kernel> grouped_linear(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  const graph::Weight& weight = context.weights.weight(node.weights[0]);
  std::int64_t inputs = 1;
  const graph::Shape& shape = context.graph.values[static_cast<std::size_t>(node.inputs[0])].shape;
  for (std::size_t i = 1; i < shape.size(); ++i)
    inputs *= shape[i].value;
  const std::int64_t groups = inputs / weight.k;
  if (groups == 0 || inputs % weight.k != 0 || weight.n % (groups * kGroupRows) != 0)
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile {}: [{}, {}] on {} inputs; each group needs a multiple of {} outputs",
                    weight.name, weight.n, weight.k, inputs, kGroupRows));
  DI_ASSIGN(const PackedWeightPtr packed,
            pack_weight(context, *shared, node.weights[0], node.inputs[0], groups));
  // The input seen as rows of K columns, `groups` a token: slice g reads rows g, g + groups, g + 2 groups, ...
  const std::int64_t rows = most_rows(context, node.inputs[0]);
  auto index = std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(rows * groups));
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t row = 0; row < rows; ++row)
      (*index)[static_cast<std::size_t>(g * rows + row)] = static_cast<std::int32_t>(row * groups + g);
  const auto jobs = std::make_shared<std::vector<LinearJob>>(static_cast<std::size_t>(groups));
  DI_TRY(reserve_linears(shared->workspace, rows * groups, packed->parts, groups));
  return Kernel([packed, index, jobs, rows, shared](const NodeRun& run) {
    const FloatRows x = run.input(0);
    const FloatRows y = run.output(0);
    const auto slices = static_cast<std::int64_t>(jobs->size());
    const std::int64_t outputs = packed->parts[0].n;
    for (std::int64_t g = 0; g < slices; ++g) {
      LinearJob& job = (*jobs)[static_cast<std::size_t>(g)];
      job.matrix = &packed->parts[static_cast<std::size_t>(g)];
      job.y = y.data + g * outputs;
      job.y_stride = y.columns;
      job.round_bf16 = run.rounds(0);
      job.x_rows = index->data() + g * rows;
      job.rows = x.rows;
    }
    run_linears(*shared->set, *run.parallel, shared->workspace, x.data, packed->parts[0].k, x.rows * slices,
                *jobs);
  });
}

}  // namespace

void add_linear_kernels(OpTable& table, const SharedPtr& shared) {
  table[Op::kLinear] = [shared](PrepareContext& context, const Node& node) {
    return linear(context, node, shared);
  };
  table[Op::kGroupedLinear] = [shared](PrepareContext& context, const Node& node) {
    return grouped_linear(context, node, shared);
  };
  table[Op::kFusedLinears] = [shared](PrepareContext& context, const Node& node) {
    return fused_linears(context, node, shared);
  };
}

}  // namespace deepinfer::backend::cpu
