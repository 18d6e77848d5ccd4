#include "graph/operations.h"

#include <fmt/format.h>

#include <array>
#include <type_traits>
#include <variant>

#include "base/check.h"

namespace deepinfer::graph {
namespace {

template <class T, size_t I = 0>
constexpr size_t index_of() {
  if constexpr (std::is_same_v<std::variant_alternative_t<I, Attributes>, T>) {
    return I;
  } else {
    return index_of<T, I + 1>();
  }
}

constexpr size_t kNone = index_of<NoAttributes>();
constexpr size_t kLinearA = index_of<LinearAttributes>();
constexpr size_t kNormA = index_of<NormAttributes>();
constexpr size_t kRopeA = index_of<RopeAttributes>();
constexpr size_t kHcA = index_of<HcAttributes>();
constexpr size_t kEngramA = index_of<EngramAttributes>();
constexpr size_t kQuantiseA = index_of<QuantiseAttributes>();
constexpr size_t kCompressA = index_of<CompressAttributes>();
constexpr size_t kIndexA = index_of<IndexAttributes>();
constexpr size_t kAttentionA = index_of<AttentionAttributes>();
constexpr size_t kGateA = index_of<GateAttributes>();
constexpr size_t kSwiGluA = index_of<SwiGluAttributes>();
constexpr size_t kStateA = index_of<StateAttributes>();
constexpr size_t kFusedA = index_of<FusedAttributes>();
constexpr int kMany = 64;

// In the order of Op. Columns: inputs, weights (least, most), outputs, attributes, state.
constexpr Operation kOperations[] = {
    {Op::kEmbed, "embed", 0, 0, 1, 1, 1, kNone, StateUse::kNone},
    {Op::kBroadcastStreams, "broadcast_streams", 1, 1, 0, 0, 1, kHcA, StateUse::kNone},
    {Op::kGatherRows, "gather_rows", 1, 1, 0, 0, 1, kNone, StateUse::kNone},
    {Op::kHistoryWrite, "history_write", 0, 0, 0, 0, 0, kStateA, StateUse::kWrites},
    {Op::kLinear, "linear", 1, 1, 1, 1, 1, kLinearA, StateUse::kNone},
    {Op::kGroupedLinear, "grouped_linear", 1, 1, 1, 1, 1, kLinearA, StateUse::kNone},
    {Op::kRmsNorm, "rms_norm", 1, 1, 1, 1, 1, kNormA, StateUse::kNone},
    {Op::kHeadRmsNorm, "head_rms_norm", 1, 1, 0, 0, 1, kNormA, StateUse::kNone},
    {Op::kHcCoefficients, "hc_coefficients", 1, 1, 3, 3, 3, kHcA, StateUse::kNone},
    {Op::kHcFirstPre, "hc_first_pre", 0, 0, 0, 0, 1, kHcA, StateUse::kNone},
    {Op::kHcCollapse, "hc_collapse", 2, 2, 0, 0, 1, kHcA, StateUse::kNone},
    {Op::kHcExpand, "hc_expand", 4, 4, 0, 0, 1, kHcA, StateUse::kNone},
    {Op::kHcHeadPre, "hc_head_pre", 1, 1, 3, 3, 1, kHcA, StateUse::kNone},
    {Op::kEngramRows, "engram_rows", 0, 0, 1, 1, 1, kEngramA, StateUse::kReads},
    {Op::kEngramGather, "engram_gather", 1, 1, 1, 1, 1, kEngramA, StateUse::kNone},
    {Op::kEngramMix, "engram_mix", 2, 2, 2, 2, 1, kEngramA, StateUse::kNone},
    {Op::kRope, "rope", 1, 1, 0, 0, 1, kRopeA, StateUse::kNone},
    {Op::kHadamard, "hadamard", 1, 1, 0, 0, 1, kNone, StateUse::kNone},
    {Op::kFakeQuantise, "fake_quantise", 1, 1, 0, 0, 1, kQuantiseA, StateUse::kNone},
    {Op::kWindowRows, "window_rows", 1, 1, 0, 0, 1, kQuantiseA, StateUse::kNone},
    {Op::kWindowWrite, "window_write", 1, 1, 0, 0, 0, kStateA, StateUse::kWrites},
    {Op::kCompress, "compress", 1, 2, 0, 1, 1, kCompressA, StateUse::kMayRead},
    {Op::kCompressorWrite, "compressor_write", 2, 2, 0, 0, 0, kStateA, StateUse::kWrites},
    {Op::kGlobalWrite, "global_write", 1, 1, 0, 0, 0, kStateA, StateUse::kWrites},
    {Op::kKeyWrite, "key_write", 1, 1, 0, 0, 0, kStateA, StateUse::kWrites},
    {Op::kIndexScores, "index_scores", 2, 2, 0, 0, 1, kIndexA, StateUse::kReads},
    {Op::kIndexCandidates, "index_candidates", 1, 1, 0, 0, 1, kIndexA, StateUse::kNone},
    {Op::kIndexSelect, "index_select", 1, 2, 0, 0, 1, kIndexA, StateUse::kNone},
    {Op::kSelectAllRows, "select_all_rows", 0, 0, 0, 0, 1, kIndexA, StateUse::kNone},
    {Op::kSparseAttention, "sparse_attention", 2, 3, 1, 1, 1, kAttentionA, StateUse::kReads},
    {Op::kRouterScores, "router_scores", 1, 1, 0, 0, 1, kGateA, StateUse::kNone},
    {Op::kGateTopK, "gate_top_k", 1, 1, 1, 2, 2, kGateA, StateUse::kNone},
    {Op::kHashRoute, "hash_route", 1, 1, 1, 1, 2, kGateA, StateUse::kNone},
    {Op::kExpertGateUp, "expert_gate_up", 2, 2, 2, 2, 2, kNone, StateUse::kNone},
    {Op::kSwiGlu, "swiglu", 2, 3, 0, 0, 1, kSwiGluA, StateUse::kNone},
    {Op::kExpertDown, "expert_down", 2, 2, 1, 1, 1, kNone, StateUse::kNone},
    {Op::kExpertSum, "expert_sum", 3, 3, 0, 0, 1, kNone, StateUse::kNone},
    {Op::kFusedHcSite, "fused_hc_site", 1, kMany, 0, kMany, -1, kFusedA, StateUse::kNone},
    {Op::kFusedLinears, "fused_linears", 1, kMany, 0, kMany, -1, kFusedA, StateUse::kNone},
    {Op::kFusedGate, "fused_gate", 1, kMany, 0, kMany, -1, kFusedA, StateUse::kNone},
    {Op::kFusedExperts, "fused_experts", 1, kMany, 0, kMany, -1, kFusedA, StateUse::kNone},
    {Op::kFusedRows, "fused_rows", 1, kMany, 0, kMany, -1, kFusedA, StateUse::kNone},
    {Op::kFusedAttention, "fused_attention", 1, kMany, 0, kMany, -1, kFusedA, StateUse::kReads},
    {Op::kFusedBlockWrite, "fused_block_write", 1, kMany, 0, kMany, -1, kFusedA, StateUse::kWrites},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kOperations); ++i) {
    if (static_cast<size_t>(kOperations[i].op) != i) return false;
  }
  return std::size(kOperations) == static_cast<size_t>(Op::kFusedBlockWrite) + 1;
}
static_assert(in_order(), "one row an operation, in the order of Op");

std::string dim_text(Dim dim) {
  switch (dim.axis) {
    case Axis::kConst: return std::to_string(dim.value);
    case Axis::kTokens: return "T";
    case Axis::kDecoder: return "D";
    case Axis::kLogits: return "L";
    case Axis::kSequences: return "S";
    case Axis::kGroups: return fmt::format("groups({})", dim.value);
    case Axis::kRows: return fmt::format("rows({})", dim.value);
  }
  return "?";
}

}  // namespace

const Operation& operation(Op op) {
  const auto index = static_cast<size_t>(op);
  DI_CHECK(index < std::size(kOperations));
  return kOperations[index];
}

std::string_view op_name(Op op) {
  return operation(op).name;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (const Dim dim : shape)
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", dim_text(dim));
  return text + "]";
}

std::string_view element_name(ElementType type) {
  switch (type) {
    case ElementType::kF32: return "f32";
    case ElementType::kBf16: return "bf16";
    case ElementType::kI32: return "i32";
    case ElementType::kU8: return "u8";
  }
  return "?";
}

}  // namespace deepinfer::graph
