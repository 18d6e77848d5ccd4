#include "base/result.h"

namespace deepinfer {

std::string_view error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "invalid argument";
    case ErrorKind::kNotFound: return "not found";
    case ErrorKind::kIo: return "input/output error";
    case ErrorKind::kFormat: return "malformed data";
    case ErrorKind::kShape: return "shape mismatch";
    case ErrorKind::kUnsupported: return "unsupported";
    case ErrorKind::kOutOfMemory: return "out of memory";
    case ErrorKind::kOverloaded: return "overloaded";
    case ErrorKind::kCancelled: return "cancelled";
    case ErrorKind::kInternal: return "internal error";
    case ErrorKind::kDeviceLost: return "device lost";
  }
  return "unknown";
}

}  // namespace deepinfer
