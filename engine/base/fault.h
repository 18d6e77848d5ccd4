// Fault points: named places where a test can make the next operation fail. Off unless something arms one; a point that is
// not armed costs one load. docs/errors.md lists those of the program.
//
//   if (fault_fires("safetensors.read")) return make_error(ErrorKind::kIo, "...");
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

struct FaultPoint {
  std::string_view name;
  std::string_view effect;  // "the n-th ... fails"
};
// Those that a started program can be given.
std::span<const FaultPoint> fault_points();

namespace detail {
extern std::atomic<int> armed_fault_points;
bool armed_fault_fires(std::string_view point);
}  // namespace detail

// Whether the operation behind this point must fail now. Thread-safe.
inline bool fault_fires(std::string_view point) {
  return detail::armed_fault_points.load(std::memory_order_relaxed) != 0 && detail::armed_fault_fires(point);
}

// Arms a point for as long as the object lives: visits `first` .. `first + count - 1` fail, counted from 1.
class ArmedFault {
 public:
  explicit ArmedFault(std::string point, std::int64_t first = 1, std::int64_t count = 1);
  ~ArmedFault();
  ArmedFault(const ArmedFault&) = delete;
  ArmedFault& operator=(const ArmedFault&) = delete;

  // How often the point was reached while armed.
  std::int64_t visits() const;

 private:
  std::string point_;
};

// Arms points for as long as the process lives: "cuda.launch:3,step.stall" makes the third visit of the one and the first of
// the other fail; "NAME:3:2" two visits from the third on. kInvalidArgument names what is no point or no number; then none
// is armed.
Result<void> arm_fault_points(std::string_view words);

}  // namespace deepinfer
