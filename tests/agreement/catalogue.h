// Requests that share prefixes in many ways: cut at and beside block borders, parting at them, going on from an answer,
// with equal ids and other images. Few enough that a reference of each serves many schedules.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "agreement/reference.h"

namespace deepinfer::agreement {

inline constexpr std::int64_t kCatalogueContext = 640;  // room for every prompt and kMostTokens
inline constexpr int kMostTokens = 90;

std::vector<std::int32_t> random_ids(std::mt19937& random, int count);
// Rows for positions [begin, end), drawn from `seed`.
void add_image(runtime::EmbedRows& embeds, std::int32_t begin, std::int32_t end, int hidden,
               std::uint32_t seed);
// Greedy, greedy with penalties, nucleus, and a filtered hot one; log-probabilities of the token and the two likeliest.
runtime::SamplingParams sampling_of(std::size_t kind);

// How many leading tokens are computed from the same input, at most `answered` of the second one's answer included.
std::int64_t common_tokens(const runtime::Request& one, const runtime::Request& other,
                           std::span<const Said> answered);

// Requests that share prefixes, by number: prompts of at most kBriefPrompt tokens, which cost little, and longer ones.
struct Family {
  std::vector<std::size_t> brief;
  std::vector<std::size_t> lengthy;
};
inline constexpr int kBriefPrompt = 265;

// Adds its requests to `reference`.
struct Catalogue {
  Catalogue(Reference& reference, std::uint32_t seed);
  std::vector<Family> families;  // text, images, less than a block
  // Of the text: those whose blocks serve the others up to 256, and those that go on past 384. Asked in that order in
  // replay mode, they leave hits of several lineages.
  std::vector<std::size_t> stems, stalks;
};

}  // namespace deepinfer::agreement
