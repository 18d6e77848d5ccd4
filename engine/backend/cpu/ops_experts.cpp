#include <algorithm>
#include <utility>

#include "backend/cpu/table.h"
#include "base/check.h"

namespace deepinfer::backend::cpu {

using graph::Node;
using graph::Op;

namespace {

constexpr std::int64_t kRowGrain = 4;

// The (row, slot) pairs that chose each expert, so that an expert's weights are read once a step.
class Assignment {
 public:
  Assignment(std::size_t experts, std::size_t pairs) : first_(experts + 1), pairs_(pairs), rows_(pairs) {}

  // ids [rows, k]; pair = row * k + slot, ascending within an expert.
  void assign(const IntRows& ids) {
    const auto count = static_cast<std::size_t>(ids.rows * ids.columns);
    DI_CHECK(count <= pairs_.size());
    std::fill(first_.begin(), first_.end(), 0);
    for (std::size_t pair = 0; pair < count; ++pair) {
      const auto expert = static_cast<std::size_t>(ids.data[pair]);
      DI_CHECK_MSG(expert + 1 < first_.size(), "an expert that does not exist");
      ++first_[expert + 1];
    }
    for (std::size_t e = 1; e < first_.size(); ++e)
      first_[e] += first_[e - 1];
    // Places from the back move first_[e + 1] to the start of expert e; the shift below restores the meaning.
    for (std::size_t pair = count; pair-- > 0;) {
      const auto expert = static_cast<std::size_t>(ids.data[pair]);
      const auto place = static_cast<std::size_t>(--first_[expert + 1]);
      pairs_[place] = static_cast<std::int32_t>(pair);
      rows_[place] = static_cast<std::int32_t>(static_cast<std::int64_t>(pair) / ids.columns);
    }
    for (std::size_t e = 0; e + 1 < first_.size(); ++e)
      first_[e] = first_[e + 1];
    first_.back() = static_cast<std::int64_t>(count);
  }

  std::int64_t count(std::size_t expert) const { return first_[expert + 1] - first_[expert]; }
  const std::int32_t* pairs(std::size_t expert) const { return pairs_.data() + first_[expert]; }
  const std::int32_t* rows(std::size_t expert) const { return rows_.data() + first_[expert]; }

 private:
  std::vector<std::int64_t> first_;
  std::vector<std::int32_t> pairs_;
  std::vector<std::int32_t> rows_;
};

struct Stack {
  std::vector<PackedWeightPtr> weights;  // those that share their input: w1 and w3, or w2
  Assignment assignment;
  std::vector<LinearJob> jobs;
};

Result<std::shared_ptr<Stack>> stack(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  const graph::Shape& ids = context.graph.values[static_cast<std::size_t>(node.inputs[1])].shape;
  const std::int64_t pairs = most_rows(context, node.inputs[1]) * ids[1].value;
  const std::size_t experts = context.weights.weight(node.weights[0]).parts.size();
  auto result = std::make_shared<Stack>(Stack{{}, Assignment(experts, static_cast<std::size_t>(pairs)), {}});
  for (const graph::WeightId id : node.weights) {
    DI_ASSIGN(PackedWeightPtr packed, pack_weight(context, *shared, id, node.inputs[0]));
    result->weights.push_back(std::move(packed));
  }
  const std::int64_t jobs = static_cast<std::int64_t>(experts * node.weights.size());
  result->jobs.reserve(static_cast<std::size_t>(jobs));
  DI_TRY(reserve_linears(shared->workspace, pairs, result->weights[0]->parts, jobs));
  return result;
}

// Queues the products of every chosen expert: output w of pair p goes to row p of output w.
void queue(Stack& stack, const NodeRun& run, bool input_by_pair) {
  stack.jobs.clear();
  for (std::size_t e = 0; e < stack.weights[0]->parts.size(); ++e) {
    const std::int64_t count = stack.assignment.count(e);
    if (count == 0) continue;
    for (std::size_t w = 0; w < stack.weights.size(); ++w) {
      LinearJob job;
      job.matrix = &stack.weights[w]->parts[e];
      job.y = run.output(w).data;
      job.y_stride = job.matrix->n;
      job.round_bf16 = run.rounds(w);
      job.x_rows = input_by_pair ? stack.assignment.pairs(e) : stack.assignment.rows(e);
      job.y_rows = stack.assignment.pairs(e);
      job.rows = count;
      stack.jobs.push_back(job);
    }
  }
}

Result<Kernel> expert_products(PrepareContext& context, const Node& node, const SharedPtr& shared,
                               bool input_by_pair) {
  DI_ASSIGN(const auto experts, stack(context, node, shared));
  return Kernel([experts, shared, input_by_pair](const NodeRun& run) {
    const FloatRows x = run.input(0);
    const IntRows ids = run.int_input(1);
    experts->assignment.assign(ids);
    queue(*experts, run, input_by_pair);
    const std::int64_t rows = input_by_pair ? ids.rows * ids.columns : x.rows;
    const std::int64_t width = input_by_pair ? x.columns / ids.columns : x.columns;
    run_linears(*shared->set, *run.parallel, shared->workspace, x.data, width, rows, experts->jobs);
  });
}

Result<Kernel> swiglu(const SharedPtr& shared) {
  return Kernel([shared](const NodeRun& run) {
    const FloatRows g = run.input(0);
    const FloatRows u = run.input(1);
    const FloatRows t = run.output(0);
    const float limit = run.attributes<graph::SwiGluAttributes>().limit;
    const std::int64_t width = run.value(run.node->inputs[0]).shape.back().value;
    const std::int64_t slots = g.columns / width;
    const bool weighted = run.node->inputs.size() > 2;
    run.parallel->run(g.rows * slots, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t pair = begin; pair < end; ++pair) {
        const float weight = weighted ? run.input(2).data[pair] : 1.0f;
        shared->set->swiglu(g.data + pair * width, u.data + pair * width, limit, weight, run.rounds(0), width,
                            t.data + pair * width);
      }
    });
  });
}

// sum = R(contributions in f32 by ascending expert id, then + shared) (backbone.md 5.4).
void sum_row(const KernelSet& set, std::span<const std::int32_t> ids, const float* y,
             const float* shared_expert, std::int64_t hidden, bool round, float* acc, float* out) {
  std::fill(acc, acc + hidden, 0.0f);
  std::int32_t last = -1;
  for (std::size_t done = 0; done < ids.size(); ++done) {
    std::size_t next = ids.size();
    for (std::size_t slot = 0; slot < ids.size(); ++slot)
      if (ids[slot] > last && (next == ids.size() || ids[slot] < ids[next])) next = slot;
    DI_CHECK_MSG(next < ids.size(), "an expert chosen twice");
    set.add(y + static_cast<std::int64_t>(next) * hidden, hidden, acc);
    last = ids[next];
  }
  set.sum(acc, shared_expert, hidden, round, out);
}

Result<Kernel> expert_sum(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  const graph::Shape& out = context.graph.values[static_cast<std::size_t>(node.outputs[0])].shape;
  DI_TRY(shared->workspace.reserve(64, out[1].value * 4));
  return Kernel([shared](const NodeRun& run) {
    const FloatRows out_rows = run.output(0);
    const IntRows ids = run.int_input(1);
    run.parallel->run(out_rows.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end, int worker) {
      auto* acc = reinterpret_cast<float*>(shared->workspace.worker(worker));
      for (std::int64_t row = begin; row < end; ++row)
        sum_row(*shared->set, {ids.row(row), static_cast<std::size_t>(ids.columns)}, run.input(0).row(row),
                run.input(2).row(row), out_rows.columns, run.rounds(0), acc, out_rows.row(row));
    });
  });
}

}  // namespace

void add_expert_kernels(OpTable& table, const SharedPtr& shared) {
  table[Op::kExpertGateUp] = [shared](PrepareContext& context, const Node& node) {
    return expert_products(context, node, shared, false);
  };
  table[Op::kExpertDown] = [shared](PrepareContext& context, const Node& node) {
    return expert_products(context, node, shared, true);
  };
  table[Op::kSwiGlu] = [shared](PrepareContext&, const Node&) { return swiglu(shared); };
  table[Op::kExpertSum] = [shared](PrepareContext& context, const Node& node) {
    return expert_sum(context, node, shared);
  };
}

}  // namespace deepinfer::backend::cpu
