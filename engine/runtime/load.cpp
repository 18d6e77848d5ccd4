#include "runtime/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "runtime/backend_storage.h"

namespace deepinfer::runtime {
namespace {

constexpr std::int64_t kBudgetPercent = 80;  // of the available memory

struct Sizes {
  std::int64_t max_model_len = 0;
  int sequences = 0;
  int step_tokens = 0;
  int logit_rows = 0;
};

Result<Sizes> choose_sizes(const model::Config& config, const LoadOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& remedy) {
    return make_error(ErrorKind::kInvalidArgument, "cannot load the model: " + what, remedy);
  };
  Sizes sizes;
  sizes.max_model_len =
      options.max_model_len != 0 ? options.max_model_len : std::min(config.max_position, kDefaultContext);
  if (sizes.max_model_len < 1 || sizes.max_model_len > config.max_position) {
    return refuse(fmt::format("a context of {} tokens, the model has {} positions", sizes.max_model_len,
                              config.max_position),
                  "choose --max-model-len between 1 and that");
  }
  sizes.sequences = options.max_sequences != 0 ? options.max_sequences : kDefaultSequences;
  sizes.step_tokens =
      options.step_tokens != 0 ? options.step_tokens : std::max(kDefaultStepTokens, sizes.sequences);
  sizes.logit_rows = options.logit_rows != 0 ? options.logit_rows : sizes.sequences;
  if (sizes.sequences < 1 || sizes.step_tokens < 1 || sizes.logit_rows < 1 || options.blocks < 0) {
    return refuse(fmt::format("{} sequences, {} tokens and {} logit rows a step, {} blocks", sizes.sequences,
                              sizes.step_tokens, sizes.logit_rows, options.blocks),
                  "none of them can be negative; 0 means the default");
  }
  if (options.prefix.snapshots.value_or(0) < 0) {
    return refuse(fmt::format("{} snapshots of a prefix cache", *options.prefix.snapshots),
                  "choose 0 or more, or leave the number open");
  }
  return sizes;
}

std::string number_after(const std::string& line) {
  const auto first = line.find_first_of("0123456789");
  return first == std::string::npos ? std::string()
                                    : line.substr(first, line.find_first_not_of("0123456789", first) - first);
}

// A file that holds one number ("max" and absent files: nothing).
std::int64_t number_in(const char* path, std::int64_t absent) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return absent;
  const std::string digits = number_after(text);
  return digits.empty() || digits.size() > 18 ? absent : std::stoll(digits);
}

std::int64_t machine_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    const std::string digits = number_after(line);
    if (!digits.empty() && digits.size() <= 15) return std::stoll(digits) * 1024;
  }
  return std::numeric_limits<std::int64_t>::max();
}

// Of the host, for tables whose pages are to be locked. What is cached of files counts as free: it may be theirs already.
std::int64_t lockable_memory() {
  return std::min(machine_available(),
                  number_in("/sys/fs/cgroup/memory.max", std::numeric_limits<std::int64_t>::max()));
}

// Engram tables stay in the mapped files: their pages come and go.
MemoryItem weights_item(const graph::Graph& graph) {
  std::int64_t bytes = 0;
  for (const graph::Weight& weight : graph.weights) {
    if (weight.format != graph::WeightFormat::kFp8Rows) bytes += weight.bytes();
  }
  return {"weights", bytes, "the tensors that the graph uses, without Engram tables"};
}

Error does_not_fit(const MemoryPlan& plan, const std::string& what) {
  const bool tables = std::any_of(plan.items.begin(), plan.items.end(), [](const MemoryItem& item) {
    return item.tag == "engram tables" && !item.on_host;
  });
  return make_error(ErrorKind::kOutOfMemory,
                    fmt::format("cannot load the model: {} does not fit\n{}", what, plan.text()),
                    std::string(tables ? "choose --engram-tables host, " : "") +
                        "lower --max-model-len, run fewer sequences, keep fewer --prefix-snapshots, or use a "
                        "machine with more memory");
}

void add_executable(MemoryPlan& plan, const backend::Executable& executable) {
  plan.items.clear();
  for (const auto& part : executable.memory())
    plan.items.push_back({part.tag, part.bytes, part.on_host ? "on the host" : "", part.on_host});
}

// What `bytes` take of the device that is to hold them.
std::int64_t taken_by(const backend::Backend* device, std::int64_t bytes) {
  return static_cast<std::int64_t>(device->taken_by(static_cast<std::size_t>(bytes)));
}

// The blocks and, with a prefix cache, what it takes beside them.
void add_blocks(MemoryPlan& plan, const PrefixMemory& prefix, std::int64_t blocks, std::int64_t block_bytes,
                const backend::Backend* device, bool index_on_host) {
  plan.items.push_back(
      {"kv blocks", taken_by(device, blocks * block_bytes),
       fmt::format("{} blocks of {} bytes, {} tokens each", blocks, block_bytes, state::kBlockTokens)});
  if (!prefix.enabled) return;
  if (prefix.snapshots > 0) {
    plan.items.push_back({"prefix snapshots", taken_by(device, prefix.states_bytes()),
                          fmt::format("{} exact states of {} bytes, for hits in exact mode", prefix.snapshots,
                                      prefix.snapshot_bytes)});
  }
  plan.items.push_back(
      {"prefix index", prefix.index_bytes(blocks), "keys and tree of the cached blocks", index_on_host});
}

}  // namespace

std::int64_t MemoryPlan::total() const {
  std::int64_t sum = 0;
  for (const MemoryItem& item : items)
    if (!item.on_host) sum += item.bytes;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string text;
  for (const MemoryItem& item : items)
    text += fmt::format("  {:<20} {:>16}  {}\n", item.tag, item.bytes, item.detail);
  text += fmt::format("  {:<20} {:>16}\n  {:<20} {:>16}", "total", total(), "available", budget);
  return text;
}

std::int64_t memory_beside(const model::Config& config, const state::Registry& registry,
                           const backend::StepLimits& limits, const PrefixPlan& prefix, std::int64_t blocks) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  const std::int64_t most = blocks > 0 ? blocks : cache::blocks_for(limits.context) * limits.sequences;
  return most * static_cast<std::int64_t>(registry.block_bytes()) +
         limits.sequences * static_cast<std::int64_t>(registry.sequence_bytes()) +
         prefix_memory(prefix, config, registry, kAll, 0).states_bytes();
}

std::int64_t available_memory() {
  std::int64_t available = machine_available();
  const std::int64_t none = std::numeric_limits<std::int64_t>::max();
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max", none);
  if (limit != none) {
    available =
        std::min(available, std::max<std::int64_t>(0, limit - number_in("/sys/fs/cgroup/memory.current", 0)));
  }
  return available;
}

std::int64_t memory_budget() {
  return available_memory() / 100 * kBudgetPercent;
}

Result<Loaded> load(const LoadOptions& options) {
  DI_ASSIGN(auto model, model::load(options.model_directory, options.build, options.token_map));
  return load(std::move(model), options);
}

Result<Loaded> load(model::Model model, const LoadOptions& options) {
  DI_ASSIGN(const Sizes sizes, choose_sizes(model.config, options));
  const auto block_bytes = static_cast<std::int64_t>(model.registry.block_bytes());
  const auto sequence_bytes = static_cast<std::int64_t>(model.registry.sequence_bytes());
  const std::int64_t blocks_each = cache::blocks_for(sizes.max_model_len);
  if (blocks_each > std::numeric_limits<int>::max() / sizes.sequences) {
    return make_error(
        ErrorKind::kOutOfMemory,
        fmt::format("cannot load the model: {} sequences of {} tokens", sizes.sequences, sizes.max_model_len),
        "lower --max-model-len");
  }
  Loaded loaded;
  Core& core = loaded.core;
  DI_ASSIGN(core.device, backend::create(options.backend, options.backend_options));
  MemoryPlan& plan = loaded.plan;
  plan.budget = options.memory_budget;
  const std::int64_t of_device = core.device->memory_budget();  // before anything is taken of it
  const bool index_on_host = of_device != 0;
  if (plan.budget == 0) plan.budget = of_device;
  if (plan.budget == 0) plan.budget = memory_budget();
  plan.items = {weights_item(*model.graph)};
  PrefixMemory prefix =
      prefix_memory(options.prefix, model.config, model.registry, 0, blocks_each * block_bytes);
  const auto add_pools = [&](std::int64_t blocks) {
    const backend::Backend* device = loaded.core.device.get();
    plan.items.push_back({"sequence state", taken_by(device, sizes.sequences * sequence_bytes),
                          fmt::format("{} sequences of {} bytes", sizes.sequences, sequence_bytes)});
    add_blocks(plan, prefix, blocks, block_bytes, device, index_on_host);
  };
  const std::string least = fmt::format("one sequence of {} tokens", sizes.max_model_len);
  add_pools(std::max(options.blocks, blocks_each));
  if (!plan.fits()) return does_not_fit(plan, least);

  core.info.limits = {sizes.step_tokens, sizes.step_tokens, sizes.logit_rows, sizes.sequences,
                      sizes.max_model_len};
  const backend::MemoryRoom room{
      plan.budget,
      memory_beside(model.config, model.registry, core.info.limits, options.prefix, options.blocks),
      lockable_memory()};
  DI_ASSIGN(core.executable,
            core.device->compile_within(model.graph, model.registry, core.info.limits, room));

  // What compiling really took decides how many snapshots and blocks are left.
  add_executable(plan, *core.executable);
  const std::int64_t states = taken_by(core.device.get(), sizes.sequences * sequence_bytes);
  const std::int64_t left = plan.budget - plan.total() - states;
  const std::int64_t needed = std::max(options.blocks, blocks_each) * block_bytes;
  prefix = prefix_memory(options.prefix, model.config, model.registry, left, needed);
  std::int64_t blocks = options.blocks;
  if (blocks == 0) {
    const std::int64_t for_blocks = left - taken_by(core.device.get(), prefix.states_bytes());
    const PrefixMemory index = index_on_host ? PrefixMemory{} : prefix;  // what shares the blocks' memory
    blocks = index.blocks_within(for_blocks, block_bytes, blocks_each * sizes.sequences);
    // Whole pages may be more than what is left.
    while (blocks > blocks_each &&
           taken_by(core.device.get(), blocks * block_bytes) + index.index_bytes(blocks) > for_blocks)
      --blocks;
    blocks = std::max(blocks, blocks_each);
  }
  add_pools(blocks);
  if (!plan.fits()) return does_not_fit(plan, least);

  cache::StoreOptions store_options;
  store_options.blocks = static_cast<int>(blocks);
  store_options.sequences = sizes.sequences;
  store_options.poison_freed = options.poison_freed;
  DI_ASSIGN(core.store, cache::Store::create(std::make_unique<BackendStorage>(core.device), model.registry,
                                             store_options));

  core.info.model = model.config.family;
  core.info.fingerprint = model.fingerprint;
  core.info.precision = model.options.precision == graph::Precision::kF32 ? "f32" : "bf16";
  core.info.activations = model::name_of(model.options.activations);
  core.info.backend = core.device->capabilities();
  core.info.vocab = model.config.vocab;
  core.info.hidden = model.config.hidden;
  core.info.cut_layer = model.config.cut_layer;
  core.info.replay = model.config.replayable();
  core.info.max_model_len = sizes.max_model_len;
  core.info.snapshots = prefix.snapshots;
  core.keep = model.checkpoint;
  loaded.config = std::move(model.config);
  return loaded;
}

}  // namespace deepinfer::runtime
