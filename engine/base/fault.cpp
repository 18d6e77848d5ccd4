#include "base/fault.h"

#include <map>
#include <mutex>

#include "base/check.h"

namespace deepinfer {
namespace {

struct Armed {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t visits = 0;
};

std::mutex mutex;
std::map<std::string, Armed, std::less<>>& points() {
  static auto* const armed =
      new std::map<std::string, Armed, std::less<>>;  // outlives every object that asks
  return *armed;
}

}  // namespace

namespace detail {

std::atomic<int> armed_fault_points{0};

bool armed_fault_fires(std::string_view point) {
  const std::lock_guard lock(mutex);
  const auto found = points().find(point);
  if (found == points().end()) return false;
  Armed& armed = found->second;
  ++armed.visits;
  return armed.visits >= armed.first && armed.visits < armed.first + armed.count;
}

}  // namespace detail

ArmedFault::ArmedFault(std::string point, std::int64_t first, std::int64_t count) : point_(std::move(point)) {
  DI_CHECK(first >= 1 && count >= 1);
  const std::lock_guard lock(mutex);
  const bool added = points().emplace(point_, Armed{first, count, 0}).second;
  DI_CHECK_MSG(added, "a fault point is armed twice");
  detail::armed_fault_points.fetch_add(1);
}

ArmedFault::~ArmedFault() {
  const std::lock_guard lock(mutex);
  points().erase(point_);
  detail::armed_fault_points.fetch_sub(1);
}

std::int64_t ArmedFault::visits() const {
  const std::lock_guard lock(mutex);
  return points().at(point_).visits;
}

}  // namespace deepinfer
