// The intermediate representation: one forward pass as typed values and domain operations.
//
// A graph is built once a model and precision (model/), checked (verify.h), rewritten by passes
// (passes.h), and compiled by a backend. Nothing that depends on a batch is inside it: sizes are
// symbolic, and everything that varies comes from backend::StepInputs.
//
// A program is a list of segments. Each node of a segment runs over the rows of that segment's dimension:
// V4.1 in replay mode runs layers past the last KV source on decoder rows only (attention.md 2.2, 9.4).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "graph/weight.h"
#include "state/registry.h"

namespace deepinfer::graph {

// Number regime of a whole graph.
//   kF32   every value f32, nothing rounded (the golden regime)
//   kBf16  activations rounded to bf16 where the specs round; sums f32; logits f32
enum class Precision : uint8_t { kF32, kBf16 };

enum class ElementType : uint8_t { kF32, kBf16, kI32, kU8 };

// A symbolic extent. The backend knows each one's value for the step at hand.
enum class Axis : uint8_t {
  kConst,      // `value`
  kTokens,     // T: rows of the step
  kDecoder,    // D: rows that run the decoder half (exact mode: the same rows as T)
  kLogits,     // L: rows whose logits are wanted
  kSequences,  // S
  kGroups,     // groups of `value` tokens that close in this step and are written (attention.md 4)
  kRows,       // rows of ratio `value` in the longest sequence of the step (index scores; ragged)
};

struct Dim {
  Axis axis = Axis::kConst;
  int64_t value = 0;  // kConst: the extent; kGroups, kRows: the ratio
  friend bool operator==(const Dim&, const Dim&) = default;
};
inline Dim constant(int64_t value) {
  return {Axis::kConst, value};
}
inline constexpr Dim kTokens{Axis::kTokens, 0};
inline constexpr Dim kDecoder{Axis::kDecoder, 0};
inline constexpr Dim kLogits{Axis::kLogits, 0};
inline Dim groups(int ratio) {
  return {Axis::kGroups, ratio};
}
inline Dim rows(int ratio) {
  return {Axis::kRows, ratio};
}

using Shape = std::vector<Dim>;
using ValueId = int;
inline constexpr ValueId kNoValue = -1;

struct Value {
  ElementType type = ElementType::kF32;
  Shape shape;        // row-major; the first dimension is the row axis
  std::string name;   // for dumps and seams: "layer 3 attention input"
  int producer = -1;  // node index, or -1 for a graph input
};

// Operations. Shapes: R = row axis of the node (T, D, L or a group axis). D_ = hidden size.
// "->" lists outputs. Every rounding point of kBf16 is part of the operation's contract and survives fusion.
enum class Op : uint8_t {
  // --- inputs and rows
  kEmbed,  // ids of the step -> x [R, D_]; rows named in StepInputs.embeds are replaced (backbone.md 7.3)
  kBroadcastStreams,  // x [R, D_] -> h [R, hc, D_]  (backbone.md 3.1)
  kGatherRows,        // v [from..], -> v [to..]: rows of the segment's axis out of a wider one (T->D, D->L)
  kHistoryWrite,      // writes the step's ids into kTokenHistory
  // --- linear algebra
  kLinear,         // x [R, K] , W [N, K] -> y [R, N]; attrs.round: bf16 result or f32
  kGroupedLinear,  // o [R, G*K], W [G*N, K] block diagonal -> z [R, G*N] (attention.md 3.8)
  // --- norms, residual streams
  kRmsNorm,         // x [R, n], w [n] -> y [R, n] (attention.md 3.1)
  kHeadRmsNorm,     // q [R, heads, d] -> per-head norm without weight (V4, attention.md 10)
  kHcCoefficients,  // h -> pre [R, hc], post [R, hc], comb [R, hc, hc] f32 (backbone.md 4.1)
  kHcFirstPre,      // -> P [R, hc] = (1, 0, 0, 0) (backbone.md 4.3)
  kHcCollapse,      // h, pre -> x [R, D_]
  kHcExpand,        // y, h, post, comb -> h'
  kHcHeadPre,       // h -> pre [R, hc] of V4's head (backbone.md 4.4)
  // --- Engram
  kEngramRows,    // history, ids -> rows [R, columns] i32 (backbone.md 6.3)
  kEngramGather,  // rows -> R [R, columns * dim]
  kEngramMix,     // h, kv [R, (hc+1) * D_] -> h' (backbone.md 6.4)
  // --- attention
  kRope,  // v [R, heads, d] -> rotated last `rope` channels; attrs: inverse, rows rotate at position or group start
  kHadamard,         // v [R, heads, d] -> Sylvester Hadamard x d^-0.5 (V4 index)
  kFakeQuantise,     // v -> value of its record format, same element type
  kWindowRows,       // kv [R, d] -> rows as stored (fake-quantised): this step's window rows
  kWindowWrite,      // rows [R, d] -> ring (state)
  kCompress,         // u [R, c*d], g [R, c*d] (+ ape, ring) -> pooled [groups, d]; writes nothing
  kCompressorWrite,  // u, g -> compressor ring (state)
  kGlobalWrite,      // rows [groups, d] -> block rows (state), encoded in the class's record
  kKeyWrite,         // keys [groups, d_i] -> block index keys (state)
  kIndexScores,  // iq [R, heads, d_i], w [R, heads] -> scores [R, rows] (ragged: see backend) (attention.md 5.3)
  kIndexCandidates,  // scores -> candidate blocks [R, n] i32, -1 padded (attention.md 5.5)
  kIndexSelect,      // scores (, candidates) -> selection [R, k] i32 ascending, -1 padded (attention.md 5.4)
  kSelectAllRows,    // -> selection of every visible row, implicit (HCA)
  kSparseAttention,  // q [R, heads, d], window rows, selection -> o [R, heads, d] (attention.md 3.7)
  // --- mixture of experts
  kRouterScores,  // z [R, E] -> s [R, E] = sqrt(softplus(z / gate_temp)) (backbone.md 5.2)
  kGateTopK,      // s -> ids [R, k] i32, weights [R, k] f32; bias or bias_vl a row
  kHashRoute,     // s, ids of the step -> ids, weights (V4)
  kExpertGateUp,  // x [R, D_], ids -> g, u [R, k, width]
  kSwiGlu,        // g, u (, weights) -> t (backbone.md 5.4)
  kExpertDown,    // t [R, k, width], ids -> y [R, k, D_]
  kExpertSum,     // y, ids, shared -> sum by ascending expert id, then + shared
  // --- fused forms, made by passes only
  kFusedHcSite,   // expand + coefficients + collapse + norm
  kFusedLinears,  // linears that share an input
  kFusedGate,     // router scores + gate top-k
  kFusedExperts,  // gate/up + swiglu + down of the routed experts
  kFusedRows,  // (norm,) rope (, hadamard) (, fake quantisation or window rows): vector by vector; and a norm beside
  kFusedAttention,   // (rope of q,) sparse attention (, rope of o)
  kFusedBlockWrite,  // (norm,) rope (, hadamard,) then the block write of global rows or index keys
};

std::string_view op_name(Op op);

struct NoAttributes {};
struct LinearAttributes {
  bool round = true;  // kBf16: round the result to bf16 (router, fn, compressor u/g and head stay f32)
  int heads = 0;      // > 0: the result is shaped [R, heads, n / heads], the same elements in the same order
};
struct NormAttributes {
  float eps = 0;
};
struct RopeAttributes {
  int table = 0;  // index into Graph::rope_tables
  bool inverse = false;
  bool group_start = false;  // rows are groups: rotate at ratio * j (attention.md 4.3)
  int rope_channels = 0;     // the last channels of each head
};
struct HcAttributes {
  int streams = 4;
  int sinkhorn_iterations = 20;
  float rms_eps = 0;
  float hc_eps = 0;
};
struct EngramAttributes {
  int layer = 0;
  int max_ngram = 4;
  int heads = 0;
  int head_dim = 0;
  int pad_id = 0;
  float eps = 0;
  std::vector<int64_t> multipliers;  // max_ngram, by look-back distance
  std::vector<int64_t> primes;       // (max_ngram - 1) * heads, in column order
  std::vector<int64_t> offsets;      // exclusive prefix sums of primes
};
struct QuantiseAttributes {
  state::RecordLayout record;
};
struct CompressAttributes {
  int ratio = 1;
  bool overlap = false;
  int channels = 0;
  state::ClassId ring = -1;
};
struct IndexAttributes {
  int heads = 0;
  int head_dim = 0;
  int top_k = 0;
  int ratio = 1;
  float scale = 1;  // scale multiplies w
  int candidate_blocks = 0;
  int candidate_block_size = 0;
};
struct AttentionAttributes {
  int heads = 0;
  int head_dim = 0;
  int window = 0;
  int ratio = 0;
  float scale = 1;  // ratio 0: window only
};
struct GateAttributes {
  int experts = 0;
  int top_k = 0;
  bool normalise = true;
  bool normalise_single = false;
  float routed_scale = 1;
  float gate_temp = 1;
};
struct SwiGluAttributes {
  float limit = 0;
};
struct StateAttributes {
  state::ClassId target = -1;
};
struct FusedAttributes {
  std::vector<int> parts;  // indices into Graph::fused_parts: the nodes that were merged, in order
};

using Attributes =
    std::variant<NoAttributes, LinearAttributes, NormAttributes, RopeAttributes, HcAttributes,
                 EngramAttributes, QuantiseAttributes, CompressAttributes, IndexAttributes,
                 AttentionAttributes, GateAttributes, SwiGluAttributes, StateAttributes, FusedAttributes>;

struct Node {
  Op op = Op::kEmbed;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<WeightId> weights;
  std::vector<state::ClassId> reads;   // state classes read
  std::vector<state::ClassId> writes;  // state classes written; order among these nodes is fixed
  Attributes attributes;
  int layer = -1;
};

struct RopeTable {
  double theta = 0;
  int channels = 0;
  bool yarn = false;
  double factor = 1;
  int original_length = 0;
  double beta_fast = 32;
  double beta_slow = 1;
};

// Nodes [first_node, last_node) run together over `rows`; a segment whose row count is 0 is skipped.
struct Segment {
  std::string name;  // "encoder", "decoder", "head", "window commit"
  Dim rows;
  int first_node = 0;
  int last_node = 0;
};

struct Seam {
  std::string name;
  ValueId value = kNoValue;
};  // kept alive and readable after a step

struct Graph {
  Precision precision = Precision::kBf16;
  std::string model;  // "v4.1", "v4"
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Node> fused_parts;  // bodies of fused nodes
  std::vector<Segment> segments;
  std::vector<Weight> weights;
  std::vector<RopeTable> rope_tables;
  std::vector<Seam> seams;
  ValueId logits = kNoValue;  // [L, vocab] f32
  int hidden = 0, vocab = 0, window = 0;
};

}  // namespace deepinfer::graph
