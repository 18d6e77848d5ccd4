#define DI_SET avx2
#define DI_LANES 8
#define DI_FMA 1
#define DI_BF16 0
#include "backend/cpu/kernels/set_table.h"

namespace deepinfer::backend::cpu::avx2 {

extern const KernelSet kSet;
const KernelSet kSet = make_set("avx2");

}  // namespace deepinfer::backend::cpu::avx2
