// Result<T>: how every room reports that something did not work. No exceptions cross a room.
//
// An Error says what was attempted, what was found (with the numbers), and what to do. The kinds are a
// closed list: callers map them to exit codes (apps) and status codes (serve), never the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace deepinfer {

enum class ErrorKind {
  kInvalidArgument,  // a caller's value is outside its contract (a request field, an option, an id)
  kNotFound,         // a file, tensor, field or operation that must exist does not
  kIo,               // the operating system refused a read, write or map
  kFormat,           // bytes that do not follow their format (JSON, safetensors, tokenizer, config)
  kShape,            // a tensor or value has another shape or element type than required
  kUnsupported,      // well formed, but this build, backend or model cannot do it
  kOutOfMemory,      // the memory plan does not fit
  kOverloaded,       // a bounded queue is full, or a deadline cannot be met; try again later
  kCancelled,        // the caller, or its connection, gave up
  kInternal,         // a fault of ours that did not corrupt state
  kDeviceLost,       // the device failed or hangs; this process computes nothing more
};

std::string_view error_kind_name(ErrorKind kind);

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string what;    // what was attempted and what was found, with names and numbers
  std::string remedy;  // what the reader can do about it; may be empty when `what` already says it
  std::int64_t retry_after_ns = 0;  // kOverloaded: estimated time until there is room; 0: not known

  // "<what>" or "<what>\n  <remedy>".
  std::string message() const { return remedy.empty() ? what : what + "\n  " + remedy; }
};

inline Error make_error(ErrorKind kind, std::string what, std::string remedy = {}) {
  return Error{kind, std::move(what), std::move(remedy), 0};
}

// Prefixes the failed attempt of an outer layer: "cannot load models/v41: <inner what>".
inline Error within(Error error, std::string_view attempted) {
  error.what = std::string(attempted) + ": " + error.what;
  return error;
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  T& value() & {
    DI_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    DI_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    DI_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    DI_CHECK(!ok());
    return error_;
  }
  Error&& error() && {
    DI_CHECK(!ok());
    return std::move(error_);
  }

 private:
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    DI_CHECK(!ok());
    return *error_;
  }
  Error&& error() && {
    DI_CHECK(!ok());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace deepinfer

#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)

// Returns the error of a Result<...> expression from the calling function.
#define DI_TRY(expr)                                                  \
  do {                                                                \
    auto di_try_result = (expr);                                      \
    if (!di_try_result.ok()) return std::move(di_try_result).error(); \
  } while (false)

// `DI_ASSIGN(auto file, open(path));` binds the value or returns the error.
#define DI_ASSIGN(decl, expr) DI_ASSIGN_INNER(DI_CONCAT(di_result_, __LINE__), decl, expr)
#define DI_ASSIGN_INNER(tmp, decl, expr)        \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()
