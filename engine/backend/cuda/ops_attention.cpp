#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/kernels/common/attention_plain.h"
#include "backend/cuda/kernels/common/index_scores.h"
#include "backend/cuda/kernels/common/select.h"
#include "backend/cuda/kernels/common/sparse_attention.h"
#include "backend/cuda/ops.h"
#include "base/check.h"

namespace deepinfer::backend::cuda {

using graph::Node;
using graph::Op;

namespace {

constexpr std::int64_t kScoreBytes = std::int64_t{256} << 20;  // of index scores at a time

std::int64_t most_keys(const PlainAttention& attention, std::int64_t context) {
  if (attention.ratio == 0) return attention.window;
  return attention.window + (attention.selection != nullptr ? attention.selected : context / attention.ratio);
}

bool stored_for_fast(RecordCode code) {
  return code == RecordCode::kBf16 || code == RecordCode::kFp8 || code == RecordCode::kNvfp4;
}

bool is_fast(const Prepare& prepare, const PlainAttention& attention) {
  const auto turns = [](const Rotation& rotation) {
    return rotation.pairs == 0 || rotation.pairs == kRotatedPairs;
  };
  return !prepare.wide() && attention.head_dim == kAttentionChannels && turns(attention.q_rotation) &&
         turns(attention.o_rotation) && attention.heads <= kMostAttentionHeads &&
         stored_for_fast(attention.ring.shape.code) &&
         (attention.ratio == 0 || stored_for_fast(attention.global.shape.code));
}

// Kernels for heads of 512 channels.
Result<DeviceOp> fast_attention(const Prepare& prepare, const PlainAttention& plain, RowSpace rows,
                                const Values& q, const Values& window_rows, const Values& o,
                                std::int64_t rows_at_most) {
  SparseAttention attention;
  attention.window_axis = plain.window_axis;
  attention.q = q.data;
  attention.window_rows = window_rows.data;
  attention.o = o.data;
  attention.sinks = plain.sinks;
  attention.scale = plain.scale;
  attention.heads = plain.heads;
  attention.window = plain.window;
  attention.ring = plain.ring;
  attention.has_rows = plain.ratio > 0;
  attention.rows = plain.global;
  attention.ratio = std::max(plain.ratio, 1);
  attention.selection = plain.selection;
  attention.columns = plain.selected;
  attention.q_rotation = plain.q_rotation;
  attention.o_rotation = plain.o_rotation;
  SparseAttention largest = attention;
  largest.most_keys = most_keys(plain, prepare.limits.context);
  largest.queries = rows;
  const std::int64_t workspace = split_workspace_bytes(split_partition(largest), rows_at_most);
  prepare.want_scratch(static_cast<std::size_t>(workspace));
  return DeviceOp(
      [=, step = &prepare.step, scratch = prepare.scratch, device = prepare.device](const Launch& launch) {
        SparseAttention sized = attention;
        sized.step = step->data();
        sized.queries = launch.sized(rows);
        sized.most_keys = most_keys(plain, launch.context);
        const KernelChoices& choices = device->choices();
        const int fused =
            sized.rows.shape.code == RecordCode::kNvfp4 ? choices.fused_queries_nvfp4 : choices.fused_queries;
        const cudaError_t error =
            choose_attention(sized, device->capability(), fused) == AttentionVariant::kFused
                ? launch_fused_attention(sized, device->multiprocessors(), launch.stream)
                : launch_split_attention(sized, scratch->at<void>(), workspace, launch.stream);
        device->note(error, "launched attention");
      });
}

// An attention by itself, or with the rotations of its queries and of its result.
struct AttentionParts {
  const Node* attention = nullptr;
  const Node* before = nullptr;
  const Node* after = nullptr;
};

AttentionParts parts_of(const Prepare& prepare, const Node& node) {
  if (node.op == Op::kSparseAttention) return {&node, nullptr, nullptr};
  AttentionParts parts;
  for (const int index : std::get<graph::FusedAttributes>(node.attributes).parts) {
    const Node* part = &prepare.graph.fused_parts[static_cast<std::size_t>(index)];
    if (part->op == Op::kSparseAttention)
      parts.attention = part;
    else
      (parts.attention == nullptr ? parts.before : parts.after) = part;
  }
  return parts;
}

}  // namespace

Result<DeviceOp> prepare_attention(const Prepare& prepare, const Node& whole) {
  // The selection of every visible row has no columns; attention counts the rows itself.
  if (whole.op == Op::kSelectAllRows) return DeviceOp([](const Launch&) {});
  const AttentionParts parts = parts_of(prepare, whole);
  const Node& node = *parts.attention;
  const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
  PlainAttention attention;
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
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile sparse_attention of {} channels; the cuda backend takes up to 1024",
                    attention.head_dim));
  if (parts.before != nullptr) attention.q_rotation = rotation_of(prepare, *parts.before);
  if (parts.after != nullptr) attention.o_rotation = rotation_of(prepare, *parts.after);
  const graph::ValueId q_value = parts.before != nullptr ? parts.before->inputs[0] : node.inputs[0];
  const graph::ValueId o_value = parts.after != nullptr ? parts.after->outputs[0] : node.outputs[0];
  const Values q = prepare.values(q_value), rows_made = prepare.values(node.inputs[1]);
  const Values o = prepare.values(o_value);
  const RowSpace rows = prepare.space_of(q_value);
  if (is_fast(prepare, attention))
    return fast_attention(prepare, attention, rows, q, rows_made, o, prepare.most_rows(q_value));
  return DeviceOp([=, step = &prepare.step](const Launch& launch) {
    sparse_attention_plain(step->data(), launch.sized(rows), attention, q, rows_made, o, launch.stream);
  });
}

namespace {

// What an index site makes of its scores.
struct IndexSite {
  int blocks = 0, block_size = 0;         // candidate blocks made, or allowed
  std::int32_t* made = nullptr;           // [R, blocks]
  const std::int32_t* allowed = nullptr;  // [R, blocks]
  int top_k = 0;
  std::int32_t* chosen = nullptr;  // [R, top_k]
};

IndexSite index_site(const Prepare& prepare, const ScheduledSite& scheduled) {
  IndexSite site;
  if (scheduled.candidates != nullptr) {
    site.block_size = std::get<graph::IndexAttributes>(scheduled.candidates->attributes).candidate_block_size;
    site.blocks = static_cast<int>(columns_of(prepare.value(scheduled.candidates->outputs[0])));
    site.made = prepare.ints(scheduled.candidates->outputs[0]);
  }
  if (scheduled.select != nullptr) {
    site.top_k = static_cast<int>(columns_of(prepare.value(scheduled.select->outputs[0])));
    site.chosen = prepare.ints(scheduled.select->outputs[0]);
    if (scheduled.select->inputs.size() > 1) {
      DI_CHECK_MSG(site.made == nullptr, "a site that makes candidates and is held to others");
      site.block_size = std::get<graph::IndexAttributes>(scheduled.select->attributes).candidate_block_size;
      site.blocks = static_cast<int>(columns_of(prepare.value(scheduled.select->inputs[1])));
      site.allowed = prepare.ints(scheduled.select->inputs[1]);
    }
  }
  return site;
}

struct IndexOperands {
  PlainIndexScores index;
  IndexSite site;
  Values q, weights;
  RowSpace rows;
  std::int64_t most_rows = 0;
};

// Scores of any sizes, or those that a seam keeps.
Result<DeviceOp> plain_index(const Prepare& prepare, const IndexOperands& with, KeptScores* kept) {
  PlainSelection made, chosen;
  made.ratio = chosen.ratio = with.index.ratio;
  made.block_size = chosen.block_size = with.site.block_size;
  made.blocks = chosen.blocks = with.site.blocks;
  made.made = with.site.made;
  chosen.top_k = with.site.top_k;
  chosen.out = with.site.chosen;
  chosen.allowed = with.site.allowed;
  const std::int64_t stride = std::max<std::int64_t>(prepare.limits.context / with.index.ratio, 1);
  const std::int64_t block_stride = with.site.made != nullptr ? stride / with.site.block_size + 1 : 0;
  std::int64_t batch = with.most_rows;
  if (kept != nullptr) {
    kept->stride = stride;
    DI_ASSIGN(kept->memory, DeviceBuffer::create(prepare.device, "kept index scores",
                                                 static_cast<std::size_t>(batch * stride) * sizeof(float)));
    prepare.want_scratch(static_cast<std::size_t>(batch * block_stride) * sizeof(float));
  } else {
    batch = std::clamp<std::int64_t>(
        kScoreBytes / static_cast<std::int64_t>(sizeof(float)) / (stride + block_stride), 1, with.most_rows);
    prepare.want_scratch(static_cast<std::size_t>(batch * (stride + block_stride)) * sizeof(float));
  }
  float* const kept_scores = kept != nullptr ? kept->memory.as<float>() : nullptr;
  return DeviceOp([=, step = &prepare.step, scratch = prepare.scratch](const Launch& launch) {
    const RowSpace sized = launch.sized(with.rows);
    const std::int64_t visible = std::max<std::int64_t>(launch.context / with.index.ratio, 1);
    for (int first = 0; first < sized.most; first += static_cast<int>(batch)) {
      const int count = std::min(static_cast<int>(batch), sized.most - first);
      float* const scores = kept_scores != nullptr ? kept_scores : scratch->at<float>();
      float* const block_scores =
          kept_scores != nullptr ? scratch->at<float>() : scratch->at<float>() + batch * stride;
      index_scores_plain(step->data(), sized, with.index, with.q, with.weights, first, count, visible, scores,
                         stride, launch.stream);
      if (made.made != nullptr)
        select_rows(step->data(), sized, made, first, count, scores, stride, block_scores, launch.stream);
      if (chosen.out != nullptr)
        select_rows(step->data(), sized, chosen, first, count, scores, stride, nullptr, launch.stream);
    }
  });
}

// Kernels for keys of 128 channels.
DeviceOp fast_index(const Prepare& prepare, const IndexOperands& with) {
  IndexScores index;
  index.query = with.q.data;
  index.weights = with.weights.data;
  index.heads = with.index.heads;
  index.scale = with.index.scale;
  index.keys = with.index.keys;
  index.ratio = with.index.ratio;
  index.candidates = with.site.allowed;
  index.candidate_columns = with.site.allowed != nullptr ? with.site.blocks : 0;
  index.block_size = std::max(with.site.block_size, 1);
  // Queries that see no more rows than are selected get all of them, unscored.
  index.enough = with.site.top_k;
  if (with.site.made != nullptr)
    index.enough = std::min<std::int64_t>(with.site.chosen != nullptr ? with.site.top_k : INT32_MAX,
                                          static_cast<std::int64_t>(with.site.blocks) * with.site.block_size);
  const std::int64_t candidates = static_cast<std::int64_t>(with.site.blocks) * with.site.block_size;
  const auto entries_of = [=, masked = with.site.allowed != nullptr](std::int64_t context) {
    const std::int64_t visible = std::max<std::int64_t>(context / with.index.ratio, 1);
    return masked
               ? std::min(candidates, (visible + index.block_size - 1) / index.block_size * index.block_size)
               : visible;
  };
  index.stride = (entries_of(prepare.limits.context) + 3) / 4 * 4;
  const std::int64_t batch = std::clamp<std::int64_t>(
      kScoreBytes / static_cast<std::int64_t>(sizeof(float)) / index.stride, 1, with.most_rows);
  prepare.want_scratch(static_cast<std::size_t>(batch * index.stride) * sizeof(float));
  return [=, step = &prepare.step, scratch = prepare.scratch, device = prepare.device](const Launch& launch) {
    IndexScores scores = index;
    scores.step = step->data();
    scores.queries = launch.sized(with.rows);
    scores.scores = scratch->at<float>();
    scores.most_entries = entries_of(launch.context);
    for (int first = 0; first < scores.queries.most; first += static_cast<int>(batch)) {
      scores.first_row = first;
      scores.row_count = std::min(static_cast<int>(batch), scores.queries.most - first);
      const IndexVariant variant =
          choose_index(scores, device->capability(), device->choices().shared_index_queries);
      device->note(variant == IndexVariant::kWarp
                       ? launch_index_scores(scores, device->multiprocessors(), launch.stream)
                       : launch_index_scores_sm90(scores, variant == IndexVariant::kManyQueries,
                                                  device->multiprocessors(), launch.stream),
                   "launched index scores");
      Selection selection;
      selection.step = scores.step;
      selection.queries = scores.queries;
      selection.first_row = first;
      selection.row_count = scores.row_count;
      selection.scores = scores.scores;
      selection.stride = scores.stride;
      selection.ratio = scores.ratio;
      selection.most_entries = scores.most_entries;
      if (with.site.made != nullptr) {
        Selection blocks = selection;
        blocks.block_size = with.site.block_size;
        blocks.out = with.site.made;
        blocks.columns = with.site.blocks;
        device->note(launch_selection(blocks, device->multiprocessors(), launch.stream),
                     "launched a selection");
      }
      if (with.site.chosen == nullptr) continue;
      selection.candidates = with.site.allowed;
      selection.candidate_columns = scores.candidate_columns;
      selection.block_size = with.site.allowed != nullptr ? with.site.block_size : 0;
      selection.out = with.site.chosen;
      selection.columns = with.site.top_k;
      device->note(launch_selection(selection, device->multiprocessors(), launch.stream),
                   "launched a selection");
    }
  };
}

}  // namespace

Result<DeviceOp> prepare_index(const Prepare& prepare, const Node& node, int site_index) {
  const ScheduledSite& scheduled = prepare.schedule.sites()[static_cast<std::size_t>(site_index)];
  const auto& attributes = std::get<graph::IndexAttributes>(node.attributes);
  const state::StateClass* keys = prepare.reads(node, state::Kind::kIndexKeys);
  DI_CHECK(keys != nullptr);
  IndexOperands with;
  with.index = {attributes.heads, attributes.head_dim, attributes.ratio, attributes.scale,
                prepare.record(*keys)};
  with.site = index_site(prepare, scheduled);
  with.q = prepare.values(node.inputs[0]);
  with.weights = prepare.values(node.inputs[1]);
  with.rows = prepare.space_of(node.inputs[0]);
  with.most_rows = prepare.most_rows(node.inputs[0]);
  const RecordCode code = with.index.keys.shape.code;
  const bool fast = !prepare.wide() && attributes.head_dim == kIndexChannels &&
                    attributes.heads <= kMostIndexHeads &&
                    (code == RecordCode::kMxfp4 || code == RecordCode::kBf16) && with.weights.bf16;
  if (fast && !scheduled.kept) return fast_index(prepare, with);
  return plain_index(prepare, with,
                     scheduled.kept ? &prepare.kept[static_cast<std::size_t>(site_index)] : nullptr);
}

}  // namespace deepinfer::backend::cuda
