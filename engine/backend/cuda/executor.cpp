#include "backend/cuda/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "backend/cuda/kernels/common/sampler.h"
#include "backend/cuda/plan/beside.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/rope.h"
#include "graph/passes.h"

namespace deepinfer::backend::cuda {

using graph::kNoValue;
using graph::ValueId;

namespace {

static_assert(Device::kBranches > std::max(kRowsBranch, kShortBranch), "a stream for each branch");
static_assert(kHostBuffers == Executable::kMostUnderWay, "places and host buffers take the same turns");

int element_bytes(graph::ElementType type) {
  return type == graph::ElementType::kBf16 ? 2 : 4;
}

}  // namespace

Executor::Executor(std::shared_ptr<Device> device, std::shared_ptr<const graph::Graph> graph,
                   const state::Registry& registry, const StepLimits& limits, TablePlace tables)
    : device_(std::move(device)),
      graph_(std::move(graph)),
      registry_(registry),
      limits_(limits),
      places_{Place{StepView(*graph_, limits)}, Place{StepView(*graph_, limits)}},
      weights_(device_, *graph_, tables) {}

Executor::~Executor() {
  device_->use();
  (void)device_->wait();
  for (const Place& place : places_)
    if (place.ended != nullptr) (void)cudaEventDestroy(place.ended);
  graphs_.clear();
}

Result<std::unique_ptr<Executable>> Executor::compile(
    std::shared_ptr<Device> device, const graph::Graph& graph, const state::Registry& registry,
    const StepLimits& limits, std::shared_ptr<const AllocatedMemory> state, TablePlace tables) {
  device->use();
  std::unique_ptr<Executor> executor(
      new Executor(device, std::make_shared<const graph::Graph>(graph::fuse(graph, graph::kAllFusions)),
                   registry, limits, tables));
  for (Place& place : executor->places_) {
    if (state != nullptr) place.step.check_state(state, registry);
    if (!device->imagined())
      device->note(cudaEventCreateWithFlags(&place.ended, cudaEventDisableTiming), "made an event");
  }
  DI_ASSIGN(executor->schedule_,
            Schedule::make(*executor->graph_, [wide = executor->graph_->precision == graph::Precision::kF32](
                                                  graph::Op op) { return has_op(op, wide); }));
  if (tables == TablePlace::kHost) executor->schedule_->run_ahead(kRowsBranch, fetches_rows);
  executor->schedule_->run_ahead(kShortBranch, short_chains(*executor->graph_), gives_way);
  std::set<int> ratios;
  for (const graph::Value& each : executor->graph_->values)
    if (!each.shape.empty() && each.shape[0].axis == graph::Axis::kGroups)
      ratios.insert(static_cast<int>(each.shape[0].value));
  DI_ASSIGN(executor->buffers_,
            StepBuffers::create(device, limits, std::vector<int>(ratios.begin(), ratios.end()),
                                executor->graph_->hidden));
  DI_TRY(executor->plan_buffers());
  if (executor->graph_->logits != kNoValue) DI_TRY(executor->prepare_head());
  DI_TRY(executor->prepare_ropes());
  DI_TRY(executor->prepare_ops());
  DI_TRY(device->healthy());
  return std::unique_ptr<Executable>(std::move(executor));
}

Result<void> Executor::plan_buffers() {
  DI_ASSIGN(const auto lifetimes, schedule_->lifetimes([this](ValueId id) {
    return StepView::largest_extent(value(id).shape[0], limits_) * columns_of(value(id)) *
           element_bytes(value(id).type);
  }));
  const graph::ArenaPlan plan = graph::plan_arena(lifetimes);
  DI_ASSIGN(arena_, DeviceBuffer::create(device_, "step buffers", static_cast<std::size_t>(plan.bytes)));
  addresses_.assign(lifetimes.size(), nullptr);
  for (std::size_t i = 0; i < lifetimes.size(); ++i)
    if (plan.offsets[i] >= 0) addresses_[i] = arena_.data() + plan.offsets[i];
  return {};
}

Result<void> Executor::prepare_head() {
  if (!can_sample(graph_->vocab))
    return make_error(
        ErrorKind::kUnsupported,
        fmt::format("cannot compile: a row of {} logits is more than this backend can sample from",
                    graph_->vocab));
  const auto rows = static_cast<std::size_t>(limits_.logit_rows);
  DI_ASSIGN(logits_, PinnedBuffer::create(device_, "logits",
                                          rows * static_cast<std::size_t>(graph_->vocab) * sizeof(float)));
  DI_ASSIGN(never_sampled_,
            DeviceBuffer::create(device_, "tables", never_words(graph_->vocab) * sizeof(std::uint32_t)));
  DI_ASSIGN(sampled_, DeviceBuffer::create(device_, "step buffers", rows * sizeof(Sampled)));
  DI_ASSIGN(highest_, DeviceBuffer::create(device_, "step buffers", rows * sizeof(RowHighest)));
  if (!device_->imagined())
    device_->note(cudaMemsetAsync(highest_.data(), 0, highest_.size(), device_->stream()),
                  "made buffers of a step");
  DI_ASSIGN(host_sampled_,
            PinnedBuffer::create(device_, "sampled ids", kMostUnderWay * rows * sizeof(Sampled)));
  never_sample(std::vector<std::uint8_t>(static_cast<std::size_t>(graph_->vocab), std::uint8_t{0}));
  return {};
}

void Executor::never_sample(std::span<const std::uint8_t> flags) {
  DI_CHECK(graph_->logits != kNoValue && flags.size() == static_cast<std::size_t>(graph_->vocab));
  std::vector<std::uint32_t> words(never_words(graph_->vocab), 0);
  for (std::size_t id = 0; id < flags.size(); ++id)
    if (flags[id] != 0) words[id / 32] |= 1U << (id % 32);
  device_->use();
  device_->upload(never_sampled_.data(), words.data(), never_sampled_.size(), "took ids never sampled");
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
    device_->upload(kept.data(), frequencies.data(), kept.size(), "took tables");
    DI_ASSIGN(
        DeviceBuffer angles,
        DeviceBuffer::create(device_, "tables",
                             frequencies.size() * static_cast<std::size_t>(limits_.tokens) * sizeof(Angle)));
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
  const Prepare prepare{*graph_,   registry_,  limits_, *schedule_, device_, weights_,
                        *buffers_, addresses_, ropes_,  kept_,      tables_, scratch_};
  for (const ScheduledNode& node : schedule_->nodes()) {
    const std::size_t scratch = std::exchange(scratch_->bytes, 0);
    DI_ASSIGN(DeviceOp op, prepare_node(prepare, node));
    DI_CHECK_MSG(!node.ahead() || scratch_->bytes == 0,
                 "a node that runs ahead uses the step stream's workspace");
    scratch_->bytes = std::max(scratch_->bytes, scratch);
    ops_.push_back(std::move(op));
  }
  for (const int branch : {kRowsBranch, kShortBranch})
    sides_.push_back(std::make_unique<SideStream>(device_, device_->side_stream(branch),
                                                  side_branch(schedule_->nodes(), branch)));
  DI_ASSIGN(
      scratch_->memory,
      DeviceBuffer::create(device_, "workspace",
                           std::max<std::size_t>(scratch_->routing_at() + scratch_->routing_bytes, 256)));
  return {};
}

// --- running

Launch Executor::launch_within(const StepBounds& bounds) const {
  Launch launch;
  launch.stream = device_->stream();
  std::copy(bounds.most.begin(), bounds.most.end(), launch.most);
  launch.context = bounds.context;
  return launch;
}

void Executor::launch_inputs(const Launch& launch) {
  buffers_->fetch(sampled_.as<Sampled>(), launch.stream);
  const RowSpace tokens = launch.sized({RowAxis::kTokens, kTokenCount, 1, 0});
  for (const DeviceRope& rope : ropes_)
    rope_angles(buffers_->data(), tokens, rope.frequencies, rope.pairs, rope.angles, launch.stream);
}

int Executor::rows_of(std::size_t op, const Launch& launch) const {
  const auto segment = static_cast<std::size_t>(schedule_->nodes()[op].segment);
  switch (graph_->segments[segment].rows.axis) {
    case graph::Axis::kDecoder: return launch.most[kDecoderCount];
    case graph::Axis::kLogits: return launch.most[kLogitCount];
    default: return launch.most[kTokenCount];
  }
}

void Executor::launch_all(const StepBounds& bounds) {
  const Launch launch = launch_within(bounds);
  launch_inputs(launch);
  const auto launch_on = [&](std::size_t op, cudaStream_t stream, const std::function<void()>& assigned) {
    if (rows_of(op, launch) == 0) return;
    Launch within = launch;
    within.stream = stream;
    within.assigned = assigned;
    ops_[op](within);
  };
  const auto launch_aside = [&](int node, cudaStream_t stream) {
    launch_on(static_cast<std::size_t>(node), stream, {});
  };
  for (const auto& side : sides_)
    side->begin();
  const auto join = [&](std::size_t before) {
    for (const auto& side : sides_)
      side->join(static_cast<int>(before));
  };
  const auto fork = [&](std::size_t before) {
    for (const auto& side : sides_)
      side->fork(static_cast<int>(before), launch_aside);
  };
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const ScheduledNode& node = schedule_->nodes()[i];
    const bool assigns = !node.ahead() && node.node->op == graph::Op::kFusedExperts && rows_of(i, launch) > 0;
    join(i);
    if (!assigns) fork(i);
    if (!node.ahead())
      launch_on(i, launch.stream, assigns ? std::function([&] { fork(i); }) : std::function<void()>());
  }
  join(ops_.size());
  fork(ops_.size());
  if (launch.most[kSampleCount] == 0) return;
  sample_rows(buffers_->data(), launch.most[kSampleCount],
              reinterpret_cast<const float*>(addresses_[static_cast<std::size_t>(graph_->logits)]),
              graph_->vocab, never_sampled_.as<std::uint32_t>(), highest_.as<RowHighest>(),
              sampled_.as<Sampled>(), launch.stream);
  buffers_->give(sampled_.as<Sampled>(), reinterpret_cast<Sampled*>(host_sampled_.data()), limits_.logit_rows,
                 launch.stream);
}

void Executor::launch_logits(const StepInputs& inputs) {
  const auto rows = inputs.logit_rows.size();
  const auto row_bytes = static_cast<std::size_t>(graph_->vocab) * sizeof(float);
  const std::byte* const logits = addresses_[static_cast<std::size_t>(graph_->logits)];
  const auto is_read = [&](std::size_t row) {
    return inputs.unread_logits.empty() || inputs.unread_logits[row] == 0;
  };
  for (std::size_t row = 0; row < rows;) {
    std::size_t end = row;
    while (end < rows && is_read(end))
      ++end;
    if (end > row)
      device_->note(cudaMemcpyAsync(logits_.data() + row * row_bytes, logits + row * row_bytes,
                                    (end - row) * row_bytes, cudaMemcpyDeviceToHost, device_->stream()),
                    "gave logits");
    row = end + 1;
  }
}

Result<cudaGraphExec_t> Executor::capture(const StepBounds& tier) {
  cudaStream_t stream = device_->stream();
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t graph = nullptr;
  device_->note(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "captured a step");
  launch_all(tier);
  device_->note(cudaStreamEndCapture(stream, &captured), "captured a step");
  DI_TRY(device_->healthy());
  // Nodes of the side streams keep their priority.
  const cudaError_t made =
      fault_fires("cuda.capture")
          ? cudaErrorMemoryAllocation
          : cudaGraphInstantiate(&graph, captured, cudaGraphInstantiateFlagUseNodePriority);
  (void)cudaGraphDestroy(captured);
  if (made == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // an allocation that failed leaves nothing broken behind
    return cudaGraphExec_t{nullptr};
  }
  device_->note(made, "captured a step");
  DI_TRY(device_->healthy());
  return graph;
}

Result<bool> Executor::replay(const StepBounds& tier) {
  if (graphs_.find(tier) == nullptr) {
    DI_ASSIGN(cudaGraphExec_t graph, capture(tier));
    if (graph == nullptr) {
      graphs_.clear();  // what they held may be enough for the next
      return false;
    }
    graphs_.keep(tier, graph);
  }
  device_->note(cudaGraphLaunch(*graphs_.find(tier), device_->stream()), "launched a step");
  return true;
}

Result<void> Executor::run(const StepInputs& inputs) {
  DI_CHECK_MSG(under_way_ == 0, "a step is run while others are under way");
  DI_TRY(launch(inputs));
  return finish();
}

Result<void> Executor::launch(const StepInputs& inputs) {
  device_->use();
  DI_TRY(device_->healthy());
  DI_CHECK_MSG(under_way_ < kMostUnderWay, "a step too many under way");
  if (graph_->logits == kNoValue && !inputs.sample_rows.empty())
    return make_error(ErrorKind::kInvalidArgument, "cannot run a step: a graph without logits is sampled");
  Place& place = places_[static_cast<std::size_t>(next_)];
  DI_TRY(place.step.begin(inputs, sampled_before_));
  buffers_->fill(place.step);
  const StepBounds exact = bounds_of(place.step, buffers_->ratios());
  const bool keeps_scores =
      std::any_of(kept_.begin(), kept_.end(), [](const KeptScores& site) { return site.memory.size() > 0; });
  bool launched = false;
  if (exact.most[kTokenCount] <= kMostCapturedRows && !keeps_scores) {
    DI_ASSIGN(launched, replay(tier_of(exact, limits_, buffers_->ratios())));
  }
  if (!launched) launch_all(exact);
  device_->note(fault_fires("cuda.launch") ? cudaErrorLaunchFailure : cudaGetLastError(), "launched a step");
  if (graph_->logits != kNoValue) launch_logits(inputs);
  for (const state::StateCopy& copy : inputs.copies)
    device_->note(
        cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToDevice, device_->stream()),
        "copied state");
  device_->note(cudaEventRecord(place.ended, device_->stream()), "launched a step");
  DI_TRY(device_->healthy());
  sampled_before_ = inputs.sample_rows.size();
  next_ = (next_ + 1) % kMostUnderWay;
  ++under_way_;
  return {};
}

bool Executor::ended() {
  DI_CHECK_MSG(under_way_ > 0, "no step is under way");
  // An error of the device is finish()'s to say.
  return cudaEventQuery(place(oldest()).ended) != cudaErrorNotReady;
}

Result<void> Executor::finish() {
  DI_CHECK_MSG(under_way_ > 0, "no step is under way");
  device_->use();
  last_ = oldest();
  const cudaError_t ended = cudaEventSynchronize(place(last_).ended);
  device_->note(fault_fires("cuda.wait") ? cudaErrorIllegalAddress : ended, "ran a step");
  --under_way_;
  return device_->healthy();
}

std::span<const float> Executor::logits(int first_row, int rows) const {
  if (graph_->logits == kNoValue) return {};
  last().check_logits_read(first_row, rows);
  const auto vocab = static_cast<std::size_t>(graph_->vocab);
  return {reinterpret_cast<const float*>(logits_.data()) + static_cast<std::size_t>(first_row) * vocab,
          static_cast<std::size_t>(rows) * vocab};
}

std::span<const Sampled> Executor::sampled() const {
  return {host_sampled(last_), last().inputs().sample_rows.size()};
}

Result<SeamTensor> Executor::kept_scores(int site, const std::string& name) const {
  const ScheduledSite& scheduled = schedule_->sites()[static_cast<std::size_t>(site)];
  const KeptScores& kept = kept_[static_cast<std::size_t>(site)];
  const graph::Dim dim = value(scheduled.scores).shape[0];
  const std::int64_t rows = last().extent(dim);
  SeamTensor tensor;
  tensor.name = name;
  std::vector<std::int64_t> visible;
  std::int64_t widest = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    visible.push_back((last().position(dim.axis, row) + 1) / scheduled.ratio);
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
      tensor.shape.push_back(last().extent(dim));
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
  auto tables = static_cast<std::int64_t>(never_sampled_.size());
  for (const DeviceBuffer& table : tables_)
    tables += static_cast<std::int64_t>(table.size());
  std::int64_t kept = 0;
  for (const KeptScores& site : kept_)
    kept += static_cast<std::int64_t>(site.memory.size());
  return {{"weights", weights_.bytes()},
          {"engram tables", weights_.table_bytes(), weights_.place() == TablePlace::kHost},
          {"step buffers", static_cast<std::int64_t>(arena_.size() + sampled_.size() + highest_.size())},
          {"kept index scores", kept},
          {"workspace", static_cast<std::int64_t>(scratch_->memory.size())},
          {"tables", tables},
          {"step inputs", buffers_->input_bytes()},
          {"given rows", buffers_->given_bytes()},
          {"pinned step inputs", buffers_->pinned_bytes(), true},
          {"logits", static_cast<std::int64_t>(logits_.size()), true},
          {"sampled ids", static_cast<std::int64_t>(host_sampled_.size()), true}};
}

}  // namespace deepinfer::backend::cuda
