// The table of one set; included last by each set_*.cpp.
#pragma once

#include "backend/cpu/kernels/attention_impl.h"
#include "backend/cpu/kernels/probe_impl.h"

namespace deepinfer::backend::cpu::DI_SET {

static constexpr KernelSet make_set(const char* name) {
  return {
      .name = name,
      .lanes = DI_LANES,
      .has_bf16 = DI_BF16 != 0,
      .operand = operand_for,
      .arrange_block = arrange_block,
      .prepare_row = prepare_row,
      .linear = linear,
      .attention_row = attention_row,
      .index_panel = index_panel,
      .index_scores = index_scores,
      .rms_norm = rms_norm,
      .mean_square = mean_square,
      .swiglu = swiglu,
      .hc_coefficients = hc_coefficients,
      .hc_collapse = hc_collapse,
      .hc_expand = hc_expand,
      .add = add,
      .sum = sum,
      .exp = exp_row,
      .decode_fp8 = decode_fp8,
      .decode_nvfp4 = decode_nvfp4,
      .decode_mxfp4 = decode_mxfp4,
      .decode_bf16 = decode_bf16,
      .probe_read = probe_read,
      .probe_multiply_add = probe_multiply_add,
      .probe_multiply_adds = probe_multiply_adds,
      .self_report = self_report,
  };
}

}  // namespace deepinfer::backend::cpu::DI_SET
