#include "model/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "graph/passes.h"

namespace deepinfer::model {
namespace {

constexpr int64_t kFloatBytes = 4;  // backends keep every value of a step as f32

std::string size_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

const char* place_text(PlanPlace place) {
  switch (place) {
    case PlanPlace::kDevice: return "";
    case PlanPlace::kHost: return "on the host: ";
    case PlanPlace::kHostMapped: return "on the host, mapped: ";
  }
  return "?";
}

const char* format_tag(graph::WeightFormat format) {
  switch (format) {
    case graph::WeightFormat::kF32: return "weights f32";
    case graph::WeightFormat::kBf16: return "weights bf16";
    case graph::WeightFormat::kFp8Tile: return "weights fp8";
    case graph::WeightFormat::kFp4Rows: return "weights fp4";
    case graph::WeightFormat::kFp8Rows: return "engram tables";
    case graph::WeightFormat::kI32:
    case graph::WeightFormat::kI64: return "id tables";
  }
  return "?";
}

const char* format_detail(graph::WeightFormat format) {
  switch (format) {
    case graph::WeightFormat::kF32: return "mixes, sinks, router biases";
    case graph::WeightFormat::kBf16: return "embedding, head, norms, routers, compressors";
    case graph::WeightFormat::kFp8Tile: return "attention, shared experts, index queries";
    case graph::WeightFormat::kFp4Rows: return "routed experts";
    case graph::WeightFormat::kFp8Rows: return "read row by row from the mapped files";
    case graph::WeightFormat::kI32:
    case graph::WeightFormat::kI64: return "token map, expert tables by id";
  }
  return "";
}

// Large matrices whose rows or columns a sharding plan divides; low-rank inputs, window rows, compressors, indexers,
// routers and mixes are on each device.
bool is_divided(const graph::Weight& weight) {
  constexpr std::array<std::string_view, 9> kDivided = {
      "embed.weight", "head.weight", "attn.wq_b.weight", "attn.wo_a.weight", "attn.wo_b.weight",
      ".w1.weight",   ".w2.weight",  ".w3.weight",       "engram.wkv.weight"};
  if (weight.format == graph::WeightFormat::kFp8Rows) return false;  // one copy on the host
  if (weight.format == graph::WeightFormat::kFp4Rows) return true;
  return std::any_of(kDivided.begin(), kDivided.end(),
                     [&](std::string_view suffix) { return weight.name.ends_with(suffix); });
}

int64_t bytes_on_each(const graph::Weight& weight, int devices) {
  const int64_t bytes = weight.bytes();
  return is_divided(weight) ? (bytes + devices - 1) / devices : bytes;
}

void add_weights(const graph::Graph& graph, Plan& plan) {
  std::map<graph::WeightFormat, int64_t> sums;
  for (const graph::Weight& weight : graph.weights)
    sums[weight.format] += bytes_on_each(weight, plan.request.devices);
  std::vector<PlanRow> rows;
  for (const auto& [format, bytes] : sums) {
    const bool table = format == graph::WeightFormat::kFp8Rows;
    const PlanPlace place = table ? PlanPlace::kHostMapped : PlanPlace::kDevice;
    const std::string tag = format_tag(format);
    const auto same =
        std::find_if(rows.begin(), rows.end(), [&](const PlanRow& row) { return row.tag == tag; });
    if (same != rows.end()) {
      same->bytes += bytes;
    } else {
      rows.push_back({tag, place, bytes, format_detail(format)});
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const PlanRow& a, const PlanRow& b) {
    return std::pair(a.place, -a.bytes) < std::pair(b.place, -b.bytes);
  });
  plan.rows.insert(plan.rows.end(), rows.begin(), rows.end());
}

void add_step(const Model& model, Plan& plan) {
  const graph::StepExtents& step = plan.request.step;
  const graph::Graph fused = graph::fuse(graph::drop_dead_values(*model.graph), graph::kAllFusions);
  const std::vector<graph::Lifetime> lifetimes = graph::value_lifetimes(fused, step, kFloatBytes);
  plan.rows.push_back(
      {"step buffers", PlanPlace::kDevice, graph::plan_arena(lifetimes).bytes,
       fmt::format("values of {} tokens, {} logit rows, sharing one arena", step.tokens, step.logit_rows)});
  int64_t pairs = 0;
  for (const graph::RopeTable& table : model.graph->rope_tables)
    pairs += table.channels / 2;
  plan.rows.push_back(
      {"rope tables", PlanPlace::kDevice, 2 * kFloatBytes * pairs * step.tokens, "sine and cosine a token"});
  int64_t longest = 0;
  for (const LayerConfig& layer : model.config.layer) {
    if (layer.has_index_query) longest = std::max(longest, step.context / layer.ratio);
  }
  if (longest > 0) {
    plan.rows.push_back({"index scores", PlanPlace::kDevice, kFloatBytes * longest * plan.request.workers,
                         fmt::format("{} rows, {} at a time", longest, plan.request.workers)});
  }
}

void add_state(Plan& plan) {
  const int64_t sequences = plan.request.step.sequences;
  plan.rows.push_back({"sequence state", PlanPlace::kDevice, plan.private_bytes * sequences,
                       fmt::format("{} sequences of {} bytes: windows, open groups, history", sequences,
                                   plan.private_bytes)});
}

// The blocks that fit, and the row of the index over them.
void add_blocks(Plan& plan) {
  const PlanRequest& request = plan.request;
  const auto fits = [&](int64_t blocks) {
    const int64_t index = request.device_is_host && request.index_bytes ? request.index_bytes(blocks) : 0;
    return blocks * plan.block_bytes + index <= plan.left_bytes;
  };
  if (plan.block_bytes > 0 && plan.left_bytes > 0) {
    int64_t fit = 0, beyond = plan.left_bytes / plan.block_bytes + 1;
    while (beyond - fit > 1) {
      const int64_t blocks = fit + (beyond - fit) / 2;
      (fits(blocks) ? fit : beyond) = blocks;
    }
    plan.blocks = fit;
  }
  if (!request.index_bytes) return;
  const PlanPlace place = request.device_is_host ? PlanPlace::kDevice : PlanPlace::kHost;
  const int64_t bytes = request.index_bytes(plan.blocks);
  plan.rows.push_back({"prefix index", place, bytes, fmt::format("keys and tree of {} blocks", plan.blocks)});
  if (place == PlanPlace::kDevice) {
    plan.used_bytes += bytes;
    plan.left_bytes -= bytes;
  }
}

int64_t blocks_for(int64_t tokens) {
  return (tokens + state::kBlockTokens - 1) / state::kBlockTokens;
}

}  // namespace

int64_t resident_weight_bytes(const graph::Graph& graph) {
  int64_t bytes = 0;
  for (const graph::Weight& weight : graph.weights) {
    if (weight.format != graph::WeightFormat::kFp8Rows) bytes += weight.bytes();
  }
  return bytes;
}

bool Plan::fits_one() const {
  return left_bytes >= 0 && blocks >= blocks_for(request.step.context);
}

Result<Plan> plan(const Model& model, const PlanRequest& request) {
  const graph::StepExtents& step = request.step;
  if (request.devices < 1 || request.workers < 1 || request.memory_bytes < 0 || step.tokens < 1 ||
      step.decoder_rows < 0 || step.logit_rows < 1 || step.sequences < 1 || step.context < 1) {
    return make_error(
        ErrorKind::kInvalidArgument,
        fmt::format(
            "cannot plan for {} devices of {} bytes, {} workers, {} tokens, {} logit rows, {} sequences "
            "and {} tokens of context",
            request.devices, request.memory_bytes, request.workers, step.tokens, step.logit_rows,
            step.sequences, step.context),
        "every size must be positive");
  }
  Plan result;
  result.request = request;
  result.model = fmt::format("{}, {} layers, hidden {}, precision {}, activations {}, kv-quant {}",
                             model.config.family, model.config.layers, model.config.hidden,
                             model.options.precision == graph::Precision::kF32 ? "f32" : "bf16",
                             name_of(model.options.activations), model.options.kv_quant ? "on" : "off");
  result.block_bytes = static_cast<int64_t>(model.registry.block_bytes());
  result.private_bytes = static_cast<int64_t>(model.registry.sequence_bytes());
  if (request.executable.empty()) {
    add_weights(*model.graph, result);
    add_step(model, result);
  } else {
    result.rows = request.executable;
  }
  add_state(result);
  result.rows.insert(result.rows.end(), request.more.begin(), request.more.end());
  for (const PlanRow& row : result.rows) {
    if (row.place == PlanPlace::kDevice) result.used_bytes += row.bytes;
  }
  result.left_bytes = request.memory_bytes - result.used_bytes;
  add_blocks(result);

  // A sequence beyond step.sequences brings its private state along.
  const int64_t for_state = std::max<int64_t>(0, result.left_bytes + result.private_bytes * step.sequences);
  for (const int64_t context : request.contexts) {
    if (context < 1 || context > model.config.max_position) continue;
    PlanFit fit;
    fit.context = context;
    fit.blocks = blocks_for(context);
    fit.sequence_bytes = fit.blocks * result.block_bytes + result.private_bytes;
    fit.sequences = for_state / std::max<int64_t>(fit.sequence_bytes, 1);
    result.fits.push_back(fit);
  }
  return result;
}

std::string Plan::text() const {
  std::string text = fmt::format("{} on {} x {} of {}\n", model, request.devices, request.device,
                                 size_text(request.memory_bytes));
  for (const PlanRow& row : rows) {
    text += fmt::format("  {:<16} {:>12}  {}{}\n", row.tag, size_text(row.bytes), place_text(row.place),
                        row.detail);
  }
  text += fmt::format("  {:<16} {:>12}  on {}\n", "together", size_text(used_bytes),
                      request.devices > 1 ? "each device" : "the device");
  if (left_bytes < 0) {
    return text + fmt::format("  does not fit: {} are missing\n", size_text(-left_bytes));
  }
  text += fmt::format("  {:<16} {:>12}  {} blocks of {} bytes, {} tokens each\n", "left for blocks",
                      size_text(left_bytes), blocks, block_bytes, state::kBlockTokens);
  for (const PlanFit& fit : fits) {
    text += fmt::format("  {:>9} tokens a sequence: {} in {} blocks, {} sequences fit\n", fit.context,
                        size_text(fit.sequence_bytes), fit.blocks, fit.sequences);
  }
  return text;
}

}  // namespace deepinfer::model
