#include "backend/common/executor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "base/math.h"
#include "base/rope.h"
#include "graph/arena.h"

namespace deepinfer::backend {

using graph::kNoValue;
using graph::Op;
using graph::ValueId;

class Executor::Run final : public NodeRun {
 public:
  explicit Run(Executor& owner) : owner_(owner) {
    graph = owner.graph_.get();
    registry = &owner.registry_;
    step = &owner.step_;
    parallel = owner.parallel_.get();
  }

  FloatRows floats(ValueId id) const override {
    DI_CHECK(owner_.value(id).type != graph::ElementType::kI32);
    return {reinterpret_cast<float*>(address(id)), step->extent(row_dim(id)), owner_.columns(id)};
  }
  IntRows ints(ValueId id) const override {
    DI_CHECK(owner_.value(id).type == graph::ElementType::kI32);
    return {reinterpret_cast<int32_t*>(address(id)), step->extent(row_dim(id)), owner_.columns(id)};
  }
  RopeAngles rope(int table) const override {
    const Table& entry = owner_.tables_[static_cast<size_t>(table)];
    return {static_cast<int>(entry.frequencies.size()), entry.frequencies, entry.sines.data(),
            entry.cosines.data()};
  }

 private:
  std::byte* address(ValueId id) const { return owner_.addresses_[static_cast<size_t>(id)]; }
  Executor& owner_;
};

Executor::Executor(std::shared_ptr<const graph::Graph> graph, const state::Registry& registry,
                   const StepLimits& limits, std::shared_ptr<Parallel> parallel)
    : graph_(std::move(graph)),
      registry_(registry),
      parallel_(std::move(parallel)),
      step_(*graph_, limits),
      weights_(*graph_) {}

Executor::~Executor() = default;

Result<std::unique_ptr<Executable>> Executor::compile(std::shared_ptr<const graph::Graph> graph,
                                                      const state::Registry& registry,
                                                      const StepLimits& limits, const OpTable& table,
                                                      std::shared_ptr<Parallel> parallel,
                                                      std::shared_ptr<const AllocatedMemory> state) {
  std::unique_ptr<Executor> executor(new Executor(std::move(graph), registry, limits, std::move(parallel)));
  if (state != nullptr) executor->step_.check_state(std::move(state), registry);
  DI_ASSIGN(executor->schedule_, Schedule::make(*executor->graph_, [&](Op op) { return bool(table[op]); }));
  for (const ScheduledSite& site : executor->schedule_->sites()) {
    executor->sites_.emplace_back();
    executor->sites_.back().site.candidates = site.candidates;
    executor->sites_.back().site.select = site.select;
  }
  DI_TRY(executor->plan_buffers());
  DI_TRY(executor->prepare_kernels(table));
  DI_TRY(executor->prepare_tables());
  executor->run_ = std::make_unique<Run>(*executor);
  return std::unique_ptr<Executable>(std::move(executor));
}

// --- compiling

Result<void> Executor::plan_buffers() {
  DI_ASSIGN(const auto lifetimes, schedule_->lifetimes([this](ValueId id) {
    return StepView::largest_extent(value(id).shape[0], step_.limits()) * columns(id) * int64_t{4};
  }));
  const graph::ArenaPlan plan = graph::plan_arena(lifetimes);
  DI_ASSIGN(arena_, HugeBuffer::create(host_ledger(), "step buffers", static_cast<size_t>(plan.bytes)));
  addresses_.assign(lifetimes.size(), nullptr);
  for (size_t i = 0; i < lifetimes.size(); ++i)
    if (plan.offsets[i] >= 0) addresses_[i] = arena_.data() + plan.offsets[i];
  return {};
}

Result<void> Executor::prepare_kernels(const OpTable& table) {
  int64_t scratch_bytes = 0;
  PrepareContext context{*graph_,    registry_,     step_.limits(), weights_,
                         *parallel_, kernel_bytes_, scratch_bytes};
  for (const ScheduledNode& item : schedule_->nodes()) {
    DI_ASSIGN(Kernel kernel, table[item.node->op](context, *item.node));
    DI_CHECK(kernel != nullptr);
    kernels_.push_back(std::move(kernel));
  }
  workspace_bytes_ = table.shared_bytes();
  const auto held = static_cast<std::uint64_t>(weights_.bytes());
  DI_ASSIGN(scratch_claim_,
            LedgerClaim::take(host_ledger(), "scratch", static_cast<std::uint64_t>(scratch_bytes)));
  DI_ASSIGN(weights_claim_, LedgerClaim::take(host_ledger(), "weights", held));
  return {};
}

Result<void> Executor::prepare_tables() {
  size_t floats = 0;
  for (const graph::RopeTable& table : graph_->rope_tables) {
    RopeParameters parameters;
    parameters.theta = table.theta;
    parameters.dimension = table.channels;
    parameters.factor = table.yarn ? table.factor : 1.0;
    parameters.original_length = table.original_length;
    parameters.beta_fast = table.beta_fast;
    parameters.beta_slow = table.beta_slow;
    Table entry;
    entry.frequencies = rope_frequencies(parameters);
    entry.sines.resize(entry.frequencies.size() * static_cast<size_t>(step_.limits().tokens));
    entry.cosines.resize(entry.sines.size());
    floats += entry.sines.size() + entry.cosines.size();
    tables_.push_back(std::move(entry));
  }
  DI_ASSIGN(tables_claim_, LedgerClaim::take(host_ledger(), "tables", floats * sizeof(float)));
  return {};
}

// --- running

void Executor::fill_tables() {
  const auto rows = step_.inputs().positions;
  for (Table& table : tables_) {
    const size_t pairs = table.frequencies.size();
    parallel_->run(static_cast<int64_t>(rows.size()), 16, [&](int64_t begin, int64_t end, int) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
        for (size_t pair = 0; pair < pairs; ++pair) {
          const SinCos angle = sincos_f32(static_cast<float>(rows[row]) * table.frequencies[pair]);
          table.sines[row * pairs + pair] = angle.sin;
          table.cosines[row * pairs + pair] = angle.cos;
        }
      }
    });
  }
}

void Executor::begin_index_sites() {
  for (size_t i = 0; i < sites_.size(); ++i) {
    Site& entry = sites_[i];
    const ScheduledSite& scheduled = schedule_->sites()[i];
    IndexSite& site = entry.site;
    site.made_candidates = site.candidates ? run_->ints(site.candidates->outputs[0]) : IntRows{};
    site.selection = site.select ? run_->ints(site.select->outputs[0]) : IntRows{};
    const bool masked = site.select != nullptr && site.select->inputs.size() > 1;
    site.allowed_candidates = masked ? run_->ints(site.select->inputs[1]) : IntRows{};
    if (!scheduled.kept) continue;
    const graph::Dim dim = value(scheduled.scores).shape[0];
    const int64_t rows = step_.extent(dim);
    entry.kept_offsets.assign(1, 0);
    for (int64_t row = 0; row < rows; ++row)
      entry.kept_offsets.push_back(entry.kept_offsets.back() +
                                   (step_.position(dim.axis, row) + 1) / scheduled.ratio);
    entry.kept_scores.resize(static_cast<size_t>(entry.kept_offsets.back()));
    site.kept_scores = entry.kept_scores.data();
    site.kept_offsets = entry.kept_offsets.data();
  }
}

Result<void> Executor::meet_faults() {
  if (fault_fires("host.step_stall"))
    while (true)
      ::pause();
  lost_ = lost_ || fault_fires("host.step_lost");
  if (!lost_) return {};
  return make_error(ErrorKind::kDeviceLost, "the device failed: a fault point is armed",
                    "start the program again without it");
}

Result<void> Executor::run(const StepInputs& inputs) {
  DI_TRY(meet_faults());
  if (!inputs.sample_rows.empty())
    return make_error(ErrorKind::kUnsupported, "cannot run a step: this backend does not sample");
  DI_CHECK_MSG(inputs.copies.empty(), "copies after a step are for a device that runs ahead");
  DI_TRY(step_.begin(inputs));
  fill_tables();
  begin_index_sites();
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const ScheduledNode& item = schedule_->nodes()[i];
    if (step_.extent(graph_->segments[static_cast<size_t>(item.segment)].rows) == 0) continue;
    run_->node = item.node;
    run_->index_site = item.site < 0 ? nullptr : &sites_[static_cast<size_t>(item.site)].site;
    kernels_[i](*run_);
  }
  return {};
}

std::span<const float> Executor::logits(int first_row, int rows) const {
  if (graph_->logits == kNoValue) return {};
  step_.check_logits_read(first_row, rows);
  const FloatRows all = run_->floats(graph_->logits);
  return {all.data + first_row * all.columns, static_cast<size_t>(rows * all.columns)};
}

void Executor::copy_kept_scores(const Site& site, SeamTensor& tensor) const {
  const auto rows = static_cast<int64_t>(site.kept_offsets.size()) - 1;
  int64_t widest = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<size_t>(row);
    widest = std::max(widest, site.kept_offsets[index + 1] - site.kept_offsets[index]);
  }
  tensor.shape = {std::max<int64_t>(rows, 0), widest};
  if (rows <= 0) return;
  tensor.f32.assign(static_cast<size_t>(rows * widest), -std::numeric_limits<float>::infinity());
  for (int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<size_t>(row);
    std::copy(site.kept_scores.begin() + site.kept_offsets[index],
              site.kept_scores.begin() + site.kept_offsets[index + 1], tensor.f32.begin() + row * widest);
  }
}

Result<SeamTensor> Executor::seam(const std::string& name) const {
  for (const graph::Seam& seam : graph_->seams) {
    if (seam.name != name) continue;
    SeamTensor tensor;
    tensor.name = name;
    tensor.type = value(seam.value).type;
    if (const int site = schedule_->site_of(seam.value); site >= 0) {
      copy_kept_scores(sites_[static_cast<size_t>(site)], tensor);
      return tensor;
    }
    for (const graph::Dim dim : value(seam.value).shape)
      tensor.shape.push_back(step_.extent(dim));
    if (tensor.type == graph::ElementType::kI32) {
      const IntRows rows = run_->ints(seam.value);
      tensor.i32.assign(rows.data, rows.data + rows.rows * rows.columns);
    } else {
      const FloatRows rows = run_->floats(seam.value);
      tensor.f32.assign(rows.data, rows.data + rows.rows * rows.columns);
    }
    return tensor;
  }
  return no_such_seam(*graph_, name);
}

std::vector<Executable::Memory> Executor::memory() const {
  return {{"weights", weights_.bytes() + kernel_bytes_},
          {"step buffers", static_cast<int64_t>(arena_.taken())},
          {"workspace", workspace_bytes_},
          {"scratch", static_cast<int64_t>(scratch_claim_.bytes())},
          {"tables", static_cast<int64_t>(tables_claim_.bytes())}};
}

}  // namespace deepinfer::backend
