// Mixture of experts of one layer (backbone.md 5).
#include <fmt/format.h>

#include "model/forward.h"

namespace deepinfer::model {

using graph::Op;

ForwardBuilder::ValueId ForwardBuilder::experts(int index, ValueId x) {
  const std::string name = prefix(index) + "ffn.";
  const int64_t hidden = config_.hidden;
  const int64_t width = config_.intermediate;
  graph::GateAttributes gate;
  gate.experts = config_.experts;
  gate.top_k = config_.experts_per_token;
  gate.normalise = config_.normalise_topk;
  gate.normalise_single = config_.normalise_single;
  gate.routed_scale = config_.routed_scale;
  gate.gate_temp = config_.gate_temp;

  const ValueId logits =
      linear(x, bind_.plain(name + "gate", config_.experts, hidden, "n_routed_experts, hidden_size"), false,
             "router logits");
  const ValueId scores = graph_.add_one(Op::kRouterScores, {{logits}, {}, {}, {}}, gate, "router scores");
  std::vector<ValueId> routed;
  if (layer(index).hash_routed) {
    routed = graph_.add(Op::kHashRoute, {{scores}, {bind_.routes(name + "gate.tid2eid")}, {}, {}}, gate,
                        "experts");
  } else {
    std::vector<graph::WeightId> biases = {
        bind_.vector(name + "gate.bias", config_.experts, true, "n_routed_experts")};
    if (config_.image_bias)
      biases.push_back(bind_.vector(name + "gate.bias_vl", config_.experts, true, "n_routed_experts"));
    routed = graph_.add(Op::kGateTopK, {{scores}, biases, {}, {}}, gate, "experts");
  }
  seam(fmt::format("router.{}.ids", index), fmt::format("L{}.router_ids", index), routed[0]);
  seam(fmt::format("router.{}.weights", index), fmt::format("L{}.router_weights", index), routed[1]);

  // w1 = gate, w3 = up, w2 = down.
  const graph::SwiGluAttributes limit{config_.swiglu_limit};
  const std::string why = "moe_intermediate_size, hidden_size";
  const std::string shared = name + "shared_experts.";
  const ValueId shared_gate = linear(x, bind_.fp8(shared + "w1", width, hidden, why), true, "shared gate");
  const ValueId shared_up = linear(x, bind_.fp8(shared + "w3", width, hidden, why), true, "shared up");
  const ValueId shared_t =
      graph_.add_one(Op::kSwiGlu, {{shared_gate, shared_up}, {}, {}, {}}, limit, "shared activation");
  const ValueId shared_y =
      linear(shared_t, bind_.fp8(shared + "w2", hidden, width, "hidden_size, moe_intermediate_size"), true,
             "shared expert");

  const std::string routed_name = name + "experts";
  const std::vector<graph::WeightId> up_weights = {bind_.experts(routed_name, "w1", width, hidden),
                                                   bind_.experts(routed_name, "w3", width, hidden)};
  const std::vector<ValueId> g_u =
      graph_.add(Op::kExpertGateUp, {{product_input(x, up_weights[0]), routed[0]}, up_weights, {}, {}},
                 graph::NoAttributes{}, "expert gate");
  const ValueId t =
      graph_.add_one(Op::kSwiGlu, {{g_u[0], g_u[1], routed[1]}, {}, {}, {}}, limit, "expert activation");
  const graph::WeightId down = bind_.experts(routed_name, "w2", hidden, width);
  const ValueId y = graph_.add_one(Op::kExpertDown, {{product_input(t, down), routed[0]}, {down}, {}, {}},
                                   graph::NoAttributes{}, "expert outputs");
  return graph_.add_one(Op::kExpertSum, {{y, routed[0], shared_y}, {}, {}, {}}, graph::NoAttributes{}, "FFN");
}

}  // namespace deepinfer::model
