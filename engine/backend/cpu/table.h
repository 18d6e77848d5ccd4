// The cpu backend's operations: the reference table with vector kernels in the places where the time goes.
#pragma once

#include <memory>
#include <vector>

#include "backend/common/op_table.h"
#include "backend/cpu/kernels/kernel_set.h"
#include "backend/cpu/linear.h"
#include "base/huge_buffer.h"

namespace deepinfer::backend::cpu {

// What the kernels of one executable share. They run one after the other, so one workspace serves all.
struct Shared {
  const KernelSet* set = nullptr;
  Workspace workspace;
};
using SharedPtr = std::shared_ptr<Shared>;

// kOutOfMemory when the first workspace cannot be had.
Result<OpTable> op_table(const KernelSet& set, int workers);

// Its parts, by topic.
void add_linear_kernels(OpTable& table, const SharedPtr& shared);     // products
void add_stream_kernels(OpTable& table, const SharedPtr& shared);     // norms, hyper-connections
void add_expert_kernels(OpTable& table, const SharedPtr& shared);     // routed experts
void add_attention_kernels(OpTable& table, const SharedPtr& shared);  // index scores, attention

// Packed parts of a weight and the memory they lie in.
struct PackedWeight {
  HugeBuffer memory;
  std::vector<PackedMatrix> parts;
};
using PackedWeightPtr = std::shared_ptr<const PackedWeight>;

// All parts of a weight for activations of `input`'s type; `slices` > 1 cuts the only part into that many blocks of
// rows (a block-diagonal weight). Adds the bytes to the context.
Result<PackedWeightPtr> pack_weight(PrepareContext& context, const Shared& shared, graph::WeightId weight,
                                    graph::ValueId input, std::int64_t slices = 1);

// The largest number of rows of a value's first axis.
std::int64_t most_rows(const PrepareContext& context, graph::ValueId value);

}  // namespace deepinfer::backend::cpu
