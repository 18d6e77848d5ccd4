#include <algorithm>
#include <vector>

#include "backend/common/record.h"
#include "backend/reference/arithmetic.h"
#include "backend/reference/engram.h"
#include "backend/reference/residual.h"
#include "backend/reference/table.h"
#include "base/check.h"

namespace deepinfer::backend::reference {

using graph::Axis;
using graph::Node;
using graph::Op;

namespace {

constexpr int64_t kRowGrain = 4;  // rows a thread takes at a time

std::span<float> span_of(const FloatRows& rows, int64_t row) {
  return {rows.row(row), static_cast<size_t>(rows.columns)};
}

Result<Kernel> embed(PrepareContext& context, const Node& node) {
  const graph::Weight* weight = &context.weights.weight(node.weights[0]);
  DI_TRY(context.weights.require_bytes(node.weights[0]));
  return Kernel([weight](const NodeRun& run) {
    const StepInputs& inputs = run.step->inputs();
    const FloatRows x = run.output(0);
    for (int64_t row = 0; row < x.rows; ++row)
      decode_weight_row(*weight, 0, inputs.ids[static_cast<size_t>(row)], span_of(x, row));
    for (size_t i = 0; i < inputs.embed_rows.size(); ++i) {
      const auto given =
          inputs.embeds.subspan(i * static_cast<size_t>(x.columns), static_cast<size_t>(x.columns));
      std::transform(given.begin(), given.end(), x.row(inputs.embed_rows[i]),
                     [&](float value) { return rounded(run.rounds(0), value); });
    }
  });
}

void broadcast_streams(const NodeRun& run) {
  const FloatRows x = run.input(0);
  const FloatRows h = run.output(0);
  for (int64_t row = 0; row < x.rows; ++row)
    for (int64_t first = 0; first < h.columns; first += x.columns)
      std::copy(x.row(row), x.row(row) + x.columns, h.row(row) + first);
}

// The row of `from` that holds row `row` of `to`.
int64_t source_row(const StepView& step, Axis from, Axis to, int64_t row) {
  if (from == to) return row;
  if (from == Axis::kTokens) return step.token_row(to, row);
  DI_CHECK_MSG(from == Axis::kDecoder && to == Axis::kLogits, "rows are gathered T->D, T->L or D->L");
  return step.inputs().logit_rows[static_cast<size_t>(row)];
}

void gather_rows(const NodeRun& run) {
  const graph::ValueId in = run.node->inputs[0];
  const graph::ValueId out = run.node->outputs[0];
  const Axis from = run.row_dim(in).axis;
  const Axis to = run.row_dim(out).axis;
  const auto gather = [&](auto source, auto target) {
    for (int64_t row = 0; row < target.rows; ++row) {
      const int64_t taken = source_row(*run.step, from, to, row);
      std::copy(source.row(taken), source.row(taken) + source.columns, target.row(row));
    }
  };
  if (run.value(in).type == graph::ElementType::kI32)
    gather(run.ints(in), run.ints(out));
  else
    gather(run.floats(in), run.floats(out));
}

void history_write(const NodeRun& run) {
  const auto& target = run.registry->at(run.attributes<graph::StateAttributes>().target);
  for (int s = 0; s < run.step->sequences(); ++s) {
    const StepView::Run rows = run.step->run_of(Axis::kTokens, s);
    for (int i = std::max(0, rows.count - target.rows); i < rows.count; ++i)
      write_history(target, run.step->sequence(s), rows.first_position + i,
                    run.step->inputs().ids[static_cast<size_t>(rows.first_row) + static_cast<size_t>(i)],
                    run.step->is_image(rows.first_row + i));
  }
}

Result<Kernel> rms_norm_kernel(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto weight, context.weights.values(node.weights[0]));
  return Kernel([weight](const NodeRun& run) {
    const FloatRows x = run.input(0);
    const FloatRows y = run.output(0);
    const float eps = run.attributes<graph::NormAttributes>().eps;
    run.parallel->run(x.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        rms_norm(span_of(x, row), *weight, eps, run.rounds(0), span_of(y, row));
    });
  });
}

void head_rms_norm_kernel(const NodeRun& run) {
  const FloatRows x = run.input(0);
  const FloatRows y = run.output(0);
  const float eps = run.attributes<graph::NormAttributes>().eps;
  const auto dim = static_cast<size_t>(run.value(run.node->outputs[0]).shape.back().value);
  run.parallel->run(x.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (size_t first = 0; first < static_cast<size_t>(x.columns); first += dim)
        head_rms_norm(span_of(x, row).subspan(first, dim), eps, run.rounds(0),
                      span_of(y, row).subspan(first, dim));
  });
}

HcShape shape_of(const NodeRun& run) {
  const auto& attributes = run.attributes<graph::HcAttributes>();
  return {attributes.streams, run.graph->hidden, attributes.sinkhorn_iterations, attributes.rms_eps,
          attributes.hc_eps};
}

Result<Kernel> hc_coefficients_kernel(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto fn, context.weights.panels(node.weights[0]));
  DI_ASSIGN(const auto base, context.weights.values(node.weights[1]));
  DI_ASSIGN(const auto scale, context.weights.values(node.weights[2]));
  return Kernel([fn, base, scale](const NodeRun& run) {
    const HcShape shape = shape_of(run);
    const HcSite site{fn.get(), *base, *scale};
    const FloatRows h = run.input(0);
    run.parallel->run(h.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        hc_coefficients(shape, site, h.row(row), run.output(0).row(row), run.output(1).row(row),
                        run.output(2).row(row));
    });
  });
}

Result<Kernel> hc_head_pre_kernel(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto fn, context.weights.panels(node.weights[0]));
  DI_ASSIGN(const auto base, context.weights.values(node.weights[1]));
  DI_ASSIGN(const auto scale, context.weights.values(node.weights[2]));
  return Kernel([fn, base, scale](const NodeRun& run) {
    const HcSite site{fn.get(), *base, *scale};
    const FloatRows h = run.input(0);
    for (int64_t row = 0; row < h.rows; ++row)
      hc_head_pre(shape_of(run), site, h.row(row), run.output(0).row(row));
  });
}

void hc_first_pre(const NodeRun& run) {
  const FloatRows pre = run.output(0);
  for (int64_t row = 0; row < pre.rows; ++row) {
    std::fill(pre.row(row), pre.row(row) + pre.columns, 0.0f);
    pre.row(row)[0] = 1.0f;
  }
}

void hc_collapse_kernel(const NodeRun& run) {
  const FloatRows h = run.input(0);
  run.parallel->run(h.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      hc_collapse(shape_of(run), h.row(row), run.input(1).row(row), run.rounds(0), run.output(0).row(row));
  });
}

void hc_expand_kernel(const NodeRun& run) {
  const FloatRows y = run.input(0);
  run.parallel->run(y.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      hc_expand(shape_of(run), y.row(row), run.input(1).row(row), run.input(2).row(row),
                run.input(3).row(row), run.rounds(0), run.output(0).row(row));
  });
}

// Canonical ids and dead flags behind one position, from the step's own rows or the token history.
struct LookBack {
  std::vector<int64_t> ids;
  std::vector<uint8_t> dead;
};

void look_back(const NodeRun& run, const std::vector<int32_t>& token_map, int64_t row, LookBack& out) {
  const StepView& step = *run.step;
  const state::StateClass* history = run.reads(state::Kind::kTokenHistory);
  const int s = step.sequence_of(Axis::kTokens, row);
  const StepView::Run rows = step.run_of(Axis::kTokens, s);
  for (size_t k = 0; k < out.ids.size(); ++k) {
    const int64_t position = step.position(Axis::kTokens, row) - static_cast<int64_t>(k);
    out.dead[k] = position < 0;
    out.ids[k] = 0;
    if (position < 0) continue;
    int32_t id = 0;
    if (position >= rows.first_position) {
      const auto token = static_cast<int>(rows.first_row + (position - rows.first_position));
      id = step.inputs().ids[static_cast<size_t>(token)];
      out.dead[k] = step.is_image(token);
    } else {
      const int32_t kept = read_history(*history, step.sequence(s), position);
      id = kept & ~state::kImageFlag;
      out.dead[k] = (kept & state::kImageFlag) != 0;
    }
    DI_CHECK_MSG(id >= 0 && id < static_cast<int32_t>(token_map.size()),
                 "a history id outside the vocabulary");
    out.ids[k] = token_map[static_cast<size_t>(id)];
  }
}

Result<Kernel> engram_rows_kernel(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto token_map, context.weights.integers(node.weights[0]));
  const auto orders = static_cast<size_t>(std::get<graph::EngramAttributes>(node.attributes).max_ngram);
  const auto scratch = std::make_shared<LookBack>();
  scratch->ids.resize(orders);
  scratch->dead.resize(orders);
  return Kernel([token_map, scratch](const NodeRun& run) {
    const auto& attributes = run.attributes<graph::EngramAttributes>();
    const IntRows rows = run.int_output(0);
    DI_CHECK(run.row_dim(run.node->outputs[0]).axis == Axis::kTokens);
    for (int64_t row = 0; row < rows.rows; ++row) {
      look_back(run, *token_map, row, *scratch);
      engram_rows(attributes, scratch->ids, scratch->dead,
                  (*token_map)[static_cast<size_t>(attributes.pad_id)],
                  {rows.row(row), static_cast<size_t>(rows.columns)});
    }
  });
}

Result<Kernel> engram_gather(PrepareContext& context, const Node& node) {
  const graph::Weight* table = &context.weights.weight(node.weights[0]);
  DI_TRY(context.weights.require_bytes(node.weights[0]));
  return Kernel([table](const NodeRun& run) {
    const IntRows rows = run.int_input(0);
    const FloatRows out = run.output(0);
    run.parallel->run(rows.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t column = 0; column < rows.columns; ++column)
          decode_weight_row(*table, 0, rows.row(row)[column],
                            {out.row(row) + column * table->k, static_cast<size_t>(table->k)});
    });
  });
}

Result<Kernel> engram_mix_kernel(PrepareContext& context, const Node& node) {
  DI_ASSIGN(const auto q_weight, context.weights.values(node.weights[0]));
  DI_ASSIGN(const auto k_weight, context.weights.values(node.weights[1]));
  return Kernel([q_weight, k_weight](const NodeRun& run) {
    const FloatRows h = run.input(0);
    const int64_t hidden = run.graph->hidden;
    const EngramMix mix{static_cast<int>(h.columns / hidden), hidden,
                        run.attributes<graph::EngramAttributes>().eps, *q_weight, *k_weight};
    const Axis axis = run.row_dim(run.node->inputs[0]).axis;
    run.parallel->run(h.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        engram_mix(mix, h.row(row), run.input(1).row(row), run.step->is_image(run.step->token_row(axis, row)),
                   run.rounds(0), run.output(0).row(row));
    });
  });
}

// For kernels that prepare nothing.
PrepareKernel plain(void (*kernel)(const NodeRun&)) {
  return [kernel](PrepareContext&, const Node&) -> Result<Kernel> { return Kernel(kernel); };
}

}  // namespace

void add_stream_kernels(OpTable& table) {
  table[Op::kEmbed] = embed;
  table[Op::kBroadcastStreams] = plain(broadcast_streams);
  table[Op::kGatherRows] = plain(gather_rows);
  table[Op::kHistoryWrite] = plain(history_write);
  table[Op::kRmsNorm] = rms_norm_kernel;
  table[Op::kHeadRmsNorm] = plain(head_rms_norm_kernel);
  table[Op::kHcCoefficients] = hc_coefficients_kernel;
  table[Op::kHcFirstPre] = plain(hc_first_pre);
  table[Op::kHcCollapse] = plain(hc_collapse_kernel);
  table[Op::kHcExpand] = plain(hc_expand_kernel);
  table[Op::kHcHeadPre] = hc_head_pre_kernel;
  table[Op::kEngramRows] = engram_rows_kernel;
  table[Op::kEngramGather] = engram_gather;
  table[Op::kEngramMix] = engram_mix_kernel;
}

}  // namespace deepinfer::backend::reference
