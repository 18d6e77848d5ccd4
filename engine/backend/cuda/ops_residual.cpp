#include <fmt/format.h>

#include "backend/cuda/kernels/common/hc_site.h"
#include "backend/cuda/ops.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

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
