// Where the inputs of a step lie: one layout for the page-locked buffer that the host fills and the device buffer that a
// kernel fetches it into. No device is needed here.
#pragma once

#include <cstddef>
#include <span>

#include "backend/common/step_view.h"
#include "backend/cuda/kernels/common/fetch_plan.h"
#include "backend/cuda/kernels/common/step_data.h"
#include "base/result.h"

namespace deepinfer::backend::cuda {

// Offsets in bytes, the same in both buffers. Counts [kCounts] lie at 0.
struct StepPlaces {
  FetchPlan fetch;
  std::size_t ids = 0, positions = 0, sequence_of = 0, image = 0, decoder_rows = 0, logit_rows = 0,
              embed_of = 0;
  std::size_t samples = 0;
  std::size_t sequences = 0, blocks = 0;
  std::size_t groups[kMostRatios] = {};
  std::size_t bytes = 0;  // of a buffer
};

// Room for the largest step. `ratios`: group axes of the graph, at most kMostRatios (kUnsupported).
Result<StepPlaces> step_places(const StepLimits& limits, std::span<const int> ratios);

// Writes a checked step into a buffer of the host. Blocks that it cannot reach are left out.
void lay_out(const StepPlaces& places, std::span<const int> ratios, const StepView& step, std::byte* buffer);

// The arrays of a buffer at `base`; without embeds.
StepData step_data(const StepPlaces& places, std::size_t ratios, std::byte* base);

}  // namespace deepinfer::backend::cuda
