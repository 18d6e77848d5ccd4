#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/kernels/common/hc_site.h"
#include "backend/cuda/ops.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

const Node* part_of(const Prepare& prepare, const Node& node, Op op) {
  if (node.op == op) return &node;
  if (node.op != Op::kFusedHcSite) return nullptr;
  for (const int index : std::get<graph::FusedAttributes>(node.attributes).parts) {
    const Node& part = prepare.graph.fused_parts[static_cast<std::size_t>(index)];
    if (part.op == op) return &part;
  }
  return nullptr;
}

// The coefficients whose mix a fused gate iterates: of the last site before it, if nothing reads that mix before.
const Node* deferring_site(const Prepare& prepare, const Node& gate) {
  const std::vector<ScheduledNode>& nodes = prepare.schedule.nodes();
  const auto at = static_cast<std::size_t>(
      std::ranges::find(nodes, &gate, [](const ScheduledNode& scheduled) { return scheduled.node; }) -
      nodes.begin());
  if (gate.op != Op::kFusedGate || at == nodes.size() || nodes[at].ahead()) return nullptr;
  const auto part = [&](std::size_t i) -> const Node& {
    return prepare.graph
        .fused_parts[static_cast<std::size_t>(std::get<graph::FusedAttributes>(gate.attributes).parts[i])];
  };
  if (part(1).op != Op::kGateTopK || prepare.has_memory(part(0).outputs[0])) return nullptr;
  const graph::Dim rows = prepare.value(part(1).outputs[0]).shape[0];
  for (std::size_t i = at; i-- > 0;) {
    if (nodes[i].segment != nodes[at].segment || nodes[i].node->op == Op::kFusedGate) return nullptr;
    if (nodes[i].ahead()) continue;
    const Node* const site = part_of(prepare, *nodes[i].node, Op::kHcCoefficients);
    if (site == nullptr) continue;
    const graph::ValueId comb = site->outputs[2];
    const auto reads_comb = [&](const ScheduledNode& scheduled) {
      return std::ranges::count(scheduled.node->inputs, comb) > 0;
    };
    const auto after = nodes.begin() + static_cast<std::ptrdiff_t>(at) + 1;
    if (std::any_of(nodes.begin(), after, reads_comb)) return nullptr;
    for (auto node = after; node != nodes.end(); ++node)
      if (node->ahead() && reads_comb(*node)) return nullptr;
    for (const graph::Seam& seam : prepare.graph.seams)
      if (seam.value == comb) return nullptr;
    return prepare.has_memory(comb) && prepare.value(comb).shape[0] == rows ? site : nullptr;
  }
  return nullptr;
}

bool defers(const Prepare& prepare, const Node& coefficients) {
  return std::ranges::any_of(prepare.schedule.nodes(), [&](const ScheduledNode& scheduled) {
    return scheduled.node->op == Op::kFusedGate && deferring_site(prepare, *scheduled.node) == &coefficients;
  });
}

// Launches that let others start only after they have waited themselves, of every step that has rows.
bool waits_first(Op op) {
  return op == Op::kFusedAttention || op == Op::kSparseAttention || op == Op::kExpertSum;
}

// Is the node at `at` an early site (ResidualSite::early)? What its expand reads, and the mix by which it collapses, is older than some
// launch that waits. A gate may be the last to write a mix.
bool is_early(const Prepare& prepare, const Node& fused) {
  const std::vector<ScheduledNode>& nodes = prepare.schedule.nodes();
  const auto end =
      std::ranges::find(nodes, &fused, [](const ScheduledNode& scheduled) { return scheduled.node; });
  const Node* const expand = part_of(prepare, fused, Op::kHcExpand);
  const Node* const collapse = part_of(prepare, fused, Op::kHcCollapse);
  const Node* const own = part_of(prepare, fused, Op::kHcCoefficients);
  if (end == nodes.end() || expand == nullptr || collapse == nullptr || own == nullptr) return false;
  std::vector<graph::ValueId> read = {expand->inputs[1], expand->inputs[2], expand->inputs[3]};
  if (collapse->inputs[1] != own->outputs[0]) read.push_back(collapse->inputs[1]);
  return std::ranges::all_of(read, [&](graph::ValueId id) {
    bool made = false, old = false;
    for (auto node = nodes.begin(); node != end; ++node) {
      if (node->ahead() || node->segment != end->segment) continue;
      const bool makes = std::ranges::count(node->node->outputs, id) > 0;
      made = made || makes;
      if (makes || node->node->op == Op::kFusedGate) old = false;
      if (waits_first(node->node->op)) old = made;
    }
    return old;
  });
}

Result<void> take_coefficients(const Prepare& prepare, const Node& node, ResidualSite& site) {
  const auto& attributes = std::get<graph::HcAttributes>(node.attributes);
  const int hidden = prepare.graph.hidden;
  if (attributes.streams != 4 || hidden % kSiteChannels != 0)
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile a residual site of {} streams of {} channels; the cuda backend takes 4 "
                    "streams of a multiple of {} channels",
                    attributes.streams, hidden, kSiteChannels));
  site.shape = {attributes.streams, hidden, attributes.sinkhorn_iterations, attributes.rms_eps,
                attributes.hc_eps};
  DI_ASSIGN(site.terms, prepare.weights.terms_of_site(node.weights[0]));
  DI_ASSIGN(site.base, prepare.weights.values(node.weights[1]));
  DI_ASSIGN(site.scale, prepare.weights.values(node.weights[2]));
  site.streams = prepare.values(node.inputs[0]);
  DI_CHECK(site.streams.data != nullptr && site.streams.bf16);
  site.pre = prepare.floats(node.outputs[0]);
  site.post = prepare.floats(node.outputs[1]);
  site.comb = prepare.floats(node.outputs[2]);
  site.defers = defers(prepare, node);
  return {};
}

DeviceOp launched(const Prepare& prepare, const ResidualSite& site, RowSpace rows, graph::ValueId output) {
  const std::int64_t workspace =
      residual_site_workspace(site.shape, static_cast<int>(prepare.most_rows(output)));
  prepare.want_scratch(static_cast<std::size_t>(workspace) * sizeof(float));
  return [=, step = &prepare.step, scratch = prepare.scratch,
          multiprocessors = prepare.device->multiprocessors()](const Launch& launch) {
    residual_site(step->data(), launch.sized(rows), site, multiprocessors, scratch->at<float>(),
                  launch.stream);
  };
}

}  // namespace

Result<DeviceOp> prepare_coefficients(const Prepare& prepare, const Node& node) {
  ResidualSite site;
  DI_TRY(take_coefficients(prepare, node, site));
  return launched(prepare, site, prepare.space_of(node.outputs[0]), node.outputs[0]);
}

DeferredMix deferred_mix(const Prepare& prepare, const Node& gate) {
  const Node* const site = deferring_site(prepare, gate);
  if (site == nullptr) return {};
  const auto& attributes = std::get<graph::HcAttributes>(site->attributes);
  return {prepare.floats(site->outputs[2]), attributes.sinkhorn_iterations, attributes.hc_eps};
}

// The parts of a fused site are an expand (not at every site), coefficients, a collapse and a norm.
Result<DeviceOp> prepare_residual_site(const Prepare& prepare, const Node& node) {
  ResidualSite site;
  RowSpace rows;
  graph::ValueId own_pre = graph::kNoValue, collapse_pre = graph::kNoValue, collapsed = graph::kNoValue;
  for (const int index : std::get<graph::FusedAttributes>(node.attributes).parts) {
    const Node& part = prepare.graph.fused_parts[static_cast<std::size_t>(index)];
    switch (part.op) {
      case Op::kHcExpand:
        site.y = prepare.values(part.inputs[0]);
        site.h = prepare.values(part.inputs[1]);
        site.post_in = prepare.floats(part.inputs[2]);
        site.comb_in = prepare.floats(part.inputs[3]);
        site.early = is_early(prepare, node);
        break;
      case Op::kHcCoefficients:
        DI_TRY(take_coefficients(prepare, part, site));
        own_pre = part.outputs[0];
        break;
      case Op::kHcCollapse:
        collapse_pre = part.inputs[1];
        collapsed = part.outputs[0];
        break;
      case Op::kRmsNorm: {
        DI_ASSIGN(site.norm_weight, prepare.weights.values(part.weights[0]));
        site.norm_eps = std::get<graph::NormAttributes>(part.attributes).eps;
        site.normed = prepare.values(part.outputs[0]);
        rows = prepare.space_of(part.outputs[0]);
        break;
      }
      default: DI_CHECK_MSG(false, "a residual site with a part that it does not have");
    }
  }
  if (collapse_pre != own_pre) site.pre_in = prepare.floats(collapse_pre);
  // x has memory of its own only where something outside wants it.
  site.collapsed = prepare.has_memory(collapsed) ? prepare.values(collapsed) : site.normed;
  // Values that nothing outside uses have none; the kernel writes them all.
  for (float** unused : {&site.pre, &site.post, &site.comb}) {
    if (*unused != nullptr) continue;
    const std::vector<float> room(static_cast<std::size_t>(prepare.limits.tokens) * 16);
    DI_ASSIGN(const float* const kept, prepare.keep(room));
    *unused = const_cast<float*>(kept);
  }
  DI_CHECK(site.normed.data != nullptr && site.normed.bf16);
  return launched(prepare, site, rows, node.outputs[0]);
}

}  // namespace deepinfer::backend::cuda
