#define DI_SET avx512
#define DI_LANES 16
#define DI_FMA 1
#define DI_BF16 0
#include "backend/cpu/kernels/set_table.h"

namespace deepinfer::backend::cpu::avx512 {

extern const KernelSet kSet;
const KernelSet kSet = make_set("avx512");

}  // namespace deepinfer::backend::cpu::avx512
