// From rows of logits to ids, on the device. What is asked and answered: backend/sampling.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/kernels/common/step_data.h"

namespace deepinfer::backend::cuda {

// A row must fit into the shared memory of a cluster of blocks.
bool can_sample(int vocab);

// Words of `never`: bit i of word w is set where id 32 w + i is never sampled.
inline std::size_t never_words(int vocab) {
  return (static_cast<std::size_t>(vocab) + 31) / 32;
}

// What the blocks of a row tell each other; all zero before a launch and after it.
struct RowHighest {
  unsigned long long key = 0;
  unsigned int arrived = 0;
};

// Answers counts[kSampleCount] rows of step.samples, at most `most`.
//   logits   [L, vocab] f32
//   never    [never_words(vocab)]
//   highest  [most], zeros: a workspace of one stream
//   sampled  [most], in the order of step.samples
// A row's answer depends on its logits and its parameters alone. The logits are read from memory once.
void sample_rows(const StepData& step, int most, const float* logits, int vocab, const std::uint32_t* never,
                 RowHighest* highest, Sampled* sampled, cudaStream_t stream);
// Of these rows, those that the highest logit answers; a part of sample_rows.
void sample_highest(const StepData& step, int most, const float* logits, int vocab,
                    const std::uint32_t* never, RowHighest* highest, Sampled* sampled, cudaStream_t stream);

}  // namespace deepinfer::backend::cuda
