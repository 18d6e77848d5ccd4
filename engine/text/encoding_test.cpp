// Decisions of the renderers that the conformance data does not reach; the data itself is run by dialects.
#include "text/encoding.h"

#include <gtest/gtest.h>

#include "text/small_tokenizer.h"

namespace deepinfer::text {
namespace {

Message assistant(std::string text, std::string reasoning) {
  Message message = Message::of_text(Role::kAssistant, std::move(text));
  message.reasoning = std::move(reasoning);
  return message;
}

Conversation history() {
  Conversation conversation;
  conversation.messages = {Message::of_text(Role::kUser, "a"), assistant("b", "r1"),
                           Message::of_text(Role::kUser, "c"), assistant("d", "r2")};
  return conversation;
}

std::string tail(const Conversation& conversation, ReasoningHistory mode, ModelVersion version) {
  EncodingOptions options;
  options.version = version;
  options.reasoning_history = mode;
  const std::string text = render(conversation, options).text();
  return text.substr(text.find("<｜User｜>"));
}

TEST(Encoding, ReasoningHistoryModes) {
  for (const ModelVersion version : {ModelVersion::kV4, ModelVersion::kV41}) {
    EXPECT_EQ(tail(history(), ReasoningHistory::kRecipe, version),
              "<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜></"
              "think>d<｜end▁of▁sentence｜>"
              "<｜Assistant｜><think>");
    EXPECT_EQ(
        tail(history(), ReasoningHistory::kEncoder, version),
        "<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜><think>r2</think>d"
        "<｜end▁of▁sentence｜><｜Assistant｜><think>");
    EXPECT_EQ(tail(history(), ReasoningHistory::kKeepAll, version),
              "<｜User｜>a<｜Assistant｜><think>r1</"
              "think>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜><think>r2</think>d"
              "<｜end▁of▁sentence｜><｜Assistant｜><think>");
  }
}

TEST(Encoding, EffortNumbersPickTheTierOfV4) {
  Conversation conversation = history();
  const auto prompt = [&](int number, ModelVersion version) {
    conversation.effort = Effort::of_number(number);
    EncodingOptions options;
    options.version = version;
    return render(conversation, options).text();
  };
  EXPECT_NE(prompt(37, ModelVersion::kV41).find("Reasoning Effort: 37 "), std::string::npos);
  EXPECT_EQ(prompt(50, ModelVersion::kV4).find("Reasoning Effort"), std::string::npos);
  EXPECT_NE(prompt(51, ModelVersion::kV4).find("Absolute maximum"), std::string::npos);
  EXPECT_NE(prompt(76, ModelVersion::kV4).find("Beyond maximum"), std::string::npos);
}

TEST(Encoding, ToolResultFramesCanBeEscaped) {
  Conversation conversation;
  conversation.thinking = false;
  conversation.messages = {Message::of_text(Role::kTool, "x</tool_result>y")};
  EncodingOptions options;
  EXPECT_NE(render(conversation, options).text().find("x</tool_result>y</tool_result>"), std::string::npos);
  options.escape_tool_results = true;
  EXPECT_NE(render(conversation, options).text().find("x<\u200B/tool_result>y</tool_result>"),
            std::string::npos);
}

TEST(Encoding, StartsOfTheParser) {
  Conversation conversation;
  conversation.messages = {Message::of_text(Role::kUser, "a")};
  EncodingOptions options;
  const auto start = [&] { return render(conversation, options).start; };
  EXPECT_EQ(start(), ParserStart::kReasoning);
  conversation.thinking = false;
  EXPECT_EQ(start(), ParserStart::kContent);
  ToolDefinition tool;
  tool.name = "f";
  conversation.tools = {tool};
  conversation.tool_choice = ToolChoice::kRequired;
  EXPECT_EQ(start(), ParserStart::kCalls);
  conversation.thinking = true;
  EXPECT_EQ(start(), ParserStart::kReasoning);  // forced by decoding after </think>
  options.profile = Profile::kPackage;
  EXPECT_EQ(start(), ParserStart::kCalls);
}

// A tokenizer without a control spelling of the version is refused by name.
TEST(Encoding, MissingControlTokenIsNamed) {
  SmallTokenizer small;
  std::erase(small.added, "<｜System｜>");
  const Tokenizer tokenizer = Tokenizer::parse(small.json(), "small").value();
  EncodingOptions options;
  const auto ids = encode(render(history(), options), tokenizer);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().kind, ErrorKind::kNotFound);
  EXPECT_NE(ids.error().what.find("<｜System｜>"), std::string::npos);
  options.version = ModelVersion::kV4;
  EXPECT_TRUE(encode(render(history(), options), tokenizer).ok());
}

}  // namespace
}  // namespace deepinfer::text
