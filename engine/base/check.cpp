#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace deepinfer {

void check_failed(const char* file, int line, const char* condition, const char* detail) {
  std::fprintf(stderr, "deepinfer: broken invariant at %s:%d: %s%s%s\n", file, line, condition,
               *detail ? ": " : "", detail);
  std::fflush(stderr);
  std::abort();
}

}  // namespace deepinfer
