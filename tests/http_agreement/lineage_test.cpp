// The same questions in the same order, asked of fresh programs: alone, each with its place taken away in the middle, and
// beside strangers of another tenant. In replay mode what a request hits is part of what it computes, so the hits must be
// the same too.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "http_agreement/asking.h"

namespace deepinfer::http_agreement {
namespace {

constexpr int kStranger = kTenants - 1;
// Blocks enough for all that is published: what is evicted would be hit by one and not by the other.
constexpr int kBlocks = 160;

// Asked by one tenant, in this order: questions, then a chain.
struct Script {
  std::vector<std::string> questions;
  std::string chain;
};

std::vector<Script> scripts() {
  return {
      {{"the first 257", "the first 397", "the first 397"}, ""},
      {{"facts /v1/chat/completions", "facts /v1/completions", "facts /v1/messages"}, "about facts"},
      {{"call /v1/messages", "call /v1/chat/completions"}, "about the weather"},
      {{"many tokens", "two choices"}, ""},
  };
}

const Question& question_of(const std::string& name) {
  for (const Question& question : reference().catalogue.questions)
    if (question.name == name) return question;
  throw std::runtime_error("no such question: " + name);
}

const Chain& chain_of(const std::string& name) {
  for (const Chain& chain : reference().catalogue.chains)
    if (chain.name == name) return chain;
  throw std::runtime_error("no such chain: " + name);
}

// What goes on beside one question.
class Company {
 public:
  virtual ~Company() = default;
  virtual void begin(int) {}
  virtual void end() {}
};

// Takes the tenant's place away as soon as a request of it runs.
class Preempting final : public Company {
 public:
  explicit Preempting(const test::ServedProgram& program) : program_(program) {}
  void begin(int tenant) override {
    over_ = false;
    thread_ = std::thread([this, tenant] {
      while (sum_of(program_, "vllm:num_requests_running") == 0)
        if (over_) return;
      Question brief;
      brief.dialect = Dialect::kCompletions;
      brief.body = text::JsonValue::object(
          {{"model", "demo"}, {"prompt", "Hi"}, {"max_tokens", 2}, {"ignore_eos", true}, {"temperature", 0}});
      Connection connection(program_.port(), fast());
      const Answer answer = ask(connection, brief, {false, urgent_key(tenant)});
      EXPECT_EQ(answer.fault, "");
      EXPECT_EQ(answer.completion_tokens, 2);
    });
  }
  void end() override {
    over_ = true;
    thread_.join();
  }

 private:
  const test::ServedProgram& program_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

std::string told(const Answer& answer, bool with_hits) {
  return answer.said() + (with_hits ? std::to_string(answer.cached_tokens) + " cached\n" : "");
}

// What a script's questions are answered.
std::vector<Answer> follow(const test::ServedProgram& program, const Script& script, int tenant,
                           bool streamed, Company& company) {
  std::vector<Answer> all;
  Connection connection(program.port(), fast());
  const Way way{streamed, patient_key(tenant)};
  for (const std::string& name : script.questions) {
    company.begin(tenant);
    all.push_back(ask(connection, question_of(name), way));
    company.end();
  }
  if (script.chain.empty()) return all;
  std::vector<Answer> answers;
  for (const text::JsonValue& step : chain_of(script.chain).steps) {
    company.begin(tenant);
    answers.push_back(ask_step(connection, step, answers, way));
    company.end();
  }
  all.insert(all.end(), answers.begin(), answers.end());
  return all;
}

// Blocks that were computed behind a hit, so that what a request of them hits has a lineage.
double replayed_blocks(const test::ServedProgram& program) {
  double sum = 0;
  for (const auto& [sample, value] : program.metrics())
    if (sample.starts_with("deepinfer:prefix_published_blocks_total{") &&
        sample.find("lineage=\"replayed\"") != std::string::npos)
      sum += value;
  return sum;
}

using Answers = std::vector<std::vector<Answer>>;  // by script

// In exact mode it does not matter what is hit, so what is said cold is what must be said.
Answers cold_answers() {
  Answers all;
  for (const Script& script : scripts()) {
    std::vector<Answer>& answers = all.emplace_back();
    for (const std::string& name : script.questions)
      answers.push_back(reference().answers.at(name));
    if (script.chain.empty()) continue;
    const auto& chain = reference().chains.at(script.chain);
    answers.insert(answers.end(), chain.begin(), chain.end());
  }
  return all;
}

Answers replay_alone() {
  const auto program = serve("replay", {"--max-sequences", "1"}, kBlocks);
  Answers all;
  Company nobody;
  int tenant = 0;
  for (const Script& script : scripts())
    all.push_back(follow(program, script, tenant++, false, nobody));
  EXPECT_GT(replayed_blocks(program), 0);
  EXPECT_GT(hits(program), 0);
  EXPECT_EQ(sum_of(program, "deepinfer:prefix_evicted_blocks_total"), 0);
  EXPECT_EQ(preemptions(program), 0);
  return all;
}

const Answers& expected_answers(const std::string& mode) {
  static const Answers exact = cold_answers(), replay = replay_alone();
  return mode == "exact" ? exact : replay;
}

void compare(const std::vector<Answer>& answers, const std::vector<Answer>& expected, bool with_hits,
             std::size_t script) {
  ASSERT_EQ(answers.size(), expected.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].fault, "");
    EXPECT_EQ(told(answers[i], with_hits), told(expected[i], with_hits))
        << "answer " << i << " of script " << script;
  }
}

void compare_preempted(const std::string& mode) {
  const Answers& expected = expected_answers(mode);
  const auto program = serve(mode, {"--max-sequences", "1", "--step-tokens", "64"}, kBlocks);
  Preempting company(program);
  const auto all = scripts();
  int tenant = 0, answers = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    // An answer may be over before its place is taken; then the script is followed again, by a tenant who knows nothing.
    constexpr int kMostAttempts = 12;
    const double before = preemptions(program);
    for (int attempt = 0; attempt < kMostAttempts && preemptions(program) == before; ++attempt) {
      const auto got = follow(program, all[i], tenant++, i % 2 == 0, company);
      answers += static_cast<int>(got.size());
      compare(got, expected[i], mode == "replay", i);
    }
    EXPECT_GT(preemptions(program), before) << "no place was taken away in script " << i;
  }
  std::printf("[ http ] %s: %d answers, %.0f preemptions, %.0f tokens of hits\n", mode.c_str(), answers,
              preemptions(program), hits(program));
  EXPECT_GT(hits(program), 0);
  EXPECT_EQ(sum_of(program, "deepinfer:prefix_evicted_blocks_total"), 0);
}

TEST(HttpAgreement, PreemptedAndResumedInExactMode) {
  compare_preempted("exact");
}

TEST(HttpAgreement, PreemptedAndResumedInReplayMode) {
  compare_preempted("replay");
}

// Asks and leaves until it is over.
void be_a_stranger(const test::ServedProgram& program, std::uint32_t seed, const std::atomic<bool>& over) {
  std::mt19937 random(seed);
  // Some of what the others ask, so that a hit across tenants would show; nothing that takes them long to wait for.
  std::vector<Question> questions;
  for (const Question& question : reference().catalogue.questions)
    if (reference().answers.at(question.name).prompt_tokens < 200) questions.push_back(question);
  while (!over) {
    const Question& question = questions[random() % questions.size()];
    Connection connection(program.port(), fast());
    text::JsonValue body = question.body;
    body.set("stream", !question.whole_only);
    connection.ask("POST", path_of(question.dialect), text::write_json(body), patient_key(kStranger), true);
    if (random() % 3 != 0) connection.await(random() % 8000);
  }
}

TEST(HttpAgreement, AtAnEqualLineageBesideStrangers) {
  const Answers& expected = expected_answers("replay");
  const auto seed = static_cast<std::uint32_t>(setting("DEEPINFER_HTTP_AGREEMENT_SEED", 1));
  const auto program = serve("replay", {"--max-sequences", "2"}, kBlocks);
  std::atomic<bool> over = false;
  std::thread stranger([&] { be_a_stranger(program, seed, over); });
  Company nobody;
  const auto all = scripts();
  for (std::size_t i = 0; i < all.size(); ++i)
    compare(follow(program, all[i], static_cast<int>(i), i % 2 == 1, nobody), expected[i], true, i);
  over = true;
  stranger.join();
  EXPECT_GT(sum_of(program, "deepinfer:prefix_published_blocks_total"), 0);
  EXPECT_EQ(sum_of(program, "deepinfer:prefix_evicted_blocks_total"), 0);
  EXPECT_TRUE(program.lives());
}

}  // namespace
}  // namespace deepinfer::http_agreement
