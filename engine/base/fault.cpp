#include "base/fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr FaultPoint kFaultPoints[] = {
    {"host.allocate", "an allocation of the host's memory for weights, buffers or blocks fails"},
    {"host.step_lost", "a step on the host fails as on a device that broke, and so does every later one"},
    {"host.step_stall", "a step on the host never ends"},
    {"watchdog.patience",
     "the watchdog takes what is under way at two of its looks for something that hangs"},
    {"cuda.allocate", "an allocation of device memory fails"},
    {"cuda.allocate_pinned", "an allocation of page-locked memory fails"},
    {"cuda.lock_pages", "pages of a mapped file cannot be locked for the GPU"},
    {"cuda.capture", "the capture of a step's graph fails"},
    {"cuda.launch", "the launch of a step fails"},
    {"cuda.wait", "waiting for the end of a step fails, as after a fault in a kernel"},
    {"cuda.copy", "a copy of state within, to or from device memory fails"},
};

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

struct Words {
  std::string point;
  std::int64_t first = 1, count = 1;
};

Error bad_words(std::string_view part, const std::string& why) {
  std::string known;
  for (const FaultPoint& point : kFaultPoints)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", point.name);
  return make_error(
      ErrorKind::kInvalidArgument, fmt::format("cannot arm fault point \"{}\": {}", part, why),
      "write NAME, NAME:FIRST or NAME:FIRST:COUNT, counted from 1, with commas between; known are " + known);
}

Result<Words> read_words(std::string_view part) {
  Words words;
  words.point = std::string(part.substr(0, part.find(':')));
  const bool known = std::any_of(std::begin(kFaultPoints), std::end(kFaultPoints),
                                 [&](const FaultPoint& point) { return point.name == words.point; });
  if (!known) return bad_words(part, "there is no such point");
  std::string_view rest = part.substr(words.point.size());
  for (std::int64_t* number : {&words.first, &words.count}) {
    if (rest.empty()) break;
    const char* const begin = rest.data() + 1;
    const char* const end = rest.data() + rest.size();
    const auto [stop, code] = std::from_chars(begin, end, *number);
    if (code != std::errc() || *number < 1 || (stop != end && *stop != ':'))
      return bad_words(part, "a visit is a number from 1 on");
    rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
  }
  if (!rest.empty()) return bad_words(part, "too many numbers");
  return words;
}

}  // namespace

std::span<const FaultPoint> fault_points() {
  return kFaultPoints;
}

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

Result<void> arm_fault_points(std::string_view words) {
  std::vector<Words> all;
  while (!words.empty()) {
    const std::string_view part = words.substr(0, words.find(','));
    DI_ASSIGN(auto read, read_words(part));
    const bool twice =
        std::any_of(all.begin(), all.end(), [&](const Words& one) { return one.point == read.point; });
    if (twice) return bad_words(part, "it is there twice");
    all.push_back(std::move(read));
    words.remove_prefix(std::min(words.size(), part.size() + 1));
  }
  static auto* const armed =
      new std::vector<std::unique_ptr<ArmedFault>>;  // never destroyed: threads still ask
  for (const Words& one : all)
    armed->push_back(std::make_unique<ArmedFault>(one.point, one.first, one.count));
  return {};
}

std::int64_t ArmedFault::visits() const {
  const std::lock_guard lock(mutex);
  return points().at(point_).visits;
}

}  // namespace deepinfer
