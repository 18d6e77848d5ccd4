// The reference backend's kernels: plain f32 loops over the functions of this folder.
#pragma once

#include "backend/common/op_table.h"

namespace deepinfer::backend::reference {

// Every operation that is not fused. Other host backends start from this table and replace entries.
OpTable op_table();

// Its parts, by topic.
void add_stream_kernels(OpTable& table);     // rows, norms, hyper-connections, Engram
void add_linear_kernels(OpTable& table);     // linear algebra
void add_record_kernels(OpTable& table);     // RoPE, quantisation, writes of state, compressor
void add_attention_kernels(OpTable& table);  // index scores and selections, attention
void add_expert_kernels(OpTable& table);     // router, experts

}  // namespace deepinfer::backend::reference
