#include "base/processors.h"

#include <fmt/format.h>
#include <sched.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

namespace deepinfer {
namespace {

constexpr unsigned kStandardModes = 0x1f80;  // MXCSR after reset

// The lowest logical processor of the core that `processor` belongs to; itself where the system does not say.
int first_sibling(int processor) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", processor));
  int first = processor;
  file >> first;
  return file ? first : processor;
}

// Processors' worth of time that the control group grants, 0 without a limit.
double quota_of_control_group() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::strtod(quota.c_str(), nullptr) / period;
}

}  // namespace

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> all;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(processor, &set)) all.push_back(processor);
    }
  }
  if (all.empty()) all.push_back(0);
  std::vector<int> ordered;
  std::vector<int> siblings;
  std::set<int> cores;
  for (const int processor : all)
    (cores.insert(first_sibling(processor)).second ? ordered : siblings).push_back(processor);
  ordered.insert(ordered.end(), siblings.begin(), siblings.end());
  return ordered;
}

int usable_threads() {
  const int allowed = static_cast<int>(allowed_processors().size());
  const double quota = quota_of_control_group();
  return quota > 0 ? std::clamp(static_cast<int>(std::lround(quota)), 1, allowed) : allowed;
}

bool pin_this_thread(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(processor), &set);
  return ::sched_setaffinity(0, sizeof(set), &set) == 0;
}

StandardFloatModes::StandardFloatModes() : saved_(_mm_getcsr()) {
  _mm_setcsr(kStandardModes);
}

StandardFloatModes::~StandardFloatModes() {
  _mm_setcsr(saved_);
}

}  // namespace deepinfer
