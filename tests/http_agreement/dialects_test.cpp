// One question alone: whole and streamed, read fast and slowly, in every dialect.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "http_agreement/asking.h"

namespace deepinfer::http_agreement {
namespace {

// That the catalogue has what it is there for.
TEST(HttpAgreement, TheCatalogueIsRich) {
  std::set<std::string> ends;
  std::set<Dialect> dialects;
  int calls = 0, thoughts = 0, several = 0, halves = 0;
  std::set<std::int64_t> lengths;
  std::size_t longest = 0;
  for (const Question& question : reference().catalogue.questions) {
    const Answer& answer = reference().answers.at(question.name);
    ASSERT_EQ(answer.fault, "") << question.name;
    ASSERT_FALSE(answer.choices.empty()) << question.name;
    EXPECT_GT(answer.completion_tokens, 0) << question.name;
    EXPECT_EQ(answer.cached_tokens, 0) << question.name;
    dialects.insert(question.dialect);
    lengths.insert(answer.prompt_tokens);
    std::set<std::string> texts;
    for (const Choice& choice : answer.choices) {
      ends.insert(choice.finish);
      calls += static_cast<int>(choice.calls.size());
      thoughts += choice.reasoning.empty() ? 0 : 1;
      halves += choice.text.find("\xef\xbf\xbd") != std::string::npos ? 1 : 0;
      texts.insert(choice.text);
      longest = std::max(longest, choice.logprobs.size());
    }
    several += texts.size() > 1 ? 1 : 0;
  }
  EXPECT_EQ(dialects.size(), std::size(kDialects));
  for (const char* end : {"stop", "length", "tool_calls", "completed null", "end_turn null", "tool_use null",
                          "max_tokens null", "stop_sequence \"language m\""})
    EXPECT_TRUE(ends.contains(end)) << end;
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(thoughts, 7);
  EXPECT_GE(several, 2);
  EXPECT_GE(halves, 1);
  EXPECT_GE(longest, 40U);
  for (const std::int64_t length : {2, 127, 128, 129, 258, 398})
    EXPECT_TRUE(lengths.contains(length)) << length;
  for (const Chain& chain : reference().catalogue.chains)
    for (const Answer& answer : reference().chains.at(chain.name))
      EXPECT_EQ(answer.fault, "") << chain.name;
}

TEST(HttpAgreement, StreamedFastAndSlowly) {
  const auto program = serve("exact", {});
  const std::string key = patient_key(0);
  Connection kept(program.port(), fast());
  int number = 0;
  for (const Question& question : reference().catalogue.questions) {
    const bool slowly = ++number % 2 == 0;
    Connection unhurried(program.port(), slow());
    const Answer answer = ask(slowly ? unhurried : kept, question, {!question.whole_only, key});
    EXPECT_EQ(answer.said(), reference().answers.at(question.name).said())
        << question.name << (slowly ? ", read slowly" : "");
  }
  EXPECT_GT(hits(program), 0);
}

// All that was asked and answered before the last question, and the question, as one input.
text::JsonValue history_of(const Chain& chain, const std::vector<Answer>& answers) {
  text::JsonValue history = text::JsonValue::array();
  for (std::size_t i = 0; i < chain.steps.size(); ++i) {
    const text::JsonValue input =
        input_of(chain.steps[i], {answers.begin(), answers.begin() + static_cast<std::ptrdiff_t>(i)});
    if (input.is_string()) history.push(text::JsonValue::object({{"role", "user"}, {"content", input}}));
    for (const text::JsonValue& item : input.items())
      history.push(item);
    if (i + 1 == chain.steps.size()) break;
    const auto output = text::read_json(answers[i].output);
    for (std::size_t item = 0; output.ok() && item < output->size(); ++item)
      history.push(output->items()[item]);
  }
  return history;
}

// What goes on from a stored response is what the whole history gives.
TEST(HttpAgreement, ChainsAreTheirHistories) {
  const auto program = serve("exact", {});
  Connection connection(program.port(), fast());
  const Way way{true, patient_key(0)};
  for (const Chain& chain : reference().catalogue.chains) {
    const auto& said = reference().chains.at(chain.name);
    const auto streamed = ask_chain(connection, chain, way);
    for (std::size_t i = 0; i < said.size(); ++i)
      EXPECT_EQ(streamed[i].said(), said[i].said()) << chain.name << ", step " << i << ", streamed";
    text::JsonValue last = chain.steps.back();
    last.set("input", history_of(chain, streamed));
    EXPECT_GE(last.find("input")->size(), 3U);
    EXPECT_EQ(ask_step(connection, last, {}, way).said(), said.back().said()) << chain.name;
  }
}

TEST(HttpAgreement, ManyTokensAreThoseOfTheirCount) {
  const auto answer = [](const char* name) { return reference().answers.at(name); };
  EXPECT_EQ(answer("many tokens").completion_tokens, 40);  // ignore_eos
  EXPECT_EQ(answer("a large answer").completion_tokens, 48);
  EXPECT_EQ(answer("a long message").completion_tokens, 40);
  // The stop string would have ended it sooner.
  EXPECT_GE(answer("at least").completion_tokens, 9);
  EXPECT_EQ(answer("at least").choices.at(0).finish, "stop");
}

// Tokens of the content with their log-probabilities, as every dialect that has them tells them.
std::string numbers_of(const Answer& answer) {
  std::string text;
  for (const Logprob& one : answer.choices.at(0).logprobs)
    text += one.token + " " + one.number + "\n";
  return text;
}

TEST(HttpAgreement, DialectsSayTheSame) {
  std::map<std::string, std::vector<const Question*>> talks;
  for (const Question& question : reference().catalogue.questions)
    if (!question.talk.empty()) talks[question.talk].push_back(&question);
  EXPECT_EQ(talks.size(), 6U);
  for (const auto& [talk, questions] : talks) {
    ASSERT_GE(questions.size(), 3U) << talk;
    const Answer& chat = reference().answers.at(questions[0]->name);
    ASSERT_EQ(questions[0]->dialect, Dialect::kChat);
    for (const Question* question : questions) {
      const Answer& other = reference().answers.at(question->name);
      const Choice &left = chat.choices.at(0), &right = other.choices.at(0);
      EXPECT_EQ(left.text, right.text) << question->name;
      EXPECT_EQ(left.reasoning, right.reasoning) << question->name;
      EXPECT_EQ(chat.prompt_tokens, other.prompt_tokens) << question->name;
      EXPECT_EQ(chat.completion_tokens, other.completion_tokens) << question->name;
      ASSERT_EQ(left.calls.size(), right.calls.size()) << question->name;
      for (std::size_t i = 0; i < left.calls.size(); ++i) {
        const auto arguments = [&](const Choice& choice) {
          const auto read = text::read_json(choice.calls[i].arguments);
          EXPECT_TRUE(read.ok()) << choice.calls[i].arguments;
          return read.ok() ? text::write_json(*read) : std::string();
        };
        EXPECT_EQ(left.calls[i].name, right.calls[i].name) << question->name;
        EXPECT_EQ(arguments(left), arguments(right)) << question->name;
      }
      if (question->dialect == Dialect::kMessages) continue;  // has no logprobs
      EXPECT_EQ(numbers_of(chat), numbers_of(other)) << question->name;
      if (left.calls.empty()) EXPECT_NE(numbers_of(chat), "") << question->name;
    }
  }
}

}  // namespace
}  // namespace deepinfer::http_agreement
