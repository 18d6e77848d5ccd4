// Random schedules: limits, tenants, arrivals and faults from one seed.
#pragma once

#include <cstdint>
#include <string>

#include "simulation/world.h"

namespace deepinfer::simulation {

// Runs the schedule of a seed; empty, or what went wrong and how to run it again. Every sixteenth is recorded, and its
// trace must give the same plans.
std::string run_schedule(std::uint64_t seed, Tally& tally);

}  // namespace deepinfer::simulation
