// Seams in the form of the golden files, for `deepinfer score --seams`. The graph keeps what it computes with (lists
// of row and block ids, streams before and after a module); the golden files have masks and differences.
#pragma once

#include <vector>

#include "model/config.h"
#include "runtime/score.h"

namespace deepinfer::runtime {

// V4.1 (golden/README41.md):
//   window.L           the last window - 1 rows
//   index.L.scores     with the candidate mask in it where the layer takes candidates: -inf outside
//   index.L.selected   u8 [rows of queries, rows], 1 = selected
//   index.L.candidates u8, the same, rows of candidate blocks, also those that the query does not see yet
//   engram.L.delta     what the module added to the streams, in place of engram.L.after; not for layer 0, whose
//                      streams before are no seam
// V4 (golden/README4.md):
//   L<i>.router_ids, router_weights  ordered by expert id
//   L<i>.attn_o                      [rows, heads * head_dim]
// Everything else passes. u8 values are in SeamTensor::i32, with type kU8. Rows of a seam stay those of its steps.
std::vector<SeamRows> golden_form(std::vector<SeamRows> seams, const model::Config& config);

}  // namespace deepinfer::runtime
