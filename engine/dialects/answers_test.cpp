// Answers in our own profile: event sequences, failures, pieces of arguments.
#include <gtest/gtest.h>

#include "dialects/argument_stream.h"
#include "dialects/events.h"
#include "dialects/image_size.h"

namespace deepinfer::dialects {
namespace {

using text::ParserEvent;
using Kind = text::ParserEvent::Kind;

AnswerIdentity identity() {
  AnswerIdentity identity;
  identity.id = "r";
  identity.model = "m";
  identity.call_id = [](std::size_t index) { return "call_" + std::to_string(index); };
  return identity;
}

// Names and data of all frames of one answer with thinking, a text and a call.
std::vector<SseFrame> answer(Request& request, Dialect dialect) {
  request.dialect = dialect;
  request.include_usage = true;
  const auto writer = make_answer_writer(request, identity(), text::Profile::kOurs);
  std::vector<SseFrame> frames;
  writer->begin({.prompt = 9, .cached = 4, .completion = 0, .reasoning = 0}, frames);
  writer->push(std::vector<ParserEvent>{{Kind::kReasoning, -1, "hm"}, {Kind::kContent, -1, "ok"}}, frames);
  writer->push(std::vector<ParserEvent>{{Kind::kCallStart, 0, "f"}, {Kind::kArguments, 0, "{\"a\": 1}"}},
               frames);
  text::ParserOutcome outcome;
  outcome.finish = text::FinishReason::kToolCalls;
  writer->finish(outcome, {.prompt = 9, .cached = 4, .completion = 5, .reasoning = 2}, 7, frames);
  return frames;
}

std::string names(const std::vector<SseFrame>& frames) {
  std::string all;
  for (const SseFrame& frame : frames)
    all += frame.name + " ";
  return all;
}

TEST(Answers, ChatPutsUsageIntoItsOwnChunk) {
  Request request;
  const auto frames = answer(request, Dialect::kChat);
  ASSERT_GE(frames.size(), 3U);
  EXPECT_EQ(frames.back().data, "[DONE]");
  const auto usage = text::read_json(frames[frames.size() - 2].data).value();
  EXPECT_EQ(usage.find("choices")->size(), 0U);
  EXPECT_EQ(usage.find("usage")->find("total_tokens")->text(), "14");
  const auto last = text::read_json(frames[frames.size() - 3].data).value();
  EXPECT_EQ(write_json(last.find("choices")->items()[0]),
            R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"})");
  EXPECT_TRUE(last.find("usage")->is_null());
}

TEST(Answers, MessagesOpensOneBlockAtATime) {
  Request request;
  EXPECT_EQ(
      names(answer(request, Dialect::kMessages)),
      "message_start content_block_start ping content_block_delta content_block_delta content_block_stop "
      "content_block_start content_block_delta content_block_stop content_block_start content_block_delta "
      "content_block_stop message_delta message_stop ");
}

TEST(Answers, ResponsesNumbersItsEvents) {
  Request request;
  const auto frames = answer(request, Dialect::kResponses);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const auto event = text::read_json(frames[i].data).value();
    EXPECT_EQ(event.find("sequence_number")->text(), std::to_string(i));
    EXPECT_EQ(event.find("type")->text(), frames[i].name);
  }
  EXPECT_EQ(frames.back().name, "response.completed");
}

TEST(Answers, FailuresEndTheStream) {
  Request request;
  RequestError error;
  error.message = "out of memory";
  error.code = "internal_error";
  const std::pair<Dialect, std::string_view> expected[] = {
      {Dialect::kChat, ""}, {Dialect::kMessages, "error"}, {Dialect::kResponses, "response.failed"}};
  for (const auto& [dialect, name] : expected) {
    request.dialect = dialect;
    const auto writer = make_answer_writer(request, identity(), text::Profile::kOurs);
    std::vector<SseFrame> frames;
    writer->begin({}, frames);
    writer->push(std::vector<ParserEvent>{{Kind::kContent, -1, "half"}}, frames);
    writer->fail(error, frames);
    EXPECT_EQ(frames.back().name, name);
    EXPECT_NE(frames.back().data.find("out of memory"), std::string::npos);
    EXPECT_NE(frames.back().data, "[DONE]");
  }
}

TEST(Answers, SseText) {
  EXPECT_EQ(sse_text({"ping", "{}"}), "event: ping\ndata: {}\n\n");
  EXPECT_EQ(sse_text({"", "[DONE]"}), "data: [DONE]\n\n");
}

TEST(ArgumentStream, InputIsDecodedAtAnyCut) {
  const std::string json = R"({"input": "a\"\\\n\u00e9\ud83e\udd80 b"})";
  const std::string text = "a\"\\\né🦀 b";
  for (std::size_t cut = 0; cut <= json.size(); ++cut) {
    InputDecoder decoder;
    std::string out;
    decoder.push(json.substr(0, cut), out);
    decoder.push(json.substr(cut), out);
    EXPECT_EQ(out, text) << cut;
  }
}

TEST(ArgumentStream, CutsJoinToTheWhole) {
  const std::string json = R"({"a": "x, \"y\": }", "b": {"c": [1, "}, "]}, "d": 2.5})";
  for (std::size_t cut = 0; cut <= json.size(); ++cut) {
    ArgumentCutter cutter;
    std::string joined;
    for (const std::string& part : {json.substr(0, cut), json.substr(cut)}) {
      for (const std::string& piece : cutter.push(part))
        joined += piece;
    }
    EXPECT_EQ(joined, json) << cut;
  }
  EXPECT_EQ(ArgumentCutter().push("{\"a\": 1}"),
            (std::vector<std::string>{"{", "\"", "a", "\"", ": ", "1", "}"}));
  EXPECT_EQ(ArgumentCutter().push("{}"), std::vector<std::string>{"{}"});
}

TEST(ImageSize, RefusesAbsurdSides) {
  EXPECT_FALSE(prepared_size({0, 5}, false).ok());
  EXPECT_FALSE(prepared_size({8193, 5}, false).ok());
  EXPECT_TRUE(prepared_size({8192, 8192}, true).ok());
}

// Any size is brought into the bounds of the model: whole patches, at most 1,024 tokens.
TEST(ImageSize, StaysInBounds) {
  for (std::uint32_t width = 1; width <= 8192; width = width * 3 / 2 + 1) {
    for (std::uint32_t height = 1; height <= 8192; height = height * 3 / 2 + 1) {
      for (const bool low : {false, true}) {
        const ImageSize size = prepared_size({width, height}, low).value();
        EXPECT_EQ(size.width % 14, 0U) << width << " " << height;
        EXPECT_EQ(size.height % 14, 0U) << width << " " << height;
        EXPECT_LE(image_tokens(size), 1024U) << width << " " << height;
        EXPECT_GE(image_tokens(size), 170U) << width << " " << height;
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::dialects
