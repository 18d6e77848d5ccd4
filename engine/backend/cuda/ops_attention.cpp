#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/kernels/common/attention.h"
#include "backend/cuda/ops.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

constexpr std::int64_t kScoreBytes = std::int64_t{256} << 20;  // of index scores at a time

}  // namespace

Result<DeviceOp> prepare_attention(const Prepare& prepare, const Node& node) {
  // The selection of every visible row has no columns; attention counts the rows itself.
  if (node.op == Op::kSelectAllRows) return DeviceOp([](const Launch&) {});
  const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
  SparseAttention attention;
  attention.heads = attributes.heads;
  attention.head_dim = attributes.head_dim;
  attention.window = attributes.window;
  attention.scale = attributes.scale;
  attention.round_numerators = !prepare.wide();
  DI_ASSIGN(attention.sinks, prepare.weights.values(node.weights[0]));
  attention.window_axis = prepare.space_of(node.inputs[1]).axis;
  const state::StateClass* ring = prepare.reads(node, state::Kind::kWindow);
  DI_CHECK(ring != nullptr);
  attention.ring = prepare.record(*ring);
  if (node.inputs.size() > 2) {
    const state::StateClass* global = prepare.reads(node, state::Kind::kGlobalRows);
    DI_CHECK(global != nullptr);
    attention.ratio = attributes.ratio;
    attention.global = prepare.record(*global);
    attention.selected = static_cast<int>(columns_of(prepare.value(node.inputs[2])));
    if (attention.selected > 0) attention.selection = prepare.ints(node.inputs[2]);
  }
  if (attention.head_dim > 1024)
    return make_error(ErrorKind::kUnsupported,
                      fmt::format("cannot compile sparse_attention of {} channels; the cuda backend takes up to 1024",
                                  attention.head_dim));
  const Values q = prepare.values(node.inputs[0]), rows_made = prepare.values(node.inputs[1]);
  const Values o = prepare.values(node.outputs[0]);
  const RowSpace rows = prepare.space_of(node.inputs[0]);
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    sparse_attention_plain(step->data(), launch.sized(rows), attention, q, rows_made, o, launch.stream);
  });
}

Result<DeviceOp> prepare_index(const Prepare& prepare, const Node& node, int site_index) {
  const ScheduledSite& site = prepare.schedule.sites()[static_cast<std::size_t>(site_index)];
  const auto& attributes = std::get<graph::IndexAttributes>(node.attributes);
  const state::StateClass* keys = prepare.reads(node, state::Kind::kIndexKeys);
  DI_CHECK(keys != nullptr);
  IndexScores index{attributes.heads, attributes.head_dim, attributes.ratio, attributes.scale, prepare.record(*keys)};
  Selection selection;
  selection.ratio = attributes.ratio;
  if (site.candidates != nullptr) {
    const auto& wanted = std::get<graph::IndexAttributes>(site.candidates->attributes);
    selection.block_size = wanted.candidate_block_size;
    selection.blocks = static_cast<int>(columns_of(prepare.value(site.candidates->outputs[0])));
    selection.made = prepare.ints(site.candidates->outputs[0]);
  }
  Selection chosen;  // a site may make candidates for others and have a selection of its own
  chosen.ratio = attributes.ratio;
  if (site.select != nullptr) {
    chosen.top_k = static_cast<int>(columns_of(prepare.value(site.select->outputs[0])));
    chosen.out = prepare.ints(site.select->outputs[0]);
    if (site.select->inputs.size() > 1) {
      chosen.block_size = std::get<graph::IndexAttributes>(site.select->attributes).candidate_block_size;
      chosen.blocks = static_cast<int>(columns_of(prepare.value(site.select->inputs[1])));
      chosen.allowed = prepare.ints(site.select->inputs[1]);
    }
  }
  const std::int64_t stride = std::max<std::int64_t>(prepare.limits.context / attributes.ratio, 1);
  const std::int64_t most = prepare.most_rows(node.inputs[0]);
  KeptScores& kept = prepare.kept[static_cast<std::size_t>(site_index)];
  const std::int64_t block_stride = selection.block_size > 0 ? stride / selection.block_size + 1 : 0;
  std::int64_t batch = most;
  if (site.kept) {
    kept.stride = stride;
    DI_ASSIGN(kept.memory, DeviceBuffer::create(prepare.device, "kept index scores",
                                                static_cast<std::size_t>(most * stride) * sizeof(float)));
    prepare.want_scratch(static_cast<std::size_t>(most * block_stride) * sizeof(float));
  } else {
    batch = std::clamp<std::int64_t>(kScoreBytes / static_cast<std::int64_t>(sizeof(float)) / (stride + block_stride), 1,
                                     most);
    prepare.want_scratch(static_cast<std::size_t>(batch * (stride + block_stride)) * sizeof(float));
  }
  float* const kept_scores = site.kept ? kept.memory.as<float>() : nullptr;
  const Values q = prepare.values(node.inputs[0]), weights = prepare.values(node.inputs[1]);
  const RowSpace rows = prepare.space_of(node.inputs[0]);
  return DeviceOp([=, step = &prepare.step, scratch = prepare.scratch](const Launch& launch) {
    const RowSpace sized = launch.sized(rows);
    const std::int64_t visible = std::max<std::int64_t>(launch.context / index.ratio, 1);
    for (int first = 0; first < sized.most; first += static_cast<int>(batch)) {
      const int count = std::min(static_cast<int>(batch), sized.most - first);
      float* const scores = kept_scores != nullptr ? kept_scores : scratch->at<float>();
      float* const block_scores =
          kept_scores != nullptr ? scratch->at<float>() : scratch->at<float>() + batch * stride;
      index_scores_plain(step->data(), sized, index, q, weights, first, count, visible, scores, stride, launch.stream);
      if (selection.made != nullptr)
        select_rows(step->data(), sized, selection, first, count, scores, stride, block_scores, launch.stream);
      if (chosen.out != nullptr)
        select_rows(step->data(), sized, chosen, first, count, scores, stride, nullptr, launch.stream);
    }
  });
}

}  // namespace deepinfer::backend::cuda
