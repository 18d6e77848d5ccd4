// For tests that ask one engine with a prefix cache a few prompts, one after the other.
#pragma once

#include <gtest/gtest.h>

#include "agreement/catalogue.h"

namespace deepinfer::agreement {

class AskedEngine : public testing::TestWithParam<Variant> {
 protected:
  static constexpr std::int64_t kDecoderTokens = 50;

  AskedEngine() : reference_(GetParam(), kDecoderTokens, kCatalogueContext) {}

  std::unique_ptr<runtime::Engine> engine() {
    runtime::EngineOptions options;
    options.decoder_tokens = kDecoderTokens;
    options.prefix.enabled = true;
    options.prefix.snapshots = 8;
    Sizes sizes;
    sizes.context = kCatalogueContext;
    auto made = runtime::Engine::create(make_core(GetParam(), sizes), options);
    if (!made.ok()) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  // Asks for `count` tokens; the answer must be the reference's. In replay mode the boundaries before the hit itself are
  // `before`. Returns the cached tokens.
  std::int64_t ask(runtime::Engine& engine, std::size_t number, runtime::Mode mode, int count,
                   Boundaries before = {}) {
    runtime::Request request = reference_.request(number);
    request.mode = mode;
    request.max_tokens = count;
    auto stream = engine.submit(request);
    if (!stream.ok()) throw std::runtime_error(stream.error().message());
    Answer answer;
    answer.read_all(*stream);
    const std::int64_t hit = answer.finish->usage.cached_tokens;
    if (mode == runtime::Mode::kReplay && hit > 0) before.push_back(hit);
    EXPECT_EQ(answer.tokens.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(difference(reference_.answer(number, mode, before, count), answer.tokens), "")
        << "a hit of " << hit;
    return hit;
  }

  Reference reference_;
};

}  // namespace deepinfer::agreement
