#define DI_SET avx512bf16
#define DI_LANES 16
#define DI_FMA 1
#define DI_BF16 1
#include "backend/cpu/kernels/set_table.h"

namespace deepinfer::backend::cpu::avx512bf16 {

extern const KernelSet kSet;
const KernelSet kSet = make_set("avx512bf16");

}  // namespace deepinfer::backend::cpu::avx512bf16
