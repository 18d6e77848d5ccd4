#include <algorithm>
#include <vector>

#include "backend/common/record.h"
#include "backend/reference/arithmetic.h"
#include "backend/reference/compressor.h"
#include "backend/reference/rotary.h"
#include "backend/reference/table.h"
#include "base/check.h"
#include "base/math.h"

namespace deepinfer::backend::reference {

using graph::Axis;
using graph::Node;
using graph::Op;

namespace {

constexpr int64_t kRowGrain = 4;

std::span<float> span_of(const FloatRows& rows, int64_t row) {
  return {rows.row(row), static_cast<size_t>(rows.columns)};
}

// Copies input 0 to output 0 row by row and calls change(row, values) on each vector of the last dimension.
template <class Change>
void for_vectors(const NodeRun& run, Change change) {
  const FloatRows in = run.input(0);
  const FloatRows out = run.output(0);
  const auto dim = static_cast<size_t>(run.value(run.node->inputs[0]).shape.back().value);
  run.parallel->run(in.rows, kRowGrain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t row = begin; row < end; ++row) {
      std::copy(in.row(row), in.row(row) + in.columns, out.row(row));
      for (size_t first = 0; first < static_cast<size_t>(in.columns); first += dim)
        change(row, span_of(out, row).subspan(first, dim), worker);
    }
  });
}

// Rows of tokens rotate by the step's table; rows of groups by angles made here, at ratio * j.
struct GroupAngles {
  std::vector<float> sines;
  std::vector<float> cosines;
};

Result<Kernel> rope(PrepareContext& context, const Node& node) {
  const auto& attributes = std::get<graph::RopeAttributes>(node.attributes);
  const auto pairs = static_cast<size_t>(attributes.rope_channels / 2);
  const graph::Dim dim = context.graph.values[static_cast<size_t>(node.inputs[0])].shape[0];
  DI_CHECK((dim.axis == Axis::kGroups) == attributes.group_start);
  const auto scratch = std::make_shared<GroupAngles>();
  if (attributes.group_start) {
    scratch->sines.resize(pairs * static_cast<size_t>(StepView::largest_extent(dim, context.limits)));
    scratch->cosines.resize(scratch->sines.size());
  }
  return Kernel([scratch, pairs, dim](const NodeRun& run) {
    const auto& rope_attributes = run.attributes<graph::RopeAttributes>();
    const RopeAngles table = run.rope(rope_attributes.table);
    DI_CHECK(static_cast<size_t>(table.pairs) == pairs);
    const bool round = run.rounds(0);
    if (!rope_attributes.group_start) {
      for_vectors(run, [&](int64_t row, std::span<float> vector, int) {
        const auto token = static_cast<size_t>(run.step->token_row(dim.axis, row));
        rotate(vector, {table.sines + token * pairs, pairs}, {table.cosines + token * pairs, pairs},
               rope_attributes.inverse, round);
      });
      return;
    }
    const auto groups = run.step->groups(static_cast<int>(dim.value));
    for (size_t row = 0; row < groups.size(); ++row) {
      const auto position = static_cast<float>(groups[row].index * dim.value);
      for (size_t i = 0; i < pairs; ++i) {
        const SinCos angle = sincos_f32(position * table.frequencies[i]);
        scratch->sines[row * pairs + i] = angle.sin;
        scratch->cosines[row * pairs + i] = angle.cos;
      }
    }
    for_vectors(run, [&](int64_t row, std::span<float> vector, int) {
      const size_t first = static_cast<size_t>(row) * pairs;
      rotate(vector, {scratch->sines.data() + first, pairs}, {scratch->cosines.data() + first, pairs},
             rope_attributes.inverse, round);
    });
  });
}

void hadamard_kernel(const NodeRun& run) {
  for_vectors(run, [&](int64_t, std::span<float> vector, int) { hadamard(vector, run.rounds(0)); });
}

void quantise(const NodeRun& run) {
  const auto& record = run.attributes<graph::QuantiseAttributes>().record;
  for_vectors(run, [&](int64_t, std::span<float> vector, int) { fake_quantise_record(record, vector); });
}

void window_write(const NodeRun& run) {
  const auto& target = run.registry->at(run.attributes<graph::StateAttributes>().target);
  const FloatRows rows = run.input(0);
  const Axis axis = run.row_dim(run.node->inputs[0]).axis;
  for (int s = 0; s < run.step->sequences(); ++s) {
    const StepView::Run mine = run.step->run_of(axis, s);
    for (int i = std::max(0, mine.count - target.rows); i < mine.count; ++i)
      encode_record(target.record, span_of(rows, mine.first_row + i),
                    ring_row(target, run.step->sequence(s), mine.first_position + i));
  }
}

// Rows of groups into their blocks: attention rows and index keys alike.
void block_write(const NodeRun& run) {
  const auto& target = run.registry->at(run.attributes<graph::StateAttributes>().target);
  const FloatRows rows = run.input(0);
  const auto groups = run.step->groups(target.ratio);
  DI_CHECK(rows.rows == static_cast<int64_t>(groups.size()));
  run.parallel->run(rows.rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const GroupRef group = groups[static_cast<size_t>(row)];
      encode_record(target.record, span_of(rows, row),
                    block_row(target, run.step->sequence(group.sequence), group.index));
    }
  });
}

Result<Kernel> compressor_write(PrepareContext& context, const Node& node) {
  const auto& target = context.registry.at(std::get<graph::StateAttributes>(node.attributes).target);
  const auto scratch = std::make_shared<std::vector<float>>(static_cast<size_t>(target.record.channels));
  return Kernel([scratch](const NodeRun& run) {
    const auto& ring = run.registry->at(run.attributes<graph::StateAttributes>().target);
    const FloatRows u = run.input(0);
    const FloatRows g = run.input(1);
    DI_CHECK(static_cast<int64_t>(scratch->size()) == u.columns + g.columns);
    for (int s = 0; s < run.step->sequences(); ++s) {
      const StepView::Run mine = run.step->run_of(Axis::kTokens, s);
      for (int i = std::max(0, mine.count - ring.rows); i < mine.count; ++i) {
        std::copy(u.row(mine.first_row + i), u.row(mine.first_row + i) + u.columns, scratch->begin());
        std::copy(g.row(mine.first_row + i), g.row(mine.first_row + i) + g.columns,
                  scratch->begin() + u.columns);
        encode_record(ring.record, *scratch, ring_row(ring, run.step->sequence(s), mine.first_position + i));
      }
    }
  });
}

// Scratch of one thread that pools groups: the tokens of a group, and ring rows that had to be decoded.
struct PoolScratch {
  std::vector<PooledToken> tokens;
  std::vector<float> ring_rows;  // [entries, 2 * c * d]
};

// The token at `position` as an entry of a pool: its own row of this step, or its ring row decoded into `place`.
//   half  first channel of the half that serves the group
PooledToken pooled_token(const NodeRun& run, const state::StateClass* ring, int sequence, int64_t position,
                         int64_t half, std::span<float> place) {
  const FloatRows u = run.input(0);
  const FloatRows g = run.input(1);
  const StepView::Run rows = run.step->run_of(Axis::kTokens, sequence);
  if (position >= rows.first_position) {
    const int64_t row = rows.first_row + (position - rows.first_position);
    return {u.row(row) + half, g.row(row) + half, nullptr};
  }
  DI_CHECK_MSG(ring != nullptr && position >= rows.first_position - ring->rows,
               "an open group older than its ring");
  decode_record(ring->record, ring_row(*ring, run.step->sequence(sequence), position), place);
  return {place.data() + half, place.data() + u.columns + half, nullptr};
}

void pool_one(const NodeRun& run, const state::StateClass* ring, const std::vector<float>* ape,
              GroupRef group, PoolScratch& scratch, std::span<float> pooled) {
  const auto& attributes = run.attributes<graph::CompressAttributes>();
  const int ratio = attributes.ratio;
  const int64_t width = run.input(0).columns;
  scratch.tokens.clear();
  const auto add = [&](int64_t position, int64_t half) {
    const size_t place = scratch.tokens.size() * 2 * static_cast<size_t>(width);
    PooledToken token =
        pooled_token(run, ring, group.sequence, position, half,
                     std::span(scratch.ring_rows).subspan(place, 2 * static_cast<size_t>(width)));
    if (ape != nullptr) token.bias = ape->data() + position % ratio * width + half;
    scratch.tokens.push_back(token);
  };
  const int64_t first = group.index * ratio;
  if (attributes.overlap && group.index > 0)
    for (int64_t position = first - ratio; position < first; ++position)
      add(position, 0);
  const int64_t own_half = attributes.overlap ? attributes.channels : 0;
  for (int64_t position = first; position < first + ratio; ++position)
    add(position, own_half);
  pool_group(scratch.tokens, run.rounds(0), pooled);
}

// Ratio 1: every token is its own group, nothing to pool.
void pass_through(const NodeRun& run) {
  const FloatRows u = run.input(0);
  const FloatRows pooled = run.output(0);
  const auto groups = run.step->groups(1);
  for (int64_t row = 0; row < pooled.rows; ++row) {
    const GroupRef group = groups[static_cast<size_t>(row)];
    const StepView::Run rows = run.step->run_of(Axis::kTokens, group.sequence);
    const float* own = u.row(rows.first_row + (group.index - rows.first_position));
    std::transform(own, own + pooled.columns, pooled.row(row),
                   [&](float value) { return rounded(run.rounds(0), value); });
  }
}

Result<Kernel> compress(PrepareContext& context, const Node& node) {
  const auto& attributes = std::get<graph::CompressAttributes>(node.attributes);
  if (attributes.ratio == 1) return Kernel(pass_through);
  std::shared_ptr<const std::vector<float>> ape;
  if (!node.weights.empty()) {
    DI_ASSIGN(ape, context.weights.values(node.weights[0]));
  }
  const size_t width = static_cast<size_t>(attributes.channels) * (attributes.overlap ? 2 : 1);
  const size_t entries = static_cast<size_t>(attributes.ratio) * (attributes.overlap ? 2 : 1);
  const auto scratch =
      std::make_shared<std::vector<PoolScratch>>(static_cast<size_t>(context.parallel.workers()));
  for (PoolScratch& mine : *scratch) {
    mine.tokens.reserve(entries);
    mine.ring_rows.resize(entries * 2 * width);
  }
  return Kernel([ape, scratch](const NodeRun& run) {
    const auto& compress_attributes = run.attributes<graph::CompressAttributes>();
    const state::StateClass* ring =
        compress_attributes.ring < 0 ? nullptr : &run.registry->at(compress_attributes.ring);
    const auto groups = run.step->groups(compress_attributes.ratio);
    const FloatRows pooled = run.output(0);
    run.parallel->run(pooled.rows, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t row = begin; row < end; ++row)
        pool_one(run, ring, ape.get(), groups[static_cast<size_t>(row)],
                 (*scratch)[static_cast<size_t>(worker)], span_of(pooled, row));
    });
  });
}

PrepareKernel plain(void (*kernel)(const NodeRun&)) {
  return [kernel](PrepareContext&, const Node&) -> Result<Kernel> { return Kernel(kernel); };
}

}  // namespace

void add_record_kernels(OpTable& table) {
  table[Op::kRope] = rope;
  table[Op::kHadamard] = plain(hadamard_kernel);
  table[Op::kFakeQuantise] = plain(quantise);
  table[Op::kWindowRows] = plain(quantise);
  table[Op::kWindowWrite] = plain(window_write);
  table[Op::kGlobalWrite] = plain(block_write);
  table[Op::kKeyWrite] = plain(block_write);
  table[Op::kCompress] = compress;
  table[Op::kCompressorWrite] = compressor_write;
}

}  // namespace deepinfer::backend::reference
