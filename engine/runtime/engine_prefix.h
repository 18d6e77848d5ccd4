// What passes between the engine and its prefix cache, and how the scheduler's refusals reach callers.
#pragma once

#include <vector>

#include "cache/block_key.h"
#include "cache/prefix_cache.h"
#include "runtime/engine.h"

namespace deepinfer::runtime {

// Runs of positions whose embeddings are replaced, with the digest of their rows.
std::vector<cache::ImageSpan> image_spans(const EmbedRows& embeds, int hidden);

// Fills in what the cache knows.
void describe(const cache::PrefixCache& cache, EngineStats& stats);

// The scheduler's refusal as an error that says when to try again.
Error refusal_error(const sched::Refusal& refusal);

}  // namespace deepinfer::runtime
