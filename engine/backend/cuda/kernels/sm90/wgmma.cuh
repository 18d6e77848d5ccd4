// Hopper's warpgroup matrix instructions. A warpgroup is 4 consecutive warps, the first a multiple of 4.
#pragma once

#include <cstdint>

namespace deepinfer::backend::cuda {

// Orders the warp's register writes before the wgmma instructions that follow.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kOpen of the committed groups are not complete.
template <int kOpen>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}

// Operand B: rows of 64 bf16, 128 bytes each, 8 rows a kilobyte, 16-byte pieces permuted by address bits 7..9
// ("128-byte swizzle"). `address` is a shared memory address; the tile begins at a multiple of 1024. The next 16
// columns are kColumnStep further.
inline constexpr std::uint64_t kColumnStep = 32 >> 4;
__device__ inline std::uint64_t operand_b(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62,
                          kGroupOf8Rows = std::uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupOf8Rows | (std::uint64_t{1} << 16) | ((address & 0x3ffffu) >> 4);
}

// d[64, kRows] = a[64, 16] b[kRows, 16]^T (+ d if `add`), f32. Warp w of the warpgroup holds rows 16 w .. 16 w + 15 of a and d;
// lane l, g = l / 4, q = l % 4: d[4 j + 0, 1] = (row g, columns 8 j + 2 q, + 1), d[4 j + 2, 3] = (row g + 8, the same).
template <int kRows>
__device__ inline void wgmma(float (&d)[kRows / 2], const std::uint32_t (&a)[4], std::uint64_t b, bool add);

#define DEEPINFER_D0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define DEEPINFER_D1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define DEEPINFER_D2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define DEEPINFER_D3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define DEEPINFER_D4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define DEEPINFER_D5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define DEEPINFER_D6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define DEEPINFER_D7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define DEEPINFER_D8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define DEEPINFER_D9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define DEEPINFER_D10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define DEEPINFER_D11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define DEEPINFER_D(i)                                                                            \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), \
      "+f"(d[8 * i + 5]), "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
#define DEEPINFER_WGMMA(rows, places, a0, a1, a2, a3, b_place, add_place, ...)                           \
  template <>                                                                                            \
  __device__ inline void wgmma<rows>(float(&d)[rows / 2], const std::uint32_t(&a)[4], std::uint64_t b,   \
                                     bool add) {                                                         \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_place                                           \
                 ", 0; wgmma.mma_async.sync.aligned.m64n" #rows "k16.f32.bf16.bf16 {" places "}, {%" #a0 \
                 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b_place ", p, 1, 1, 0; }"                            \
                 : __VA_ARGS__                                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));      \
  }
DEEPINFER_WGMMA(16, DEEPINFER_D0, 8, 9, 10, 11, 12, 13, DEEPINFER_D(0))
DEEPINFER_WGMMA(32, DEEPINFER_D0 "," DEEPINFER_D1, 16, 17, 18, 19, 20, 21, DEEPINFER_D(0), DEEPINFER_D(1))
DEEPINFER_WGMMA(64, DEEPINFER_D0 "," DEEPINFER_D1 "," DEEPINFER_D2 "," DEEPINFER_D3, 32, 33, 34, 35, 36, 37,
                DEEPINFER_D(0), DEEPINFER_D(1), DEEPINFER_D(2), DEEPINFER_D(3))
DEEPINFER_WGMMA(96,
                DEEPINFER_D0 "," DEEPINFER_D1 "," DEEPINFER_D2 "," DEEPINFER_D3 "," DEEPINFER_D4
                             "," DEEPINFER_D5,
                48, 49, 50, 51, 52, 53, DEEPINFER_D(0), DEEPINFER_D(1), DEEPINFER_D(2), DEEPINFER_D(3),
                DEEPINFER_D(4), DEEPINFER_D(5))
DEEPINFER_WGMMA(112,
                DEEPINFER_D0 "," DEEPINFER_D1 "," DEEPINFER_D2 "," DEEPINFER_D3 "," DEEPINFER_D4
                             "," DEEPINFER_D5 "," DEEPINFER_D6,
                56, 57, 58, 59, 60, 61, DEEPINFER_D(0), DEEPINFER_D(1), DEEPINFER_D(2), DEEPINFER_D(3),
                DEEPINFER_D(4), DEEPINFER_D(5), DEEPINFER_D(6))
DEEPINFER_WGMMA(128,
                DEEPINFER_D0 "," DEEPINFER_D1 "," DEEPINFER_D2 "," DEEPINFER_D3 "," DEEPINFER_D4
                             "," DEEPINFER_D5 "," DEEPINFER_D6 "," DEEPINFER_D7,
                64, 65, 66, 67, 68, 69, DEEPINFER_D(0), DEEPINFER_D(1), DEEPINFER_D(2), DEEPINFER_D(3),
                DEEPINFER_D(4), DEEPINFER_D(5), DEEPINFER_D(6), DEEPINFER_D(7))
DEEPINFER_WGMMA(144,
                DEEPINFER_D0 "," DEEPINFER_D1 "," DEEPINFER_D2 "," DEEPINFER_D3 "," DEEPINFER_D4
                             "," DEEPINFER_D5 "," DEEPINFER_D6 "," DEEPINFER_D7 "," DEEPINFER_D8,
                72, 73, 74, 75, 76, 77, DEEPINFER_D(0), DEEPINFER_D(1), DEEPINFER_D(2), DEEPINFER_D(3),
                DEEPINFER_D(4), DEEPINFER_D(5), DEEPINFER_D(6), DEEPINFER_D(7), DEEPINFER_D(8))
DEEPINFER_WGMMA(160,
                DEEPINFER_D0 "," DEEPINFER_D1 "," DEEPINFER_D2 "," DEEPINFER_D3 "," DEEPINFER_D4
                             "," DEEPINFER_D5 "," DEEPINFER_D6 "," DEEPINFER_D7 "," DEEPINFER_D8
                             "," DEEPINFER_D9,
                80, 81, 82, 83, 84, 85, DEEPINFER_D(0), DEEPINFER_D(1), DEEPINFER_D(2), DEEPINFER_D(3),
                DEEPINFER_D(4), DEEPINFER_D(5), DEEPINFER_D(6), DEEPINFER_D(7), DEEPINFER_D(8),
                DEEPINFER_D(9))
DEEPINFER_WGMMA(192,
                DEEPINFER_D0 "," DEEPINFER_D1 "," DEEPINFER_D2 "," DEEPINFER_D3 "," DEEPINFER_D4
                             "," DEEPINFER_D5 "," DEEPINFER_D6 "," DEEPINFER_D7 "," DEEPINFER_D8
                             "," DEEPINFER_D9 "," DEEPINFER_D10 "," DEEPINFER_D11,
                96, 97, 98, 99, 100, 101, DEEPINFER_D(0), DEEPINFER_D(1), DEEPINFER_D(2), DEEPINFER_D(3),
                DEEPINFER_D(4), DEEPINFER_D(5), DEEPINFER_D(6), DEEPINFER_D(7), DEEPINFER_D(8),
                DEEPINFER_D(9), DEEPINFER_D(10), DEEPINFER_D(11))
#undef DEEPINFER_D0
#undef DEEPINFER_D1
#undef DEEPINFER_D2
#undef DEEPINFER_D3
#undef DEEPINFER_D4
#undef DEEPINFER_D5
#undef DEEPINFER_D6
#undef DEEPINFER_D7
#undef DEEPINFER_D8
#undef DEEPINFER_D9
#undef DEEPINFER_D10
#undef DEEPINFER_D11
#undef DEEPINFER_D
#undef DEEPINFER_WGMMA

}  // namespace deepinfer::backend::cuda
