// What the engine hands to the prefix cache about a request.
#pragma once

#include <vector>

#include "cache/block_key.h"
#include "runtime/engine.h"

namespace deepinfer::runtime {

// Runs of positions whose embeddings are replaced, with the digest of their rows.
std::vector<cache::ImageSpan> image_spans(const EmbedRows& embeds, int hidden);

}  // namespace deepinfer::runtime
