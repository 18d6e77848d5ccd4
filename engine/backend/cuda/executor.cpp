#include "backend/cuda/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/rope.h"

namespace deepinfer::backend::cuda {

using graph::kNoValue;
using graph::ValueId;

namespace {

constexpr int kMostCapturedRows = 256;  // steps of more rows are long enough to hide their launches
constexpr std::size_t kMostGraphs =
    64;  // all go when there would be more: tiers come back as they are needed
constexpr std::int64_t kLeastContext = 1024;

int element_bytes(graph::ElementType type) {
  return type == graph::ElementType::kBf16 ? 2 : 4;
}

int round_up_rows(int rows, int limit) {
  int tier = 1;
  while (tier < rows)
    tier *= 2;
  return rows == 0 ? 0 : std::min(tier, limit);
}

}  // namespace

Executor::Executor(std::shared_ptr<Device> device, std::shared_ptr<const graph::Graph> graph,
                   const state::Registry& registry, const StepLimits& limits)
    : device_(std::move(device)),
      graph_(std::move(graph)),
      registry_(registry),
      step_(*graph_, limits),
      weights_(device_, *graph_) {}

Executor::~Executor() {
  device_->use();
  (void)cudaStreamSynchronize(device_->stream());
  drop_graphs();
}

Result<std::unique_ptr<Executable>> Executor::compile(std::shared_ptr<Device> device,
                                                      std::shared_ptr<const graph::Graph> graph,
                                                      const state::Registry& registry,
                                                      const StepLimits& limits) {
  device->use();
  std::unique_ptr<Executor> executor(new Executor(device, std::move(graph), registry, limits));
  DI_ASSIGN(executor->schedule_,
            Schedule::make(*executor->graph_, [wide = executor->graph_->precision == graph::Precision::kF32](
                                                  graph::Op op) { return has_op(op, wide); }));
  std::set<int> ratios;
  for (const graph::Value& each : executor->graph_->values)
    if (!each.shape.empty() && each.shape[0].axis == graph::Axis::kGroups)
      ratios.insert(static_cast<int>(each.shape[0].value));
  DI_ASSIGN(executor->buffers_,
            StepBuffers::create(device, limits, std::vector<int>(ratios.begin(), ratios.end()),
                                executor->graph_->hidden));
  DI_TRY(executor->plan_buffers());
  DI_TRY(executor->prepare_ropes());
  DI_TRY(executor->prepare_ops());
  DI_TRY(device->healthy());
  return std::unique_ptr<Executable>(std::move(executor));
}

Result<void> Executor::plan_buffers() {
  DI_ASSIGN(const auto lifetimes, schedule_->lifetimes([this](ValueId id) {
    return StepView::largest_extent(value(id).shape[0], step_.limits()) * columns_of(value(id)) *
           element_bytes(value(id).type);
  }));
  const graph::ArenaPlan plan = graph::plan_arena(lifetimes);
  DI_ASSIGN(arena_, DeviceBuffer::create(device_, "arena", static_cast<std::size_t>(plan.bytes)));
  addresses_.assign(lifetimes.size(), nullptr);
  for (std::size_t i = 0; i < lifetimes.size(); ++i)
    if (plan.offsets[i] >= 0) addresses_[i] = arena_.data() + plan.offsets[i];
  if (graph_->logits == kNoValue) return {};
  const std::int64_t rows = StepView::largest_extent(value(graph_->logits).shape[0], step_.limits());
  DI_ASSIGN(logits_, PinnedBuffer::create(device_, "logits",
                                          static_cast<std::size_t>(rows * graph_->vocab) * sizeof(float)));
  return {};
}

Result<void> Executor::prepare_ropes() {
  for (const graph::RopeTable& table : graph_->rope_tables) {
    RopeParameters parameters;
    parameters.theta = table.theta;
    parameters.dimension = table.channels;
    parameters.factor = table.yarn ? table.factor : 1.0;
    parameters.original_length = table.original_length;
    parameters.beta_fast = table.beta_fast;
    parameters.beta_slow = table.beta_slow;
    const std::vector<float> frequencies = rope_frequencies(parameters);
    DeviceRope rope;
    rope.pairs = static_cast<int>(frequencies.size());
    DI_ASSIGN(DeviceBuffer kept, DeviceBuffer::create(device_, "tables", frequencies.size() * sizeof(float)));
    device_->note(cudaMemcpy(kept.data(), frequencies.data(), kept.size(), cudaMemcpyHostToDevice),
                  "took tables");
    DI_ASSIGN(DeviceBuffer angles,
              DeviceBuffer::create(
                  device_, "tables",
                  frequencies.size() * static_cast<std::size_t>(step_.limits().tokens) * sizeof(Angle)));
    rope.frequencies = kept.as<float>();
    rope.angles = angles.as<Angle>();
    ropes_.push_back(rope);
    tables_.push_back(std::move(kept));
    tables_.push_back(std::move(angles));
  }
  return {};
}

Result<void> Executor::prepare_ops() {
  kept_.resize(schedule_->sites().size());
  const Prepare prepare{*graph_,   registry_,  step_.limits(), *schedule_, device_, weights_,
                        *buffers_, addresses_, ropes_,         kept_,      tables_, scratch_};
  for (const ScheduledNode& node : schedule_->nodes()) {
    DI_ASSIGN(DeviceOp op, prepare_node(prepare, node));
    ops_.push_back(std::move(op));
  }
  DI_ASSIGN(scratch_->memory,
            DeviceBuffer::create(device_, "scratch", std::max<std::size_t>(scratch_->bytes, 256)));
  return {};
}

// --- running

Launch Executor::bounds_of_step() const {
  const StepInputs& inputs = step_.inputs();
  Launch launch;
  launch.stream = device_->stream();
  launch.most[kTokenCount] = static_cast<int>(inputs.ids.size());
  launch.most[kDecoderCount] = static_cast<int>(inputs.decoder_rows.size());
  launch.most[kLogitCount] = static_cast<int>(inputs.logit_rows.size());
  launch.most[kSequenceCount] = step_.sequences();
  for (std::size_t i = 0; i < buffers_->ratios().size(); ++i)
    launch.most[kGroupCount + i] = static_cast<int>(step_.groups(buffers_->ratios()[i]).size());
  for (const SequenceSlice& slice : inputs.sequences)
    launch.context = std::max(launch.context, slice.start + slice.tokens);
  return launch;
}

Executor::Tier Executor::tier_of(const Launch& exact) const {
  const StepLimits& limits = step_.limits();
  Tier tier;
  tier.most[kTokenCount] = round_up_rows(exact.most[kTokenCount], limits.tokens);
  tier.most[kDecoderCount] = round_up_rows(exact.most[kDecoderCount], limits.decoder_rows);
  tier.most[kLogitCount] = round_up_rows(exact.most[kLogitCount], limits.logit_rows);
  tier.most[kSequenceCount] = round_up_rows(exact.most[kSequenceCount], limits.sequences);
  for (std::size_t i = 0; i < buffers_->ratios().size(); ++i)
    tier.most[kGroupCount + i] = std::min(
        tier.most[kTokenCount], tier.most[kTokenCount] / buffers_->ratios()[i] + tier.most[kSequenceCount]);
  tier.context = kLeastContext;
  while (tier.context < exact.context)
    tier.context *= 2;
  tier.context = std::min(tier.context, std::max(limits.context, exact.context));
  return tier;
}

void Executor::launch_all(const Launch& launch) {
  buffers_->fetch(launch.stream);
  const RowSpace tokens = launch.sized({RowAxis::kTokens, kTokenCount, 1, 0});
  for (const DeviceRope& rope : ropes_)
    rope_angles(buffers_->data(), tokens, rope.frequencies, rope.pairs, rope.angles, launch.stream);
  const auto rows_of = [&](const graph::Segment& segment) {
    switch (segment.rows.axis) {
      case graph::Axis::kDecoder: return launch.most[kDecoderCount];
      case graph::Axis::kLogits: return launch.most[kLogitCount];
      default: return launch.most[kTokenCount];
    }
  };
  for (std::size_t i = 0; i < ops_.size(); ++i)
    if (rows_of(graph_->segments[static_cast<std::size_t>(schedule_->nodes()[i].segment)]) > 0)
      ops_[i](launch);
}

void Executor::drop_graphs() {
  for (const auto& [tier, graph] : graphs_)
    (void)cudaGraphExecDestroy(graph);
  graphs_.clear();
}

Result<void> Executor::replay(const Tier& tier) {
  if (captured_embeds_ != buffers_->data().embeds) {
    drop_graphs();
    captured_embeds_ = buffers_->data().embeds;
  }
  auto found = graphs_.find(tier);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kMostGraphs) drop_graphs();
    Launch launch;
    launch.stream = device_->stream();
    std::copy(tier.most.begin(), tier.most.end(), launch.most);
    launch.context = tier.context;
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t graph = nullptr;
    device_->note(cudaStreamBeginCapture(launch.stream, cudaStreamCaptureModeThreadLocal), "captured a step");
    launch_all(launch);
    device_->note(cudaStreamEndCapture(launch.stream, &captured), "captured a step");
    DI_TRY(device_->healthy());
    device_->note(cudaGraphInstantiate(&graph, captured, 0), "captured a step");
    (void)cudaGraphDestroy(captured);
    DI_TRY(device_->healthy());
    found = graphs_.emplace(tier, graph).first;
  }
  device_->note(cudaGraphLaunch(found->second, device_->stream()), "launched a step");
  return {};
}

Result<void> Executor::run(const StepInputs& inputs) {
  device_->use();
  DI_TRY(device_->healthy());
  DI_TRY(step_.begin(inputs));
  DI_TRY(buffers_->fill(step_));
  const Launch exact = bounds_of_step();
  const bool keeps_scores =
      std::any_of(kept_.begin(), kept_.end(), [](const KeptScores& site) { return site.memory.size() > 0; });
  if (exact.most[kTokenCount] <= kMostCapturedRows && !keeps_scores) {
    DI_TRY(replay(tier_of(exact)));
  } else {
    launch_all(exact);
  }
  device_->note(cudaGetLastError(), "launched a step");
  logit_values_ = 0;
  if (graph_->logits != kNoValue && exact.most[kLogitCount] > 0) {
    logit_values_ =
        static_cast<std::size_t>(exact.most[kLogitCount]) * static_cast<std::size_t>(graph_->vocab);
    device_->note(cudaMemcpyAsync(logits_.data(), addresses_[static_cast<std::size_t>(graph_->logits)],
                                  logit_values_ * sizeof(float), cudaMemcpyDeviceToHost, device_->stream()),
                  "gave logits");
  }
  device_->note(cudaStreamSynchronize(device_->stream()), "ran a step");
  return device_->healthy();
}

std::span<const float> Executor::logits() const {
  return {reinterpret_cast<const float*>(logits_.data()), logit_values_};
}

Result<SeamTensor> Executor::kept_scores(int site, const std::string& name) const {
  const ScheduledSite& scheduled = schedule_->sites()[static_cast<std::size_t>(site)];
  const KeptScores& kept = kept_[static_cast<std::size_t>(site)];
  const graph::Dim dim = value(scheduled.scores).shape[0];
  const std::int64_t rows = step_.extent(dim);
  SeamTensor tensor;
  tensor.name = name;
  std::vector<std::int64_t> visible;
  std::int64_t widest = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    visible.push_back((step_.position(dim.axis, row) + 1) / scheduled.ratio);
    widest = std::max(widest, visible.back());
  }
  tensor.shape = {rows, widest};
  tensor.f32.assign(static_cast<std::size_t>(rows * widest), -std::numeric_limits<float>::infinity());
  for (std::int64_t row = 0; row < rows; ++row)
    device_->note(cudaMemcpy(tensor.f32.data() + row * widest, kept.memory.as<float>() + row * kept.stride,
                             static_cast<std::size_t>(visible[static_cast<std::size_t>(row)]) * sizeof(float),
                             cudaMemcpyDeviceToHost),
                  "gave a seam");
  DI_TRY(device_->healthy());
  return tensor;
}

Result<SeamTensor> Executor::seam(const std::string& name) const {
  device_->use();
  for (const graph::Seam& seam : graph_->seams) {
    if (seam.name != name) continue;
    if (const int site = schedule_->site_of(seam.value); site >= 0) return kept_scores(site, name);
    SeamTensor tensor;
    tensor.name = name;
    tensor.type = value(seam.value).type;
    std::int64_t count = 1;
    for (const graph::Dim dim : value(seam.value).shape) {
      tensor.shape.push_back(step_.extent(dim));
      count *= tensor.shape.back();
    }
    const auto values = static_cast<std::size_t>(count);
    std::vector<std::byte> bytes(values * static_cast<std::size_t>(element_bytes(tensor.type)));
    device_->note(cudaMemcpy(bytes.data(), addresses_[static_cast<std::size_t>(seam.value)], bytes.size(),
                             cudaMemcpyDeviceToHost),
                  "gave a seam");
    DI_TRY(device_->healthy());
    if (tensor.type == graph::ElementType::kI32) {
      tensor.i32.resize(values);
      std::memcpy(tensor.i32.data(), bytes.data(), bytes.size());
      return tensor;
    }
    tensor.f32.resize(values);
    if (tensor.type == graph::ElementType::kF32) {
      std::memcpy(tensor.f32.data(), bytes.data(), bytes.size());
      return tensor;
    }
    for (std::size_t i = 0; i < values; ++i) {
      std::uint16_t half;
      std::memcpy(&half, bytes.data() + 2 * i, sizeof half);
      tensor.f32[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
    }
    return tensor;
  }
  return no_such_seam(*graph_, name);
}

std::vector<Executable::Memory> Executor::memory() const {
  std::int64_t tables = buffers_->device_bytes();
  for (const DeviceBuffer& table : tables_)
    tables += static_cast<std::int64_t>(table.size());
  std::int64_t kept = 0;
  for (const KeptScores& site : kept_)
    kept += static_cast<std::int64_t>(site.memory.size());
  return {{"weights", weights_.bytes()},
          {"arena", static_cast<std::int64_t>(arena_.size()) + kept},
          {"workspace", static_cast<std::int64_t>(scratch_->memory.size())},
          {"tables", tables}};
}

}  // namespace deepinfer::backend::cuda
