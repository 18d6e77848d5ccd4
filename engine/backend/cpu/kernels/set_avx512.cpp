#define DI_SET avx512
#define DI_LANES 16
#define DI_FMA 1
#define DI_BF16 0
#include "backend/cpu/kernels/set_table.h"
