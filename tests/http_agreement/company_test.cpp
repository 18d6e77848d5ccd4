// Questions among strangers: places are few and taken away, prefixes are found, clients leave, read slowly, share
// connections. Whoever gets an answer gets the one that is given alone.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "http_agreement/asking.h"

namespace deepinfer::http_agreement {
namespace {

constexpr int kClients = 6;
constexpr int kFewTenants = 3;

class Company {
 public:
  Company(const test::ServedProgram& program, std::uint32_t seed) : program_(program), seed_(seed) {}

  // So many more things are done by all clients together.
  void run(int things) {
    left_ = things;
    std::vector<std::thread> clients;
    for (int client = 0; client < kClients; ++client)
      clients.emplace_back([this, number = client + kClients * rounds_] {
        try {
          act(number);
        } catch (const std::exception& error) {
          note("a client failed: " + std::string(error.what()));
        }
      });
    for (std::thread& client : clients)
      client.join();
    ++rounds_;
  }

  int compared() const { return compared_; }
  int left() const { return gone_; }
  const std::string& faults() const { return faults_; }

 private:
  void note(const std::string& fault) {
    const std::lock_guard lock(mutex_);
    faults_ += fault + "\n";
  }

  void compare(const std::string& name, const Answer& answer, const Answer& expected) {
    ++compared_;
    if (answer.said() != expected.said())
      note(name + " was answered\n" + answer.said() + "and alone\n" + expected.said());
  }

  void act(int number) {
    std::mt19937 random(seed_ * 1000 + static_cast<std::uint32_t>(number));
    const auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
    const Catalogue& catalogue = reference().catalogue;
    auto kept = std::make_unique<Connection>(program_.port(), fast());
    while (left_.fetch_sub(1) > 0) {
      const int tenant = static_cast<int>(pick(kFewTenants));
      const bool urgent = pick(3) == 0;
      const Way way{pick(2) == 0, urgent ? urgent_key(tenant) : patient_key(tenant)};
      const std::size_t kind = pick(10);
      const Question& question = catalogue.questions[pick(catalogue.questions.size())];
      if (kind == 0) {
        const Chain& chain = catalogue.chains[pick(catalogue.chains.size())];
        const auto answers = ask_chain(*kept, chain, way);
        for (std::size_t i = 0; i < answers.size(); ++i)
          compare(chain.name, answers[i], reference().chains.at(chain.name)[i]);
      } else if (kind <= 2) {
        leave(question, way, pick(2000));
      } else {
        Way mine = way;
        mine.stream = way.stream && !question.whole_only;
        Connection unhurried(program_.port(), pick(2) == 0 ? slow() : fast());
        Connection& connection = pick(2) == 0 ? *kept : unhurried;
        compare(question.name, ask(connection, question, mine), reference().answers.at(question.name));
      }
    }
  }

  // After some bytes of the answer, or at once.
  void leave(const Question& question, const Way& way, std::size_t bytes) {
    Connection connection(program_.port(), slow());
    text::JsonValue body = question.body;
    body.set("stream", !question.whole_only);
    connection.ask("POST", path_of(question.dialect), text::write_json(body), way.key, true);
    if (bytes > 500) connection.await(bytes);
    ++gone_;
  }

  const test::ServedProgram& program_;
  const std::uint32_t seed_;
  int rounds_ = 0;
  std::atomic<int> left_ = 0, compared_ = 0, gone_ = 0;
  std::mutex mutex_;
  std::string faults_;
};

TEST(HttpAgreement, AmongStrangersWhoComeAndGo) {
  const int things = setting("DEEPINFER_HTTP_AGREEMENT_REQUESTS", 30);
  const auto seed = static_cast<std::uint32_t>(setting("DEEPINFER_HTTP_AGREEMENT_SEED", 1));
  const auto program = serve("exact", {"--max-sequences", "3", "--step-tokens", "64"});
  Company company(program, seed);
  // A schedule that took nobody's place away would show nothing.
  constexpr int kMostRounds = 8;
  for (int round = 0; round < kMostRounds && company.faults().empty(); ++round) {
    company.run(things);
    if (preemptions(program) > 0 && hits(program) > 0 && company.left() > 0) break;
  }
  std::printf(
      "[ http ] seed %u: %d answers compared, %d clients left, %.0f preemptions, %.0f tokens of hits\n", seed,
      company.compared(), company.left(), preemptions(program), hits(program));
  EXPECT_EQ(company.faults(), "") << "DEEPINFER_HTTP_AGREEMENT_SEED=" << seed;
  EXPECT_GE(company.compared(), things / 2);
  EXPECT_GT(company.left(), 0);
  EXPECT_GT(preemptions(program), 0);
  EXPECT_GT(hits(program), 0);
  EXPECT_TRUE(program.lives());
}

}  // namespace
}  // namespace deepinfer::http_agreement
