// Invariants. A broken one is a fault of ours: it prints where and what, and aborts the process.
// Bad input is never checked this way; it is a Result (base/result.h).
#pragma once

namespace deepinfer {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* detail);

}  // namespace deepinfer

#define DI_CHECK(condition)                                                          \
  do {                                                                               \
    if (!(condition)) ::deepinfer::check_failed(__FILE__, __LINE__, #condition, ""); \
  } while (false)

#define DI_CHECK_MSG(condition, detail)                                                  \
  do {                                                                                   \
    if (!(condition)) ::deepinfer::check_failed(__FILE__, __LINE__, #condition, detail); \
  } while (false)
