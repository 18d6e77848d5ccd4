#include <algorithm>
#include <vector>

#include "backend/common/record.h"
#include "backend/reference/arithmetic.h"
#include "backend/reference/attention.h"
#include "backend/reference/index.h"
#include "backend/reference/table.h"
#include "base/check.h"

namespace deepinfer::backend::reference {

using graph::Axis;
using graph::Node;
using graph::Op;

namespace {

// --- index

struct IndexScratch {
  std::vector<float> key;
  std::vector<float> key_panel;  // [head_dim][16]
  std::vector<float> scores;     // one a visible row
  std::vector<float> block_scores;
  std::vector<int32_t> order;
};

// Scores of all rows that are visible at `position`.
std::span<float> score_row(const NodeRun& run, const state::StateClass& keys, Axis axis, int64_t row,
                           IndexScratch& scratch) {
  const auto& attributes = run.attributes<graph::IndexAttributes>();
  const SequenceSlice& sequence = run.step->sequence(run.step->sequence_of(axis, row));
  const int64_t visible = (run.step->position(axis, row) + 1) / attributes.ratio;
  const IndexQuery query{attributes.heads, attributes.head_dim, run.input(0).row(row), run.input(1).row(row),
                         attributes.scale};
  constexpr int kLanes = Panels::kPanel;
  for (int64_t first = 0; first < visible; first += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, visible - first);
    for (int64_t lane = 0; lane < count; ++lane) {
      decode_record(keys.record, block_row(keys, sequence, first + lane), scratch.key);
      for (size_t c = 0; c < scratch.key.size(); ++c)
        scratch.key_panel[c * kLanes + static_cast<size_t>(lane)] = scratch.key[c];
    }
    float scores[kLanes];
    score_keys(query, scratch.key_panel.data(), scores);
    std::copy(scores, scores + count, scratch.scores.begin() + first);
  }
  return std::span(scratch.scores).first(static_cast<size_t>(visible));
}

// Scores one query and makes what the site's nodes want of them.
void index_row(const NodeRun& run, const state::StateClass& keys, Axis axis, int64_t row,
               IndexScratch& scratch) {
  const IndexSite& site = *run.index_site;
  const std::span<float> scores = score_row(run, keys, axis, row, scratch);
  if (site.kept_scores != nullptr)
    std::copy(scores.begin(), scores.end(), site.kept_scores + site.kept_offsets[row]);
  if (site.candidates != nullptr) {
    const auto& attributes = std::get<graph::IndexAttributes>(site.candidates->attributes);
    candidate_blocks(scores, attributes.candidate_block_size,
                     {site.made_candidates.row(row), static_cast<size_t>(site.made_candidates.columns)},
                     scratch.block_scores, scratch.order);
  }
  if (site.select == nullptr) return;
  if (site.allowed_candidates.data != nullptr) {
    const auto& attributes = std::get<graph::IndexAttributes>(site.select->attributes);
    mask_to_candidates(
        {site.allowed_candidates.row(row), static_cast<size_t>(site.allowed_candidates.columns)},
        attributes.candidate_block_size, scores);
  }
  select_top(scores, {site.selection.row(row), static_cast<size_t>(site.selection.columns)}, scratch.order);
}

Result<Kernel> index_scores(PrepareContext& context, const Node& node) {
  const auto& attributes = std::get<graph::IndexAttributes>(node.attributes);
  const auto scratch =
      std::make_shared<std::vector<IndexScratch>>(static_cast<size_t>(context.parallel.workers()));
  const auto rows = static_cast<size_t>(context.limits.context / attributes.ratio);
  for (IndexScratch& mine : *scratch) {
    mine.key.resize(static_cast<size_t>(attributes.head_dim));
    mine.key_panel.resize(mine.key.size() * Panels::kPanel);
    mine.scores.resize(rows);
    mine.order.reserve(rows);
    if (attributes.candidate_block_size > 0)
      mine.block_scores.reserve(rows / static_cast<size_t>(attributes.candidate_block_size) + 1);
    context.scratch_bytes += static_cast<int64_t>(rows * (sizeof(float) + sizeof(int32_t)));
  }
  return Kernel([scratch](const NodeRun& run) {
    const state::StateClass* keys = run.reads(state::Kind::kIndexKeys);
    DI_CHECK(keys != nullptr);
    const Axis axis = run.row_dim(run.node->inputs[0]).axis;
    run.parallel->run(run.input(0).rows, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t row = begin; row < end; ++row)
        index_row(run, *keys, axis, row, (*scratch)[static_cast<size_t>(worker)]);
    });
  });
}

// The nodes of an index site do their work inside index_scores.
Result<Kernel> part_of_site(PrepareContext&, const Node&) {
  return Kernel([](const NodeRun&) { DI_CHECK_MSG(false, "an index site's node was scheduled by itself"); });
}

// The selection of every visible row has no columns; attention counts the rows itself.
Result<Kernel> select_all_rows(PrepareContext&, const Node&) {
  return Kernel([](const NodeRun&) {});
}

// --- attention

// The key list of one query: window rows ascending, then selected rows ascending.
struct KeyList {
  const NodeRun* run = nullptr;
  const SequenceSlice* sequence = nullptr;
  const state::StateClass* window = nullptr;
  const state::StateClass* global = nullptr;
  StepView::Run step_rows;     // window rows made in this step
  int64_t first_position = 0;  // of the window
  int64_t window_keys = 0;
  const int32_t* selection = nullptr;  // null: selected row i is row i
  int64_t selected = 0;

  int64_t size() const { return window_keys + selected; }

  void load(int64_t index, float* key) const {
    const FloatRows rows = run->input(1);
    const std::span<float> values(key, static_cast<size_t>(rows.columns));
    if (index >= window_keys) {
      const int64_t i = index - window_keys;
      decode_record(global->record, block_row(*global, *sequence, selection == nullptr ? i : selection[i]),
                    values);
      return;
    }
    const int64_t position = first_position + index;
    if (position < step_rows.first_position) {
      decode_record(window->record, ring_row(*window, *sequence, position), values);
      return;
    }
    const float* own = rows.row(step_rows.first_row + (position - step_rows.first_position));
    std::copy(own, own + rows.columns, key);
  }
};

KeyList key_list(const NodeRun& run, Axis query_axis, int64_t row) {
  const auto& attributes = run.attributes<graph::AttentionAttributes>();
  const StepView& step = *run.step;
  const Axis window_axis = run.row_dim(run.node->inputs[1]).axis;
  const int s = step.sequence_of(query_axis, row);
  const int64_t position = step.position(query_axis, row);
  KeyList list;
  list.run = &run;
  list.sequence = &step.sequence(s);
  list.window = run.reads(state::Kind::kWindow);
  list.step_rows = step.run_of(window_axis, s);
  list.first_position =
      std::max({int64_t{0}, step.window_floor(window_axis, s), position - attributes.window + 1});
  list.window_keys = position - list.first_position + 1;
  DI_CHECK_MSG(list.window_keys >= 1 && position < list.step_rows.first_position + list.step_rows.count,
               "a query without its own window row");
  DI_CHECK_MSG(list.first_position >= list.step_rows.first_position ||
                   (list.window != nullptr &&
                    list.first_position >= list.step_rows.first_position - list.window->rows),
               "a window older than its ring");
  if (run.node->inputs.size() < 3) return list;
  list.global = run.reads(state::Kind::kGlobalRows);
  DI_CHECK(list.global != nullptr);
  const int64_t visible = (position + 1) / attributes.ratio;
  const IntRows selection = run.int_input(2);
  if (selection.columns == 0) {
    list.selected = visible;
    return list;
  }
  list.selection = selection.row(row);
  while (list.selected < selection.columns && list.selection[list.selected] >= 0) {
    DI_CHECK_MSG(list.selection[list.selected] < visible, "a selected row that is not visible");
    ++list.selected;
  }
  return list;
}

Result<Kernel> sparse_attention(PrepareContext& context, const Node& node) {
  const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
  DI_ASSIGN(const auto sinks, context.weights.values(node.weights[0]));
  AttentionShape shape{attributes.heads, attributes.head_dim, attributes.scale,
                       context.graph.precision == graph::Precision::kBf16, false};
  const auto scratch = std::make_shared<std::vector<AttentionScratch>>(
      static_cast<size_t>(context.parallel.workers()), AttentionScratch(shape));
  return Kernel([sinks, scratch, shape](const NodeRun& run) {
    AttentionShape mine = shape;
    mine.round_output = run.rounds(0);
    const Axis axis = run.row_dim(run.node->inputs[0]).axis;
    run.parallel->run(run.input(0).rows, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t row = begin; row < end; ++row) {
        const KeyList list = key_list(run, axis, row);
        attend(
            mine, run.input(0).row(row), list.size(),
            [&list](int64_t index, float* key) { list.load(index, key); }, sinks->data(),
            (*scratch)[static_cast<size_t>(worker)], run.output(0).row(row));
      }
    });
  });
}

}  // namespace

void add_attention_kernels(OpTable& table) {
  table[Op::kIndexScores] = index_scores;
  table[Op::kIndexCandidates] = part_of_site;
  table[Op::kIndexSelect] = part_of_site;
  table[Op::kSelectAllRows] = select_all_rows;
  table[Op::kSparseAttention] = sparse_attention;
}

}  // namespace deepinfer::backend::reference
