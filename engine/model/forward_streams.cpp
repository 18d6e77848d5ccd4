// Residual streams: hyper-connections (backbone.md 4) and Engram (6).
#include <fmt/format.h>

#include "model/forward.h"

namespace deepinfer::model {

using graph::Op;

void ForwardBuilder::engram(int index) {
  const int slot = layer(index).engram;
  if (slot < 0) return;
  const EngramConfig& data = config_.engram;
  const auto which = static_cast<size_t>(slot);
  graph::EngramAttributes attributes;
  attributes.layer = index;
  attributes.max_ngram = data.max_ngram;
  attributes.heads = data.heads;
  attributes.head_dim = data.head_dim;
  attributes.eps = config_.rms_eps;
  attributes.primes = data.primes[which];
  const std::string name = prefix(index) + "engram.";
  const int64_t width = static_cast<int64_t>(data.columns()) * data.head_dim;
  const int64_t outputs = static_cast<int64_t>(config_.hc_streams + 1) * config_.hidden;

  const graph::WeightId table = bind_.engram_table(name + "embed", data.table_rows[which], data.head_dim);
  const ValueId gathered =
      graph_.add_one(Op::kEngramGather, {{engram_rows_[which]}, {table}, {}, {}}, attributes, "Engram rows");
  const ValueId kv = linear(
      gathered,
      bind_.fp8(name + "wkv", outputs, width, "(hc_mult + 1) * hidden_size, columns * engram_head_dim"), true,
      "Engram keys and value");
  const std::vector<graph::WeightId> weights = {
      bind_.matrix(name + "q_weight", config_.hc_streams, config_.hidden, false, "hc_mult, hidden_size"),
      bind_.matrix(name + "k_weight", config_.hc_streams, config_.hidden, false, "hc_mult, hidden_size")};
  h_ = graph_.add_one(Op::kEngramMix, {{h_, kv}, weights, {}, {}}, attributes, "streams after Engram");
  seam(fmt::format("engram.{}.after", index), "", h_);
}

ForwardBuilder::Site ForwardBuilder::coefficients(const std::string& name) {
  const int hc = config_.hc_streams;
  const int64_t mixes = static_cast<int64_t>(2 + hc) * hc;
  const std::vector<graph::WeightId> weights = {
      bind_.matrix(name + "_fn", mixes, static_cast<int64_t>(hc) * config_.hidden, true,
                   "(2 + hc_mult) * hc_mult, hc_mult * hidden_size"),
      bind_.vector(name + "_base", mixes, true, "(2 + hc_mult) * hc_mult"),
      bind_.vector(name + "_scale", 3, true, "three")};
  const std::vector<ValueId> made = graph_.add(Op::kHcCoefficients, {{h_}, weights, {}, {}}, streams_, "mix");
  if (!config_.carried_mix) return {made[0], made[1], made[2]};
  const Site site{mix_, made[1], made[2]};
  mix_ = made[0];
  return site;
}

ForwardBuilder::ValueId ForwardBuilder::read_streams(ValueId pre, const std::string& norm_tensor,
                                                     std::string_view name) {
  const ValueId x = graph_.add_one(Op::kHcCollapse, {{h_, pre}, {}, {}, {}}, streams_, "collapsed streams");
  return norm(x, norm_tensor, config_.hidden, name);
}

void ForwardBuilder::write_streams(ValueId y, const Site& site, std::string_view name) {
  h_ = graph_.add_one(Op::kHcExpand, {{y, h_, site.post, site.comb}, {}, {}, {}}, streams_, name);
}

}  // namespace deepinfer::model
