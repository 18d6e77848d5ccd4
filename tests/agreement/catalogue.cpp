#include "agreement/catalogue.h"

#include <algorithm>

namespace deepinfer::agreement {
namespace {

constexpr int kIds = 500;  // drawn below it: every model of the golden sets has these

std::vector<std::int32_t> joined(std::vector<std::int32_t> ids, int keep,
                                 const std::vector<std::int32_t>& tail) {
  ids.resize(static_cast<std::size_t>(keep));
  ids.insert(ids.end(), tail.begin(), tail.end());
  return ids;
}

std::span<const float> row_at(const runtime::Request& request, std::int64_t position) {
  const auto& positions = request.embeds.positions;
  const auto at = std::lower_bound(positions.begin(), positions.end(), position);
  if (at == positions.end() || *at != position) return {};
  const std::size_t width = request.embeds.rows.size() / positions.size();
  return std::span(request.embeds.rows)
      .subspan(static_cast<std::size_t>(at - positions.begin()) * width, width);
}

}  // namespace

std::vector<std::int32_t> random_ids(std::mt19937& random, int count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids)
    id = static_cast<std::int32_t>(random() % kIds);
  return ids;
}

void add_image(runtime::EmbedRows& embeds, std::int32_t begin, std::int32_t end, int hidden,
               std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::int32_t position = begin; position < end; ++position) {
    embeds.positions.push_back(position);
    for (int i = 0; i < hidden; ++i)
      embeds.rows.push_back(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  }
}

runtime::SamplingParams sampling_of(std::size_t kind) {
  runtime::SamplingParams sampling;
  sampling.seed = 1000 + kind;
  sampling.logprobs = true;
  sampling.top_logprobs = 2;
  switch (kind % 4) {
    case 0: sampling.temperature = 0; break;
    case 1:
      sampling.temperature = 0.8;
      sampling.top_p = 0.9;
      break;
    case 2:
      sampling.temperature = 0;
      sampling.repetition_penalty = 1.3;
      sampling.presence_penalty = 0.5;
      break;
    default:
      sampling.temperature = 1.4;
      sampling.top_k = 60;
      sampling.min_p = 0.01;
      sampling.frequency_penalty = 0.7;
  }
  return sampling;
}

std::int64_t common_tokens(const runtime::Request& one, const runtime::Request& other,
                           std::span<const Said> answered) {
  const std::size_t known = other.prompt.size() + answered.size();
  std::size_t p = 0;
  for (; p < std::min(one.prompt.size(), known); ++p) {
    const std::int32_t id = p < other.prompt.size() ? other.prompt[p] : answered[p - other.prompt.size()].id;
    const auto row = row_at(one, static_cast<std::int64_t>(p));
    const auto other_row = row_at(other, static_cast<std::int64_t>(p));
    if (one.prompt[p] != id || !std::equal(row.begin(), row.end(), other_row.begin(), other_row.end())) break;
  }
  return static_cast<std::int64_t>(p);
}

Catalogue::Catalogue(Reference& reference, std::uint32_t seed) : families(3) {
  std::mt19937 random(seed + 77);
  const int hidden = reference.info().hidden;
  const auto add = [&](std::size_t family, std::vector<std::int32_t> prompt, runtime::EmbedRows embeds = {}) {
    runtime::Request request;
    const bool brief = prompt.size() <= kBriefPrompt;
    request.prompt = std::move(prompt);
    request.embeds = std::move(embeds);
    request.sampling = sampling_of(reference.requests());
    const std::size_t number = reference.add(std::move(request));
    (brief ? families[family].brief : families[family].lengthy).push_back(number);
    return number;
  };

  const auto text = random_ids(random, 600);
  const std::size_t first_turn = add(0, joined(text, 200, {}));  // greedy
  add(0, joined(text, 129, {}));
  add(0, joined(text, 140, random_ids(random, 20)));  // parts within a block
  add(0, joined(text, 128, random_ids(random, 40)));  // at a border
  stems = {add(0, joined(text, 257, {})), add(0, joined(text, 256, random_ids(random, 9))),
           add(0, joined(text, 300, random_ids(random, 100)))};
  for (const int length : {385, 390, 520})
    stalks.push_back(add(0, joined(text, length, {})));
  stalks.push_back(add(0, joined(text, 384, random_ids(random, 140))));
  // The next turn, which goes on from an answer that was computed token by token.
  const auto answer = reference.answer(first_turn, runtime::Mode::kExact, {}, 70);
  std::vector<std::int32_t> next = joined(text, 200, {});
  for (const Said& token : answer.first(70))
    next.push_back(token.id);
  for (const int more : {3, 150})
    add(0, joined(next, 270, random_ids(random, more)));

  // The first image lies across the first border.
  const auto around_image = random_ids(random, 600);
  const auto with_images = [&](int length, std::uint32_t first_image, std::uint32_t second_image) {
    runtime::EmbedRows embeds;
    if (first_image != 0) add_image(embeds, 105, 133, hidden, first_image);
    if (second_image != 0) add_image(embeds, 140, 150, hidden, second_image);
    add(1, joined(around_image, length, {}), std::move(embeds));
  };
  with_images(145, 1, 0);
  with_images(145, 2, 0);
  with_images(145, 0, 0);
  with_images(180, 1, 3);
  with_images(180, 1, 4);
  with_images(260, 1, 3);
  with_images(390, 1, 3);
  with_images(390, 2, 3);
  with_images(520, 1, 3);

  const auto few = random_ids(random, 300);
  for (const int length : {1, 7, 60, 128})
    add(2, joined(few, length, {}));
}

}  // namespace deepinfer::agreement
