#define DI_SET baseline
#define DI_LANES 4
#define DI_FMA 0
#define DI_BF16 0
#include "backend/cpu/kernels/set_table.h"
