#include <algorithm>
#include <cstring>

#include "backend/common/record.h"
#include "backend/cpu/table.h"
#include "backend/reference/index.h"
#include "base/check.h"

namespace deepinfer::backend::cpu {

using graph::Axis;
using graph::Node;
using graph::Op;

namespace {

// The row of a record, exact.
void load_record(const KernelSet& set, const state::RecordLayout& layout, const RecordAddress& address,
                 float* row) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(address.codes);
  const auto* scales = reinterpret_cast<const std::uint8_t*>(address.scales);
  const bool whole = layout.channels % kGroupRows == 0;
  switch (layout.format) {
    case state::RecordFormat::kNvfp4:
      if (whole) return set.decode_nvfp4(codes, scales, layout.channels, row);
      break;
    case state::RecordFormat::kMxfp4:
      if (layout.channels % kBlock == 0) return set.decode_mxfp4(codes, scales, layout.channels, row);
      break;
    case state::RecordFormat::kFp8Block:
      if (whole && layout.quantised % layout.group == 0 && layout.group % kGroupRows == 0) {
        set.decode_fp8(codes, scales, layout.group, layout.quantised, row);
        const int tail = layout.channels - layout.quantised;
        if (tail == 0) return;
        if (layout.tail_f32) {
          std::memcpy(row + layout.quantised, address.tails, static_cast<std::size_t>(tail) * 4);
        } else {
          set.decode_bf16(reinterpret_cast<const std::uint16_t*>(address.tails), tail,
                          row + layout.quantised);
        }
        return;
      }
      break;
    default: break;
  }
  decode_record(layout, address, {row, static_cast<std::size_t>(layout.channels)});
}

// --- index

// Queries of one sequence are scored together, so that each key is decoded once for all of them.
constexpr std::int64_t kQueryBlock = 8;
constexpr std::int64_t kMostBlockScores = std::int64_t{1}
                                          << 18;  // scores a worker keeps; fewer queries beyond

struct IndexScratch {
  std::vector<float> keys;     // [16, dim]
  std::vector<float> panel;    // [dim, 16]
  std::vector<float> weights;  // [kQueryBlock, heads], scaled
  std::vector<float> scores;   // [block, context rows]
  std::vector<float> block_scores;
  std::vector<std::int32_t> order;
};

struct IndexSiteKernel {
  const KernelSet* set = nullptr;
  std::int64_t block = 1;  // queries scored together
  std::int64_t rows = 0;   // most keys of a sequence
  std::vector<IndexScratch> scratch;
};

struct QueryBlock {
  const NodeRun* run = nullptr;
  const state::StateClass* keys = nullptr;
  Axis axis = Axis::kTokens;
  std::int64_t first = 0;  // rows [first, last) of one sequence
  std::int64_t last = 0;
};

std::int64_t visible_rows(const QueryBlock& block, std::int64_t row) {
  return (block.run->step->position(block.axis, row) + 1) /
         block.run->attributes<graph::IndexAttributes>().ratio;
}

// Every visible row is selected and every block is a candidate: the scores need not be known.
bool takes_all(const QueryBlock& block, std::int64_t row) {
  const IndexSite& site = *block.run->index_site;
  if (site.kept_scores != nullptr) return false;
  const std::int64_t visible = visible_rows(block, row);
  if (site.select != nullptr && visible > site.selection.columns) return false;
  if (site.candidates == nullptr) return true;
  const auto& attributes = std::get<graph::IndexAttributes>(site.candidates->attributes);
  return visible <= site.made_candidates.columns * attributes.candidate_block_size;
}

void take_all(const QueryBlock& block, std::int64_t row) {
  const IndexSite& site = *block.run->index_site;
  const std::int64_t visible = visible_rows(block, row);
  const auto count_up = [](std::int32_t* out, std::int64_t columns, std::int64_t count) {
    for (std::int64_t i = 0; i < columns; ++i)
      out[i] = i < count ? static_cast<std::int32_t>(i) : -1;
  };
  if (site.select != nullptr) count_up(site.selection.row(row), site.selection.columns, visible);
  if (site.candidates != nullptr) {
    const auto& attributes = std::get<graph::IndexAttributes>(site.candidates->attributes);
    const std::int64_t size = attributes.candidate_block_size;
    count_up(site.made_candidates.row(row), site.made_candidates.columns, (visible + size - 1) / size);
  }
}

// Scores keys [16 * first_panel, 16 * last_panel) for all queries of the block; row r's scores go to
// scores + (r - block.first) * stride.
void score_panels(const IndexSiteKernel& kernel, const QueryBlock& block, std::int64_t first_panel,
                  std::int64_t last_panel, IndexScratch& scratch, float* scores, std::int64_t stride) {
  const auto& attributes = block.run->attributes<graph::IndexAttributes>();
  const int dim = attributes.head_dim;
  const SequenceSlice& sequence =
      block.run->step->sequence(block.run->step->sequence_of(block.axis, block.first));
  for (std::int64_t row = block.first; row < block.last; ++row)
    for (int h = 0; h < attributes.heads; ++h)
      scratch.weights[static_cast<std::size_t>((row - block.first) * attributes.heads + h)] =
          block.run->input(1).row(row)[h] * attributes.scale;
  const std::int64_t most = visible_rows(block, block.last - 1);
  for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
    const float* keys[kGroupRows] = {};
    const std::int64_t first = panel * kGroupRows;
    const std::int64_t count = std::min<std::int64_t>(kGroupRows, most - first);
    for (std::int64_t i = 0; i < count; ++i) {
      float* place = scratch.keys.data() + i * dim;
      load_record(*kernel.set, block.keys->record, block_row(*block.keys, sequence, first + i), place);
      keys[i] = place;
    }
    kernel.set->index_panel(keys, dim, scratch.panel.data());
    for (std::int64_t row = block.first; row < block.last; ++row) {
      const std::int64_t mine = std::min<std::int64_t>(kGroupRows, visible_rows(block, row) - first);
      if (mine <= 0) continue;
      const std::int64_t index = row - block.first;
      float out[kGroupRows];
      kernel.set->index_scores({block.run->input(0).row(row),
                                scratch.weights.data() + index * attributes.heads, attributes.heads, dim},
                               scratch.panel.data(), out);
      std::copy(out, out + mine, scores + index * stride + first);
    }
  }
}

// What the site's nodes want of a row's scores.
void use_scores(const QueryBlock& block, std::int64_t row, float* row_scores, IndexScratch& scratch) {
  const IndexSite& site = *block.run->index_site;
  const std::span<float> scores(row_scores, static_cast<std::size_t>(visible_rows(block, row)));
  if (site.kept_scores != nullptr)
    std::copy(scores.begin(), scores.end(), site.kept_scores + site.kept_offsets[row]);
  if (site.candidates != nullptr) {
    const auto& attributes = std::get<graph::IndexAttributes>(site.candidates->attributes);
    reference::candidate_blocks(
        scores, attributes.candidate_block_size,
        {site.made_candidates.row(row), static_cast<std::size_t>(site.made_candidates.columns)},
        scratch.block_scores, scratch.order);
  }
  if (site.select == nullptr) return;
  if (site.allowed_candidates.data != nullptr) {
    const auto& attributes = std::get<graph::IndexAttributes>(site.select->attributes);
    reference::mask_to_candidates(
        {site.allowed_candidates.row(row), static_cast<std::size_t>(site.allowed_candidates.columns)},
        attributes.candidate_block_size, scores);
  }
  reference::select_top(scores, {site.selection.row(row), static_cast<std::size_t>(site.selection.columns)},
                        scratch.order);
}

// Few rows: the keys of each are spread over the workers.
void run_by_keys(IndexSiteKernel& kernel, QueryBlock block, std::int64_t rows) {
  constexpr std::int64_t kPanelGrain = 8;
  float* scores = kernel.scratch[0].scores.data();
  for (std::int64_t row = 0; row < rows; ++row) {
    block.first = row;
    block.last = row + 1;
    if (takes_all(block, row)) {
      take_all(block, row);
      continue;
    }
    const std::int64_t panels = (visible_rows(block, row) + kGroupRows - 1) / kGroupRows;
    block.run->parallel->run(panels, kPanelGrain, [&](std::int64_t begin, std::int64_t end, int worker) {
      score_panels(kernel, block, begin, end, kernel.scratch[static_cast<std::size_t>(worker)], scores,
                   kernel.rows);
    });
    use_scores(block, row, scores, kernel.scratch[0]);
  }
}

void run_by_rows(IndexSiteKernel& kernel, const QueryBlock& all, std::int64_t rows) {
  all.run->parallel->run(rows, kernel.block, [&](std::int64_t begin, std::int64_t end, int worker) {
    IndexScratch& scratch = kernel.scratch[static_cast<std::size_t>(worker)];
    QueryBlock block = all;
    for (block.first = begin; block.first < end; block.first = block.last) {
      const int sequence = all.run->step->sequence_of(all.axis, block.first);
      block.last = block.first;
      bool all_taken = true;
      while (block.last < end && all.run->step->sequence_of(all.axis, block.last) == sequence) {
        all_taken = all_taken && takes_all(block, block.last);
        ++block.last;
      }
      if (!all_taken)
        score_panels(kernel, block, 0, (visible_rows(block, block.last - 1) + kGroupRows - 1) / kGroupRows,
                     scratch, scratch.scores.data(), kernel.rows);
      for (std::int64_t row = block.first; row < block.last; ++row) {
        if (takes_all(block, row)) {
          take_all(block, row);
        } else {
          use_scores(block, row, scratch.scores.data() + (row - block.first) * kernel.rows, scratch);
        }
      }
    }
  });
}

Result<Kernel> index_scores(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  const auto& attributes = std::get<graph::IndexAttributes>(node.attributes);
  const auto kernel = std::make_shared<IndexSiteKernel>();
  kernel->set = shared->set;
  kernel->rows = context.limits.context / attributes.ratio + kGroupRows;
  kernel->block = std::clamp<std::int64_t>(kMostBlockScores / kernel->rows, 1, kQueryBlock);
  kernel->scratch.resize(static_cast<std::size_t>(context.parallel.workers()));
  const auto dim = static_cast<std::size_t>(attributes.head_dim);
  for (IndexScratch& mine : kernel->scratch) {
    mine.keys.resize(kGroupRows * dim);
    mine.panel.resize(kGroupRows * dim);
    mine.weights.resize(static_cast<std::size_t>(kQueryBlock * attributes.heads));
    mine.scores.resize(static_cast<std::size_t>(kernel->block * kernel->rows));
    mine.order.reserve(static_cast<std::size_t>(kernel->rows));
    if (attributes.candidate_block_size > 0)
      mine.block_scores.reserve(static_cast<std::size_t>(kernel->rows / attributes.candidate_block_size + 1));
    context.scratch_bytes += (kernel->block + 1) * kernel->rows * 4;
  }
  return Kernel([kernel](const NodeRun& run) {
    QueryBlock all;
    all.run = &run;
    all.keys = run.reads(state::Kind::kIndexKeys);
    DI_CHECK(all.keys != nullptr);
    all.axis = run.row_dim(run.node->inputs[0]).axis;
    const std::int64_t rows = run.input(0).rows;
    if (rows < 2 * run.parallel->workers()) {
      run_by_keys(*kernel, all, rows);
    } else {
      run_by_rows(*kernel, all, rows);
    }
  });
}

// --- attention

// The key list of one query: window rows ascending, then selected rows ascending (docs/graph_operations.md).
struct KeyList {
  const NodeRun* run = nullptr;
  const KernelSet* set = nullptr;
  const SequenceSlice* sequence = nullptr;
  const state::StateClass* window = nullptr;
  const state::StateClass* global = nullptr;
  FloatRows step_values;    // window rows made in this step
  StepView::Run step_rows;  // where this sequence's are
  std::int64_t first_position = 0;
  std::int64_t window_keys = 0;
  const std::int32_t* selection = nullptr;  // null: selected row i is row i
  std::int64_t selected = 0;

  KeyList(const NodeRun& node_run, const KernelSet& kernels, Axis query_axis, std::int64_t row)
      : run(&node_run), set(&kernels), step_values(node_run.input(1)) {
    const auto& attributes = run->attributes<graph::AttentionAttributes>();
    const StepView& step = *run->step;
    const Axis window_axis = run->row_dim(run->node->inputs[1]).axis;
    const int s = step.sequence_of(query_axis, row);
    const std::int64_t position = step.position(query_axis, row);
    sequence = &step.sequence(s);
    window = run->reads(state::Kind::kWindow);
    step_rows = step.run_of(window_axis, s);
    first_position =
        std::max({std::int64_t{0}, step.window_floor(window_axis, s), position - attributes.window + 1});
    window_keys = position - first_position + 1;
    DI_CHECK_MSG(window_keys >= 1 && position < step_rows.first_position + step_rows.count,
                 "a query without its own window row");
    DI_CHECK_MSG(first_position >= step_rows.first_position ||
                     (window != nullptr && first_position >= step_rows.first_position - window->rows),
                 "a window older than its ring");
    if (run->node->inputs.size() < 3) return;
    global = run->reads(state::Kind::kGlobalRows);
    DI_CHECK(global != nullptr);
    const std::int64_t visible = (position + 1) / attributes.ratio;
    const IntRows rows = run->int_input(2);
    if (rows.columns == 0) {
      selected = visible;
      return;
    }
    selection = rows.row(row);
    while (selected < rows.columns && selection[selected] >= 0) {
      DI_CHECK_MSG(selection[selected] < visible, "a selected row that is not visible");
      ++selected;
    }
  }

  int size() const { return static_cast<int>(window_keys + selected); }

  void load(std::int64_t index, float* key) const {
    if (index >= window_keys) {
      const std::int64_t i = index - window_keys;
      load_record(*set, global->record,
                  block_row(*global, *sequence, selection == nullptr ? i : selection[i]), key);
      return;
    }
    const std::int64_t position = first_position + index;
    if (position < step_rows.first_position) {
      load_record(*set, window->record, ring_row(*window, *sequence, position), key);
      return;
    }
    const float* own = step_values.row(step_rows.first_row + (position - step_rows.first_position));
    std::copy(own, own + step_values.columns, key);
  }

  static void load_some(const void* context, int first, int count, float* rows) {
    const auto& list = *static_cast<const KeyList*>(context);
    for (int i = 0; i < count; ++i)
      list.load(first + i, rows + i * list.step_values.columns);
  }
};

Result<Kernel> sparse_attention(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
  DI_ASSIGN(const auto sinks, context.weights.values(node.weights[0]));
  const bool bf16 = context.graph.precision == graph::Precision::kBf16;
  DI_TRY(shared->workspace.reserve(64, kAttentionScratchBytes));
  AttentionRow shape;
  shape.heads = attributes.heads;
  shape.dim = attributes.head_dim;
  shape.scale = attributes.scale;
  shape.round_numerators = bf16;
  return Kernel([sinks, shape, shared](const NodeRun& run) {
    const Axis axis = run.row_dim(run.node->inputs[0]).axis;
    const FloatRows q = run.input(0);
    // Few rows: the heads of each are spread over the workers, in multiples of a vector group. Every part decodes all
    // keys again, so there are no more parts than workers.
    const std::int64_t head_groups = (shape.heads + kGroupRows - 1) / kGroupRows;
    const std::int64_t wanted = (run.parallel->workers() + q.rows - 1) / q.rows;
    const std::int64_t parts = q.rows >= 2 * run.parallel->workers() ? 1 : std::min(head_groups, wanted);
    const std::int64_t part_heads = (head_groups + parts - 1) / parts * kGroupRows;
    run.parallel->run(q.rows * parts, 1, [&](std::int64_t item, std::int64_t, int worker) {
      const std::int64_t index = item / parts;
      const std::int64_t part = item % parts;
      if (part * part_heads >= shape.heads) return;
      const KeyList list(run, *shared->set, axis, index);
      AttentionRow row = shape;
      row.q = q.row(index);
      row.keys = {KeyList::load_some, &list};
      row.count = list.size();
      row.sinks = sinks->data();
      row.round_output = run.rounds(0);
      row.out = run.output(0).row(index);
      row.head_begin = static_cast<int>(part * part_heads);
      row.head_end = std::min(row.heads, row.head_begin + static_cast<int>(part_heads));
      row.scratch = shared->workspace.worker(worker);
      shared->set->attention_row(row);
    });
  });
}

}  // namespace

void add_attention_kernels(OpTable& table, const SharedPtr& shared) {
  table[Op::kIndexScores] = [shared](PrepareContext& context, const Node& node) {
    return index_scores(context, node, shared);
  };
  PrepareKernel reference = table[Op::kSparseAttention];
  table[Op::kSparseAttention] = [shared, reference](PrepareContext& context,
                                                    const Node& node) -> Result<Kernel> {
    const auto& attributes = std::get<graph::AttentionAttributes>(node.attributes);
    const bool fits = attributes.heads <= kAttentionMaxHeads && attributes.head_dim <= kAttentionMaxDim &&
                      attributes.head_dim % kGroupRows == 0;
    return fits ? sparse_attention(context, node, shared) : reference(context, node);
  };
}

}  // namespace deepinfer::backend::cpu
