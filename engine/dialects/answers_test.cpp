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

TEST(Answers, ResponsesNamesTheNamespaceOfACall) {
  Request request;
  request.custom_tools = {"s::f"};
  request.namespaces = {{"s::f", "s", "f"}};
  request.dialect = Dialect::kResponses;
  const auto writer = make_answer_writer(request, identity(), text::Profile::kOurs);
  std::vector<SseFrame> frames;
  writer->push(
      std::vector<ParserEvent>{{Kind::kCallStart, 0, "s::f"}, {Kind::kArguments, 0, R"({"input": "ls"})"}},
      frames);
  writer->finish({}, {}, 0, frames);
  const auto body = writer->body();
  EXPECT_EQ(write_json(body.find("output")->items()[0]),
            R"({"type":"custom_tool_call","id":"ctc_r_0","status":"completed","call_id":"call_0","name":"f",)"
            R"("namespace":"s","input":"ls"})");
}

// Half a character has its bytes; the chunk with the whole one brings both halves.
TEST(Answers, HalvesOfCharactersAreReportedByTheirBytes) {
  const std::vector<TokenLogprob> first = {{"a", -0.5, {{"a", -0.5}, {"\xf0", -9e9}}, false},
                                           {"\xf0\x9f", -1, {}, false}};
  const std::vector<TokenLogprob> second = {{"\xa6\x80", -2, {}, false}};
  const auto stream = [&](Dialect dialect) {
    Request request;
    request.dialect = dialect;
    request.conversation.thinking = false;
    request.sampling.logprobs = true;
    const auto writer = make_answer_writer(request, identity(), text::Profile::kOurs);
    std::vector<SseFrame> frames, texts;
    writer->begin({}, frames);
    writer->add_tokens(first);
    writer->push(std::vector<ParserEvent>{{Kind::kContent, -1, "a"}}, texts);
    writer->add_tokens(second);
    writer->push(std::vector<ParserEvent>{{Kind::kContent, -1, "🦀"}}, texts);
    writer->finish({}, {}, 0, frames);
    return std::pair(texts, writer->body());
  };
  const auto [chunks, chat] = stream(Dialect::kChat);
  const std::string half = R"({"token":"\\xf0\\x9f","logprob":-1.0,"bytes":[240,159],"top_logprobs":[]})";
  const std::string rest = R"({"token":"\\xa6\\x80","logprob":-2.0,"bytes":[166,128],"top_logprobs":[]})";
  EXPECT_NE(chunks[0].data.find(R"("token":"\\xf0","logprob":-9999.0,"bytes":[240]})"), std::string::npos)
      << chunks[0].data;
  EXPECT_NE(chunks[0].data.find(half), std::string::npos) << chunks[0].data;
  EXPECT_NE(chunks[1].data.find("\"content\":[" + rest + "]"), std::string::npos) << chunks[1].data;
  EXPECT_NE(write_json(chat).find(half + "," + rest), std::string::npos) << write_json(chat);
  const auto [events, response] = stream(Dialect::kResponses);
  EXPECT_NE(write_json(response).find(half + "," + rest), std::string::npos) << write_json(response);
  EXPECT_NE(events.back().data.find("\"logprobs\":[" + rest + "]"), std::string::npos) << events.back().data;
  const auto [pieces, completion] = stream(Dialect::kCompletions);
  const std::string whole = write_json(*completion.find("choices"));
  EXPECT_NE(whole.find(R"("tokens":["a","bytes:\\xf0\\x9f","bytes:\\xa6\\x80"])"), std::string::npos)
      << whole;
  EXPECT_NE(whole.find(R"("text_offset":[0,1,2])"), std::string::npos) << whole;
  EXPECT_EQ(pieces.size(), 2U);
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
