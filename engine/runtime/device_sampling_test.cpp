// Requests answer the same whether the backend samples, the host does, or each does for a part of a step, and whether the host runs
// ahead of a backend that samples or waits for each step.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/engine_test_support.h"

namespace deepinfer::runtime {
namespace {

using namespace testing_engine;

// What one run of a set of requests was answered, and who chose the ids.
struct Outcome {
  std::vector<Answer> answers;
  int device_rows = 0, host_rows = 0;
  int mixed_steps = 0;  // with rows of both
  int ahead = 0;        // steps launched while another was under way
};

using fake::CoreOptions;
using Change = std::function<void(std::int64_t, std::span<float>)>;

Outcome run_all(bool device, const std::vector<Request>& requests, const Change& change = {},
                const std::vector<std::int32_t>& never = {},
                CoreOptions::Ahead ahead = CoreOptions::Ahead::kNo) {
  Outcome outcome;
  std::atomic<int> launched_ahead = 0;
  fake::CoreOptions core;
  core.samples = device;
  core.ahead = ahead;
  core.launched_ahead = &launched_ahead;
  core.change_logits = change;
  core.after_step = [&](const backend::StepInputs& in) {
    const auto sampled = static_cast<int>(in.sample_rows.size());
    const auto rows = static_cast<int>(in.logit_rows.size());
    EXPECT_EQ(std::count(in.unread_logits.begin(), in.unread_logits.end(), 1), sampled);
    outcome.device_rows += sampled;
    outcome.host_rows += rows - sampled;
    outcome.mixed_steps += sampled > 0 && sampled < rows ? 1 : 0;
  };
  EngineOptions options;
  options.never_sampled = never;
  auto engine = make_engine(core, options);
  std::vector<Stream> streams;
  for (const Request& request : requests) {
    auto stream = engine->submit(request);
    EXPECT_TRUE(stream.ok()) << stream.error().message();
    streams.push_back(std::move(*stream));
  }
  for (Stream& stream : streams)
    outcome.answers.push_back(collect(stream));
  expect_all_free(*engine);
  engine.reset();
  outcome.ahead = launched_ahead;
  return outcome;
}

void expect_same(const Outcome& device, const Outcome& host) {
  EXPECT_EQ(host.device_rows, 0);
  ASSERT_EQ(device.answers.size(), host.answers.size());
  for (std::size_t i = 0; i < host.answers.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    const Answer &a = device.answers[i], &b = host.answers[i];
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.logprobs, b.logprobs);
    EXPECT_EQ(a.finish.reason, b.finish.reason);
    ASSERT_EQ(a.finish.error.has_value(), b.finish.error.has_value());
    if (a.finish.error) {
      EXPECT_EQ(a.finish.error->kind, b.finish.error->kind);
      EXPECT_EQ(a.finish.error->message(), b.finish.error->message());
    }
  }
}

// Requests that the backend can sample for.
std::vector<Request> plain_requests() {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (const double temperature : {0.0, 0.3, 1.0, 2.0}) {
    for (int variant = 0; variant < 4; ++variant) {
      Request request = request_of(random_ids(random, 5 + static_cast<int>(random() % 30)), 40, temperature);
      if (variant == 1) request.sampling.top_k = 7;
      if (variant == 2) request.sampling.top_p = 0.6;
      if (variant == 3)
        request.sampling.top_k = 20, request.sampling.top_p = 0.8, request.sampling.min_p = 0.1;
      request.sampling.logprobs = variant % 2 == 0;
      request.sampling.seed = random();
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

// Requests that the host samples for, one a reason.
std::vector<Request> special_requests() {
  std::mt19937 random(4);
  std::vector<Request> requests;
  for (int reason = 0; reason < 7; ++reason) {
    Request request = request_of(random_ids(random, 8), 30, 0.8);
    SamplingParams& params = request.sampling;
    switch (reason) {
      case 0: params.logit_bias = {{4, 3.0F}}; break;
      case 1: params.allowed_ids = {1, 5, 9, 13, 40}; break;
      case 2: params.banned_ids = {2, 3}; break;
      case 3: params.repetition_penalty = 1.3; break;
      case 4: params.presence_penalty = 0.5; break;
      case 5: params.frequency_penalty = 0.5; break;
      default: params.logprobs = true, params.top_logprobs = 3; break;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(DeviceSampling, PlainRequestsAreAllItsOwn) {
  const auto requests = plain_requests();
  const Outcome device = run_all(true, requests), host = run_all(false, requests);
  expect_same(device, host);
  EXPECT_EQ(device.host_rows, 0);
  EXPECT_GE(device.device_rows, 40 * static_cast<int>(requests.size()));
}

TEST(DeviceSampling, OthersAreTheHosts) {
  const auto requests = special_requests();
  const Outcome device = run_all(true, requests);
  expect_same(device, run_all(false, requests));
  EXPECT_EQ(device.device_rows, 0);
}

TEST(DeviceSampling, AStepHasBoth) {
  std::vector<Request> requests;
  const auto plain = plain_requests(), special = special_requests();
  for (std::size_t i = 0; i < plain.size(); ++i) {
    requests.push_back(plain[i]);
    if (i < special.size()) requests.push_back(special[i]);
  }
  const Outcome device = run_all(true, requests);
  expect_same(device, run_all(false, requests));
  EXPECT_GT(device.mixed_steps, 20);
}

TEST(DeviceSampling, MinTokensArePendingOnTheHost) {
  std::mt19937 random(6);
  Request request = request_of(random_ids(random, 8), 30, 0.8);
  request.sampling.min_tokens = 10;
  for (std::int32_t id = 0; id < fake::kVocab; id += 3)
    request.stop_ids.push_back(id);
  const Outcome device = run_all(true, {request});
  expect_same(device, run_all(false, {request}));
  EXPECT_GE(device.answers[0].ids.size(), 11U);
  // Nothing computed behind the end of an answer counts here: a step ahead may have been sampled, and discarded.
  EXPECT_EQ(device.host_rows, 10);
  EXPECT_GE(device.device_rows, static_cast<int>(device.answers[0].ids.size()) - 10);
}

TEST(DeviceSampling, NeverSampledIdsAreTheDevicesToo) {
  const auto requests = plain_requests();
  std::vector<std::int32_t> never;
  for (std::int32_t id = 0; id < fake::kVocab; id += 2)
    never.push_back(id);
  const Outcome device = run_all(true, requests, {}, never);
  expect_same(device, run_all(false, requests, {}, never));
  for (const Answer& answer : device.answers)
    for (const std::int32_t id : answer.ids)
      EXPECT_EQ(id % 2, 1);
}

TEST(DeviceSampling, ErrorsAreTheSame) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto requests = plain_requests();
  const auto at = [](std::int64_t position, float value) -> Change {
    return [=](std::int64_t where, std::span<float> logits) {
      if (where == position) logits[11] = logits[50] = value;
    };
  };
  for (const float wrong : {std::nanf(""), -std::nanf(""), kInfinity}) {
    const Outcome device = run_all(true, requests, at(30, wrong));
    expect_same(device, run_all(false, requests, at(30, wrong)));
    ASSERT_TRUE(device.answers[0].finish.error.has_value());
    EXPECT_EQ(device.answers[0].finish.error->kind, ErrorKind::kInternal);
    EXPECT_NE(device.answers[0].finish.error->what.find("the logit of id 11 is"), std::string::npos);
    // Of ids that are never sampled it does not count.
    const Outcome fine = run_all(true, requests, at(30, wrong), {11, 50});
    expect_same(fine, run_all(false, requests, at(30, wrong), {11, 50}));
    EXPECT_FALSE(fine.answers[0].finish.error.has_value());
  }
  const Change nothing = [](std::int64_t where, std::span<float> logits) {
    if (where == 30) std::fill(logits.begin(), logits.end(), -kInfinity);
  };
  const Outcome device = run_all(true, requests, nothing);
  expect_same(device, run_all(false, requests, nothing));
  ASSERT_TRUE(device.answers[0].finish.error.has_value());
  EXPECT_EQ(device.answers[0].finish.error->kind, ErrorKind::kInvalidArgument);
}

class RunsAhead : public testing::TestWithParam<CoreOptions::Ahead> {};

TEST_P(RunsAhead, IdsStayOnTheDevice) {
  const auto requests = plain_requests();
  const Outcome ahead = run_all(true, requests, {}, {}, GetParam());
  expect_same(ahead, run_all(false, requests));
  EXPECT_GT(ahead.ahead, 5) << "how many depends on who gets the processor";
}

TEST_P(RunsAhead, AStepThatTheHostSamplesForIsWaitedFor) {
  const auto requests = special_requests();
  const Outcome ahead = run_all(true, requests, {}, {}, GetParam());
  expect_same(ahead, run_all(false, requests));
  // Chunks of prompts sample nothing, so the one after them may be.
  EXPECT_LT(ahead.ahead, 10);
  std::vector<Request> both = plain_requests();
  both.insert(both.begin() + 3, requests.begin(), requests.end());
  expect_same(run_all(true, both, {}, {}, GetParam()), run_all(false, both));
}

TEST_P(RunsAhead, MinTokensArePendingOnTheHost) {
  std::mt19937 random(6);
  Request request = request_of(random_ids(random, 8), 30, 0.8);
  request.sampling.min_tokens = 10;
  const Outcome ahead = run_all(true, {request}, {}, {}, GetParam());
  expect_same(ahead, run_all(false, {request}));
  EXPECT_EQ(ahead.host_rows, 10);
  EXPECT_GE(ahead.ahead, 1);
}

TEST_P(RunsAhead, ErrorsAreTheSame) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto requests = plain_requests();
  for (const float wrong : {std::nanf(""), -kInfinity}) {
    const Change change = [=](std::int64_t where, std::span<float> logits) {
      if (where == 30) std::fill(logits.begin(), logits.end(), wrong);
    };
    const Outcome ahead = run_all(true, requests, change, {}, GetParam());
    expect_same(ahead, run_all(false, requests, change));
    EXPECT_TRUE(ahead.answers[0].finish.error.has_value());
  }
}

// A step that fails ends its requests; what was launched behind it is discarded, and others go on.
TEST_P(RunsAhead, AFailedStepTakesItsRequestsAlong) {
  for (const std::int64_t failing : {0, 1, 5, 6, 20}) {
    CoreOptions core;
    core.samples = true;
    core.ahead = GetParam();
    core.before_step = [=](std::int64_t step) -> Result<void> {
      if (step == failing) return make_error(ErrorKind::kInternal, "it fell over");
      return {};
    };
    auto engine = make_engine(core);
    for (int round = 0; round < 2; ++round) {
      std::vector<Stream> streams;
      const auto requests = plain_requests();
      for (const Request& request : requests) {
        auto stream = engine->submit(request);
        ASSERT_TRUE(stream.ok());
        streams.push_back(std::move(*stream));
      }
      int failed = 0;
      for (std::size_t i = 0; i < streams.size(); ++i) {
        const Answer answer = collect(streams[i]);
        if (answer.finish.reason == FinishReason::kFailed) {
          ++failed;
          continue;
        }
        EXPECT_EQ(answer.ids,
                  expected_answer(requests[i], Mode::kExact, 0, static_cast<int>(*requests[i].max_tokens)));
      }
      EXPECT_EQ(failed > 0, round == 0);
    }
    expect_all_free(*engine);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RunsAhead,
                         testing::Values(CoreOptions::Ahead::kAtOnce, CoreOptions::Ahead::kLate),
                         [](const auto& device) {
                           return std::string(device.param == CoreOptions::Ahead::kAtOnce ? "AtOnce"
                                                                                          : "Late");
                         });

}  // namespace
}  // namespace deepinfer::runtime
