// Random schedules: limits, tenants, arrivals and faults from one seed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "simulation/world.h"

namespace deepinfer::simulation {

// A number from the environment, with which a run by hand differs from the usual one.
inline std::uint64_t setting(const char* name, std::uint64_t absent) {
  const char* text = std::getenv(name);
  return text == nullptr ? absent : std::strtoull(text, nullptr, 10);
}

enum class CacheKind : std::uint8_t { kModel, kReal };

// A cache for a world of these limits; what a real one keeps, and how, is drawn from the seed.
std::unique_ptr<CacheModel> make_cache(CacheKind kind, const sched::SchedulerLimits& limits,
                                       std::uint64_t seed);
// Runs the schedule of a seed; empty, or what went wrong and how to run it again. Every sixteenth is recorded, and its
// trace must give the same plans.
std::string run_schedule(std::uint64_t seed, CacheKind kind, Tally& tally);

}  // namespace deepinfer::simulation
