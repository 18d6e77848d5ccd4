// Completions over sockets.
#include "serve/server_test_support.h"

namespace deepinfer::serve {
namespace {

constexpr std::string_view kPath = "/v1/completions";

class CompletionsTest : public ServerTest {
 protected:
  void SetUp() override { start_ready(); }
  static std::string body(std::string_view members) {
    return R"({"model":"demo","temperature":0,)" + std::string(members) + "}";
  }
  JsonValue complete(std::string_view members) { return posted(kPath, body(members)); }
  std::vector<JsonValue> streamed(std::string_view members) {
    std::vector<JsonValue> chunks;
    const Answer answer = post(kPath, body(std::string(members) + R"(,"stream":true)"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    const auto lines = data_of(answer.body);
    EXPECT_EQ(lines.back(), "[DONE]");
    for (std::size_t i = 0; i + 1 < lines.size(); ++i)
      chunks.push_back(text::read_json(lines[i]).value());
    return chunks;
  }
  static std::string text_of(const JsonValue& answer, std::string_view index = "0") {
    return at(answer, {"choices", index, "text"}).text();
  }
};

TEST_F(CompletionsTest, StreamedEqualsWhole) {
  const char* const members = R"("prompt":"The demo model is","max_tokens":20,"logprobs":2)";
  const JsonValue whole = complete(members);
  EXPECT_EQ(at(whole, {"object"}), JsonValue("text_completion"));
  EXPECT_TRUE(at(whole, {"id"}).text().starts_with("cmpl-"));
  EXPECT_FALSE(text_of(whole).empty());
  std::string text;
  JsonValue tokens = JsonValue::array(), offsets = JsonValue::array();
  JsonValue usage;
  std::string finish;
  for (const JsonValue& chunk :
       streamed(std::string(members) + R"(,"stream_options":{"include_usage":true})")) {
    if (chunk.find("choices")->size() == 0) {
      usage = *chunk.find("usage");
      continue;
    }
    EXPECT_TRUE(chunk.find("usage")->is_null());
    text += text_of(chunk);
    for (const JsonValue& token : items_at(chunk, {"choices", "0", "logprobs", "tokens"}))
      tokens.push(token);
    for (const JsonValue& offset : items_at(chunk, {"choices", "0", "logprobs", "text_offset"}))
      offsets.push(offset);
    finish = at(chunk, {"choices", "0", "finish_reason"}).text();
  }
  EXPECT_EQ(text, text_of(whole));
  EXPECT_EQ(tokens, at(whole, {"choices", "0", "logprobs", "tokens"}));
  EXPECT_EQ(offsets, at(whole, {"choices", "0", "logprobs", "text_offset"}));
  EXPECT_EQ(usage, *whole.find("usage"));
  EXPECT_EQ(JsonValue(finish), at(whole, {"choices", "0", "finish_reason"}));
}

TEST_F(CompletionsTest, LogprobsFitTheText) {
  const JsonValue whole = complete(R"("prompt":"The demo model is","max_tokens":12,"logprobs":3)");
  const JsonValue logprobs = at(whole, {"choices", "0", "logprobs"});
  std::string joined;
  const std::size_t count = logprobs.find("tokens")->size();
  for (const char* list : {"token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(logprobs.find(list)->size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string index = std::to_string(i);
    EXPECT_EQ(at(logprobs, {"text_offset", index}).text(), std::to_string(joined.size()));
    const std::string token = at(logprobs, {"tokens", index}).text();
    joined += token;
    // Greedy: the sampled token is the most likely one.
    const JsonValue top = at(logprobs, {"top_logprobs", index});
    EXPECT_EQ(top.size(), 3U);
    EXPECT_EQ(top.keys().front(), token);
    EXPECT_EQ(top.items().front(), at(logprobs, {"token_logprobs", index}));
  }
  EXPECT_EQ(joined, text_of(whole));
  const JsonValue only = complete(R"("prompt":"The demo model is","max_tokens":2,"logprobs":0)");
  EXPECT_EQ(at(only, {"choices", "0", "logprobs", "top_logprobs", "0"}).size(), 1U);
  EXPECT_TRUE(at(complete(R"("prompt":"x","max_tokens":1)"), {"choices", "0", "logprobs"}).is_null());
}

TEST_F(CompletionsTest, TextAndIdsAreTheSamePrompt) {
  const JsonValue ids = *posted("/tokenize", R"({"prompt":"The demo model is"})").find("tokens");
  const std::string list = text::write_json(ids);
  const std::string text = text_of(complete(R"("prompt":"The demo model is")"));
  EXPECT_EQ(text_of(complete(R"("prompt":)" + list)), text);
  const JsonValue both = complete(R"("n":1,"prompt":[)" + list + "," + list + "]");
  ASSERT_EQ(both.find("choices")->size(), 2U);
  EXPECT_EQ(text_of(both), text);
  EXPECT_EQ(text_of(both, "1"), text);
  const JsonValue one = complete(R"("prompt":"The demo model is")");
  EXPECT_EQ(at(both, {"usage", "prompt_tokens"}).as_double(),
            2 * at(one, {"usage", "prompt_tokens"}).as_double());
  // Begin of sentence stands in front unless the caller says otherwise.
  EXPECT_EQ(at(one, {"usage", "prompt_tokens"}).text(), std::to_string(ids.size() + 1));
  EXPECT_EQ(
      at(complete(R"("add_special_tokens":false,"prompt":"The demo model is")"), {"usage", "prompt_tokens"})
          .text(),
      std::to_string(ids.size()));
}

TEST_F(CompletionsTest, PromptsTimesChoices) {
  const JsonValue whole = complete(R"("prompt":["One","Two"],"n":2,"max_tokens":3,"echo":true)");
  ASSERT_EQ(whole.find("choices")->size(), 4U);
  for (const auto& [index, begin] : {std::pair{"0", "One"}, {"1", "One"}, {"2", "Two"}, {"3", "Two"}}) {
    EXPECT_EQ(at(whole, {"choices", index, "index"}).text(), index);
    EXPECT_TRUE(text_of(whole, index).starts_with(begin));
  }
  EXPECT_EQ(at(whole, {"usage", "completion_tokens"}).text(), "12");
  std::map<std::string, std::string> texts;
  for (const JsonValue& chunk : streamed(R"("prompt":["One","Two"],"n":2,"max_tokens":3,"echo":true)"))
    texts[at(chunk, {"choices", "0", "index"}).text()] += text_of(chunk);
  for (const auto& [index, text] : texts)
    EXPECT_EQ(text, text_of(whole, index));
}

TEST_F(CompletionsTest, BestOfGivesTheLikeliest) {
  const auto draw = [&](const std::string& more) {
    return posted(kPath,
                  R"({"model":"demo","prompt":"The","max_tokens":8,"temperature":1.5,"seed":3,"logprobs":0)" +
                      more + "}");
  };
  const auto mean = [](const JsonValue& choice) {
    double sum = 0;
    const JsonValue numbers = at(choice, {"logprobs", "token_logprobs"});
    for (const JsonValue& number : numbers.items())
      sum += number.as_double();
    return sum / static_cast<double>(numbers.size());
  };
  const JsonValue all = draw(R"(,"n":6)");
  const JsonValue best = draw(R"(,"best_of":6)");
  ASSERT_EQ(best.find("choices")->size(), 1U);
  double highest = -1e9;
  for (const JsonValue& choice : all.find("choices")->items())
    highest = std::max(highest, mean(choice));
  EXPECT_EQ(mean(best.find("choices")->items().front()), highest);
  EXPECT_EQ(at(best, {"usage", "completion_tokens"}), at(all, {"usage", "completion_tokens"}));
}

TEST_F(CompletionsTest, StopsCutAndSeedsRepeat) {
  const std::string whole = text_of(complete(R"("prompt":"The demo model is","max_tokens":24)"));
  const std::string stop = whole.substr(whole.size() / 2, 4);
  JsonValue members = JsonValue::array({JsonValue(stop)});
  const JsonValue cut = complete(R"("prompt":"The demo model is","max_tokens":24,"logprobs":0,"stop":)" +
                                 text::write_json(members));
  EXPECT_EQ(text_of(cut), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(at(cut, {"choices", "0", "finish_reason"}), JsonValue("stop"));
  std::string joined;
  for (const JsonValue& token : items_at(cut, {"choices", "0", "logprobs", "tokens"}))
    joined += token.text();
  // The token in which the stop begins may bring its first characters.
  EXPECT_TRUE(joined.starts_with(text_of(cut)));
  EXPECT_LT(joined.size(), text_of(cut).size() + 16);
  const char* const drawn = R"({"model":"demo","prompt":"The","temperature":1.3,"seed":11})";
  EXPECT_EQ(text_of(posted(kPath, drawn)), text_of(posted(kPath, drawn)));
}

TEST_F(CompletionsTest, FillsInTheMiddle) {
  const JsonValue filled = complete(R"("prompt":"def f(x):","suffix":"return y","max_tokens":4)");
  const std::size_t prefix = posted("/tokenize", R"({"prompt":"def f(x):"})").find("tokens")->size();
  const std::size_t suffix = posted("/tokenize", R"({"prompt":"return y"})").find("tokens")->size();
  // Begin of sentence and the three marks.
  EXPECT_EQ(at(filled, {"usage", "prompt_tokens"}).text(), std::to_string(prefix + suffix + 4));
  EXPECT_EQ(
      at(complete(R"("prompt":"def f(x):","suffix":"","max_tokens":1)"), {"usage", "prompt_tokens"}).text(),
      std::to_string(prefix + 4));
}

// Text never becomes a control token, unless its caller asks for that.
TEST_F(CompletionsTest, SpellingsOfControlTokensStayText) {
  const auto tokens = [&](const char* members) {
    return at(complete(members), {"usage", "prompt_tokens"}).as_double();
  };
  EXPECT_GT(tokens(R"("prompt":"<｜User｜>","max_tokens":1)"), 3);
  EXPECT_GT(tokens(R"("prompt":"<｜begin▁of▁sentence｜>","max_tokens":1)"), 3);
  EXPECT_EQ(tokens(R"("prompt":"<｜User｜>","max_tokens":1,"allow_special_tokens":true)"), 2);
  EXPECT_EQ(tokens(R"("prompt":"<｜begin▁of▁sentence｜>a","max_tokens":1,"allow_special_tokens":true)"), 2);
  EXPECT_EQ(tokens(R"("prompt":"","suffix":"<｜fim▁end｜>","max_tokens":1,"allow_special_tokens":true)"),
            tokens(R"("prompt":"","suffix":"<｜fim▁end｜>","max_tokens":1)"));
}

// A hand-made chat: all of the output is text, and the end of an answer is still the end.
TEST_F(CompletionsTest, OutputIsWholeText) {
  const JsonValue answer = complete(
      R"("prompt":"<｜User｜>Who are you?<｜Assistant｜></think>","max_tokens":60,"allow_special_tokens":true)");
  EXPECT_NE(text_of(answer).find("demo model"), std::string::npos) << text_of(answer);
  EXPECT_EQ(at(answer, {"choices", "0", "finish_reason"}), JsonValue("stop"));
}

TEST_F(CompletionsTest, BadFieldsAreNamed) {
  const auto refused = [&](std::string_view members, std::string_view field) {
    const JsonValue error = *posted(kPath, body(members), 400).find("error");
    EXPECT_NE(at(error, {"message"}).text().find(field), std::string::npos) << text::write_json(error);
    EXPECT_EQ(at(error, {"type"}), JsonValue("invalid_request_error"));
  };
  refused(R"("prompt":7)", "prompt");
  refused(R"("prompt":[])", "prompt");
  refused(R"("prompt":["a",7])", "prompt[1]");
  refused(R"("prompt":[1,"a"])", "prompt[1]");
  refused(R"("prompt":[-1])", "prompt[0]");
  refused(R"("prompt":[1,1.5])", "prompt[1]");
  refused(R"("prompt":[99999999])", "prompt");
  refused(R"("prompt":"","add_special_tokens":false)", "prompt");
  refused(R"("prompt":"a","n":0)", "n value");
  refused(R"("prompt":"a","n":129)", "n value");
  refused(R"("prompt":"a","n":3,"best_of":2)", "best_of");
  refused(R"("prompt":"a","best_of":2,"stream":true)", "best_of");
  refused(R"("prompt":["a","b"],"n":100)", "prompts");
  refused(R"("prompt":"a","logprobs":6)", "logprobs");
  refused(R"("prompt":"a","logprobs":true)", "logprobs");
  refused(R"("prompt":"a","logprobs":1,"echo":true)", "logprobs");
  refused(R"("prompt":"a","suffix":"b","echo":true)", "echo");
  refused(R"("prompt":"a","max_tokens":0)", "max_tokens");
  refused(R"("prompt":"a","stop":[""])", "stop");
  refused(R"("prompt":"a","presence_penalty":3)", "presence_penalty");
  refused(R"("prompt":"a","stream_options":{"include_usage":true})", "stream_options");
  refused(R"("prompt":")" + std::string(8000, 'x') + R"(","max_tokens":1)", "context");
}

}  // namespace
}  // namespace deepinfer::serve
