#include "backend/cuda/plan/tiers.h"

#include <algorithm>

namespace deepinfer::backend::cuda {

namespace {

int round_up_rows(int rows, int limit) {
  int tier = 1;
  while (tier < rows)
    tier *= 2;
  return rows == 0 ? 0 : std::min(tier, limit);
}

}  // namespace

StepBounds bounds_of(const StepView& step, std::span<const int> ratios) {
  const StepInputs& inputs = step.inputs();
  StepBounds bounds;
  bounds.most[kTokenCount] = static_cast<int>(inputs.ids.size());
  bounds.most[kDecoderCount] = static_cast<int>(inputs.decoder_rows.size());
  bounds.most[kLogitCount] = static_cast<int>(inputs.logit_rows.size());
  bounds.most[kSequenceCount] = step.sequences();
  bounds.most[kSampleCount] = static_cast<int>(inputs.sample_rows.size());
  for (std::size_t i = 0; i < ratios.size(); ++i)
    bounds.most[kGroupCount + i] = static_cast<int>(step.groups(ratios[i]).size());
  for (const SequenceSlice& slice : inputs.sequences)
    bounds.context = std::max(bounds.context, slice.start + slice.tokens);
  return bounds;
}

StepBounds tier_of(const StepBounds& exact, const StepLimits& limits, std::span<const int> ratios) {
  StepBounds tier;
  tier.most[kTokenCount] = round_up_rows(exact.most[kTokenCount], limits.tokens);
  tier.most[kDecoderCount] = round_up_rows(exact.most[kDecoderCount], limits.decoder_rows);
  tier.most[kLogitCount] = round_up_rows(exact.most[kLogitCount], limits.logit_rows);
  tier.most[kSequenceCount] = round_up_rows(exact.most[kSequenceCount], limits.sequences);
  // Of rows that could be sampled and are not, a launch costs next to nothing; a graph each would cost memory.
  tier.most[kSampleCount] = exact.most[kSampleCount] > 0 ? tier.most[kLogitCount] : 0;
  for (std::size_t i = 0; i < ratios.size(); ++i)
    tier.most[kGroupCount + i] =
        std::min(tier.most[kTokenCount], tier.most[kTokenCount] / ratios[i] + tier.most[kSequenceCount]);
  tier.context = kLeastContext;
  while (tier.context < exact.context)
    tier.context *= 2;
  tier.context = std::min(tier.context, std::max(limits.context, exact.context));
  return tier;
}

}  // namespace deepinfer::backend::cuda
