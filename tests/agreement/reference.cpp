#include "agreement/reference.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/sampler.h"

namespace deepinfer::agreement {
namespace {

constexpr int kStepTokens = 512;
// Answers grow in stages, so that one that was asked for briefly is not computed at full length.
constexpr std::int64_t kStages[] = {7, 26, 100};

template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return std::move(result).value();
}

}  // namespace

Reference::Reference(const Variant& variant, std::int64_t decoder_tokens, std::int64_t context)
    : decoder_tokens_(decoder_tokens), subject_(variant, {3, kStepTokens, context, 0}) {}

std::size_t Reference::add(runtime::Request request) {
  if (!request.sampling.seed.has_value()) throw std::runtime_error("a reference needs the request's seed");
  requests_.push_back(std::move(request));
  return requests_.size() - 1;
}

std::span<const Said> Reference::answer(std::size_t number, runtime::Mode mode, const Boundaries& boundaries,
                                        std::int64_t count) {
  Key key{number, mode, boundaries};
  // A replay from the first position writes and reads what a cold run does.
  std::erase(key.boundaries, state::kBlockTokens);
  std::vector<Said>& known = answers_[key];
  if (static_cast<std::int64_t>(known.size()) < count) {
    const auto* stage = std::find_if(std::begin(kStages), std::end(kStages),
                                     [&](std::int64_t tokens) { return tokens >= count; });
    const std::int64_t room =
        info().max_model_len - static_cast<std::int64_t>(requests_[number].prompt.size());
    known = compute(key, std::max(count, std::min(room, stage == std::end(kStages) ? count : *stage)));
    ++computed_;
  }
  return known;
}

std::span<const float> Reference::run(cache::Sequence& sequence, std::int64_t end, const sched::Start& start,
                                      const runtime::EmbedRows& embeds) {
  while (sequence.length() < end) {
    const std::int64_t tokens = std::min<std::int64_t>(end - sequence.length(), kStepTokens);
    const int logits = sequence.length() + tokens == end ? 1 : 0;
    const runtime::StepPart part{&sequence, static_cast<int>(tokens), start, logits, &embeds};
    const auto done = subject_.runner().run({&part, 1});
    if (!done.ok()) throw std::runtime_error(done.error().message());
  }
  return subject_.runner().logits(0);
}

std::vector<Said> Reference::compute(const Key& key, std::int64_t count) {
  const runtime::Request& request = requests_[key.number];
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  std::vector<std::uint8_t> image(request.embeds.empty() ? 0 : request.prompt.size());
  for (const std::int32_t position : request.embeds.positions)
    image[static_cast<std::size_t>(position)] = 1;
  const cache::SequenceOptions options{request.prompt, image, prompt + count};
  cache::Store& store = subject_.store();
  std::optional<cache::Sequence> sequence(must(store.start(options)));
  std::int64_t hit = 0;
  for (const std::int64_t boundary : key.boundaries) {
    run(*sequence, boundary, sched::make_start(runtime::Mode::kReplay, boundary, hit, 1), request.embeds);
    cache::Sequence next = must(store.adopt(*sequence, boundary, options));
    sequence.emplace(std::move(next));
    hit = boundary;
  }
  const sched::Start start = sched::make_start(key.mode, prompt, hit, decoder_tokens_);
  const auto never =
      std::make_shared<std::vector<std::uint8_t>>(static_cast<std::size_t>(info().vocab), std::uint8_t{0});
  runtime::Sampler sampler(request.sampling, *request.sampling.seed, never, request.prompt);
  runtime::SamplerScratch scratch;
  std::vector<Said> tokens;
  while (static_cast<std::int64_t>(tokens.size()) < count) {
    const auto logits = run(*sequence, sequence->known(), start, request.embeds);
    const runtime::Token token = must(sampler.sample(logits, sequence->known(), scratch));
    sampler.accept(token.id);
    sequence->append(token.id);
    tokens.push_back(said(token));
  }
  return tokens;
}

std::vector<Boundaries> boundaries_ending_at(std::int64_t hit) {
  constexpr std::int64_t kBlock = state::kBlockTokens;
  if (hit <= kBlock) return {{}};
  std::vector<Boundaries> all;
  const std::int64_t between = hit / kBlock - 2;  // 256 .. hit - 128
  for (unsigned chosen = 0; chosen < 1U << between; ++chosen) {
    Boundaries boundaries;
    for (std::int64_t i = 0; i < between; ++i)
      if ((chosen >> i & 1U) != 0) boundaries.push_back((i + 2) * kBlock);
    boundaries.push_back(hit);
    all.push_back(std::move(boundaries));
  }
  return all;
}

}  // namespace deepinfer::agreement
