#define DI_SET baseline
#define DI_LANES 4
#define DI_FMA 0
#define DI_BF16 0
#include "backend/cpu/kernels/set_table.h"

namespace deepinfer::backend::cpu::baseline {

extern const KernelSet kSet;
const KernelSet kSet = make_set("baseline");

}  // namespace deepinfer::backend::cpu::baseline
