#define DI_SET avx512bf16
#define DI_LANES 16
#define DI_FMA 1
#define DI_BF16 1
#include "backend/cpu/kernels/set_table.h"
