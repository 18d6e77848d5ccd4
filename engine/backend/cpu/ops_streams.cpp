#include "backend/cpu/pack.h"
#include "backend/cpu/table.h"
#include "base/math.h"

namespace deepinfer::backend::cpu {

using graph::Node;
using graph::Op;

namespace {

constexpr std::int64_t kRowGrain = 4;
constexpr int kStreams = 4;  // what the vector kernels of hyper-connections are written for
constexpr int kMixes = 2 * kStreams + kStreams * kStreams;

Result<Kernel> rms_norm(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  DI_ASSIGN(const auto weight, context.weights.values(node.weights[0]));
  return Kernel([weight, shared](const NodeRun& run) {
    const FloatRows x = run.input(0);
    const FloatRows y = run.output(0);
    const float eps = run.attributes<graph::NormAttributes>().eps;
    run.parallel->run(x.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        shared->set->rms_norm(x.row(row), weight->data(), x.columns, eps, run.rounds(0), y.row(row));
    });
  });
}

Result<Kernel> head_rms_norm(const SharedPtr& shared) {
  return Kernel([shared](const NodeRun& run) {
    const FloatRows x = run.input(0);
    const FloatRows y = run.output(0);
    const float eps = run.attributes<graph::NormAttributes>().eps;
    const std::int64_t dim = run.value(run.node->outputs[0]).shape.back().value;
    run.parallel->run(x.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        for (std::int64_t first = 0; first < x.columns; first += dim)
          shared->set->rms_norm(x.row(row) + first, nullptr, dim, eps, run.rounds(0), y.row(row) + first);
    });
  });
}

// The projection of the streams and its norm factor: mixes [rows, n] of hc sites and of V4's head.
struct Projection {
  PackedWeightPtr fn;
  std::shared_ptr<const std::vector<float>> base;
  std::shared_ptr<const std::vector<float>> scale;
  std::shared_ptr<std::vector<float>> mixes;

  // m = (fn . v) * rsqrt(mean(v^2) + eps), the factor applied to the products (backbone.md 4.1).
  void run(const NodeRun& run, Shared& shared, float eps) const {
    const FloatRows h = run.input(0);
    const std::int64_t n = fn->parts[0].n;
    LinearJob job;
    job.matrix = &fn->parts[0];
    job.y = mixes->data();
    job.y_stride = n;
    run_linears(*shared.set, *run.parallel, shared.workspace, h.data, h.columns, h.rows, {&job, 1});
    run.parallel->run(h.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const float factor = rsqrt_f32(shared.set->mean_square(h.row(row), h.columns) + eps);
        for (std::int64_t i = 0; i < n; ++i)
          mixes->data()[row * n + i] *= factor;
      }
    });
  }
};

Result<Projection> projection(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  Projection result;
  DI_ASSIGN(result.fn, pack_weight(context, *shared, node.weights[0], node.inputs[0]));
  DI_ASSIGN(result.base, context.weights.values(node.weights[1]));
  DI_ASSIGN(result.scale, context.weights.values(node.weights[2]));
  const std::int64_t rows = most_rows(context, node.inputs[0]);
  const PackedMatrix& fn = result.fn->parts[0];
  DI_TRY(reserve_linears(shared->workspace, rows, result.fn->parts));
  result.mixes = std::make_shared<std::vector<float>>(static_cast<std::size_t>(rows * fn.n));
  context.scratch_bytes += rows * fn.n * 4;
  return result;
}

Result<Kernel> hc_coefficients(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  DI_ASSIGN(const Projection site, projection(context, node, shared));
  return Kernel([site, shared](const NodeRun& run) {
    const auto& attributes = run.attributes<graph::HcAttributes>();
    site.run(run, *shared, attributes.rms_eps);
    const FloatRows pre = run.output(0);
    const FloatRows post = run.output(1);
    const FloatRows comb = run.output(2);
    run.parallel->run(pre.rows, kGroupRows, [&](std::int64_t begin, std::int64_t end, int) {
      shared->set->hc_coefficients(site.mixes->data() + begin * kMixes, kMixes, site.base->data(),
                                   site.scale->data(), attributes.sinkhorn_iterations, attributes.hc_eps,
                                   end - begin, pre.row(begin), post.row(begin), comb.row(begin));
    });
  });
}

Result<Kernel> hc_head_pre(PrepareContext& context, const Node& node, const SharedPtr& shared) {
  DI_ASSIGN(const Projection head, projection(context, node, shared));
  return Kernel([head, shared](const NodeRun& run) {
    const auto& attributes = run.attributes<graph::HcAttributes>();
    head.run(run, *shared, attributes.rms_eps);
    const FloatRows pre = run.output(0);
    for (std::int64_t row = 0; row < pre.rows; ++row)
      for (std::int64_t i = 0; i < pre.columns; ++i) {
        const float m = head.mixes->data()[row * pre.columns + i];
        pre.row(row)[i] =
            sigmoid_f32(m * (*head.scale)[0] + (*head.base)[static_cast<std::size_t>(i)]) + attributes.hc_eps;
      }
  });
}

Result<Kernel> hc_collapse(const SharedPtr& shared) {
  return Kernel([shared](const NodeRun& run) {
    const FloatRows h = run.input(0);
    const FloatRows x = run.output(0);
    const HcShape shape{run.attributes<graph::HcAttributes>().streams, x.columns};
    run.parallel->run(h.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        shared->set->hc_collapse(h.row(row), run.input(1).row(row), shape, run.rounds(0), x.row(row));
    });
  });
}

Result<Kernel> hc_expand(const SharedPtr& shared) {
  return Kernel([shared](const NodeRun& run) {
    const FloatRows y = run.input(0);
    const HcShape shape{run.attributes<graph::HcAttributes>().streams, y.columns};
    run.parallel->run(y.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row)
        shared->set->hc_expand(y.row(row), run.input(1).row(row), run.input(2).row(row),
                               run.input(3).row(row), shape, run.rounds(0), run.output(0).row(row));
    });
  });
}

// Replaces the entry where the node has the four streams that the vector kernels need; else keeps the reference's.
template <class Make>
void replace_hc(OpTable& table, Op op, Make make) {
  PrepareKernel reference = table[op];
  table[op] = [reference, make](PrepareContext& context, const Node& node) -> Result<Kernel> {
    if (std::get<graph::HcAttributes>(node.attributes).streams != kStreams) return reference(context, node);
    return make(context, node);
  };
}

}  // namespace

void add_stream_kernels(OpTable& table, const SharedPtr& shared) {
  table[Op::kRmsNorm] = [shared](PrepareContext& context, const Node& node) {
    return rms_norm(context, node, shared);
  };
  table[Op::kHeadRmsNorm] = [shared](PrepareContext&, const Node&) { return head_rms_norm(shared); };
  replace_hc(table, Op::kHcCoefficients, [shared](PrepareContext& context, const Node& node) {
    return hc_coefficients(context, node, shared);
  });
  replace_hc(table, Op::kHcHeadPre, [shared](PrepareContext& context, const Node& node) {
    return hc_head_pre(context, node, shared);
  });
  replace_hc(table, Op::kHcCollapse, [shared](PrepareContext&, const Node&) { return hc_collapse(shared); });
  replace_hc(table, Op::kHcExpand, [shared](PrepareContext&, const Node&) { return hc_expand(shared); });
}

}  // namespace deepinfer::backend::cpu
