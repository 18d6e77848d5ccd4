#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "backend/cuda/kernels/common/linear.h"
#include "backend/cuda/kernels/sm90/linear_many.h"
#include "backend/cuda/ops.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

// Packed weights need bf16 input and whole words of it; everything else is multiplied plainly.
bool packs(const Prepare& prepare, const Node& node) {
  const std::int64_t k = prepare.weights.weight(node.weights[0]).k;
  return prepare.weights.packable(node.weights[0]) &&
         prepare.value(node.inputs[0]).type == graph::ElementType::kBf16 && k % 2 == 0;
}

int groups_of(const Prepare& prepare, const Node& node) {
  if (node.op != Op::kGroupedLinear) return 1;
  return static_cast<int>(columns_of(prepare.value(node.inputs[0])) /
                          prepare.weights.weight(node.weights[0]).k);
}

Result<void> check_groups(const Prepare& prepare, const Node& node, int groups) {
  const graph::Weight& weight = prepare.weights.weight(node.weights[0]);
  if (groups >= 1 && weight.n % groups == 0 && weight.n / groups % kTileOutputs == 0) return {};
  if (groups == 1) return {};
  return make_error(ErrorKind::kUnsupported,
                    fmt::format("cannot compile {}: {} groups of {} outputs; each needs a multiple of {}",
                                weight.name, groups, groups > 0 ? weight.n / groups : 0, kTileOutputs));
}

Result<DeviceOp> plain_product(const Prepare& prepare, const Node& node) {
  DI_ASSIGN(const PlainMatrix weight, prepare.weights.plain(node.weights[0]));
  const Values x = prepare.values(node.inputs[0]), y = prepare.values(node.outputs[0]);
  const int groups = groups_of(prepare, node);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    linear_plain(step->data(), launch.sized(rows), weight, groups, x, y, launch.stream);
  });
}

Result<void> add_part(const Prepare& prepare, const Node& node, LinearParts& parts) {
  DI_ASSIGN(const PackedStack weight, prepare.weights.packed(node.weights[0]));
  parts.part[parts.count++] = {weight.matrix, prepare.values(node.outputs[0]), groups_of(prepare, node)};
  return {};
}

// Plans of the kernels for many rows, one a row tile. Without parts: one of them has a shape that they are not made for, as small
// models have.
struct ManyPlans {
  std::vector<PackedMatrix> parts;
  std::map<int, LinearManyPlan> by_row_tile;
};
ManyPlans plan_many(const Prepare& prepare, const LinearParts& parts, const Values& x, const RowSpace& rows,
                    std::int64_t most_rows) {
  ManyPlans plans;
  std::vector<LinearMany> products;
  for (int i = 0; i < parts.count; ++i) {
    const LinearPart& part = parts.part[i];
    LinearMany linear;
    linear.weight = part.weight;
    linear.x = x.data;
    linear.x_stride = x.columns;
    linear.groups = part.groups;
    linear.y = part.y.data;
    linear.y_stride = part.y.columns;
    linear.y_bf16 = part.y.bf16;
    linear.count = prepare.step.data().counts + rows.count;
    linear.most_rows = static_cast<int>(most_rows);
    products.push_back(linear);
    plans.parts.push_back(part.weight);
  }
  for (const int row_tile : kLinearRowTiles) {
    LinearManyPlan plan;
    if (plan_linear_many(products, row_tile, &plan) != cudaSuccess) return {};
    plans.by_row_tile.emplace(row_tile, plan);
  }
  return plans;
}

// Parts that share an input, in one launch.
DeviceOp packed_product(const Prepare& prepare, const Node& node, const LinearParts& parts) {
  const Values x = prepare.values(node.inputs[0]);
  const RowSpace rows = prepare.space_of(node.outputs[0]);
  const std::int64_t most_rows = prepare.most_rows(node.outputs[0]);
  ManyPlans many;
  if (prepare.device->choices().has_many_rows(most_rows) && prepare.device->hopper())
    many = plan_many(prepare, parts, x, rows, most_rows);
  return [=, step = &prepare.step, device = prepare.device](const Launch& launch) {
    const RowSpace sized = launch.sized(rows);
    const int processors = device->multiprocessors();
    const KernelChoices& choices = device->choices();
    if (many.parts.empty() || !choices.has_many_rows(sized.most)) {
      linear_few(step->data(), sized, parts, x, processors, launch.stream);
      return;
    }
    const LinearTiling forced = choices.tiling;
    const bool forces =
        forced.row_tile != 0 &&
        std::ranges::all_of(many.parts, [&](const PackedMatrix& weight) { return can_tile(weight, forced); });
    const LinearTiling tiling = forces ? forced : linear_tiling(many.parts, sized.most, processors);
    const LinearManyPlan& plan = many.by_row_tile.at(tiling.row_tile);
    device->note(launch_linear_many(plan, tiling.split, sized.most, processors, launch.stream),
                 "launched a product");
  };
}

}  // namespace

Result<DeviceOp> prepare_linear(const Prepare& prepare, const Node& node) {
  std::vector<const Node*> nodes = {&node};
  if (node.op == Op::kFusedLinears) {
    nodes.clear();
    for (const int part : std::get<graph::FusedAttributes>(node.attributes).parts)
      nodes.push_back(&prepare.graph.fused_parts[static_cast<std::size_t>(part)]);
  }
  std::vector<DeviceOp> launches;
  LinearParts parts;
  const Node* first = nullptr;
  for (const Node* part : nodes) {
    DI_TRY(check_groups(prepare, *part, groups_of(prepare, *part)));
    if (!packs(prepare, *part)) {
      DI_ASSIGN(DeviceOp op, plain_product(prepare, *part));
      launches.push_back(std::move(op));
      continue;
    }
    first = part;
    DI_TRY(add_part(prepare, *part, parts));
    if (parts.count == kMostParts) {
      launches.push_back(packed_product(prepare, *first, parts));
      parts = {};
    }
  }
  if (parts.count > 0) launches.push_back(packed_product(prepare, *first, parts));
  if (launches.size() == 1) return std::move(launches.front());
  return DeviceOp([launches = std::move(launches)](const Launch& launch) {
    for (const DeviceOp& op : launches)
      op(launch);
  });
}

}  // namespace deepinfer::backend::cuda
