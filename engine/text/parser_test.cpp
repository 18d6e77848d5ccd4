#include "text/parser.h"

#include <functional>
#include <random>

#include "text/encoding.h"
#include "text/json_text.h"
#include "text/small_tokenizer.h"
#include "text/tokenizer_test_data.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

using Ids = std::vector<TokenId>;

const Tokenizer& v41() {
  return test_data::shipped().v41;
}

const std::string kOpen = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n";
const std::string kClose = "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

std::string parameter(const std::string& key, const std::string& is_string, const std::string& value) {
  std::string text = "<｜DSML｜ parameter name=\"";
  return text.append(key)
      .append("\" string=\"")
      .append(is_string)
      .append("\">")
      .append(value)
      .append("</｜DSML｜ parameter>");
}

ParserOptions tools(std::string schema = {}) {
  ParserOptions options;
  options.tools_enabled = true;
  options.tools = {{"f", std::move(schema)}};
  return options;
}

ParsedOutput parse(const ParserOptions& options, const std::string& text,
                   FinishReason reason = FinishReason::kStop) {
  return parse_output(v41(), options, v41().encode_with_specials(text), reason);
}

// Arguments of the only call.
std::string arguments(const ParserOptions& options, const std::string& parameters,
                      FinishReason reason = FinishReason::kStop) {
  const ParsedOutput output = parse(options, kOpen + parameters + kClose, reason);
  EXPECT_EQ(output.calls.size(), 1U);
  return output.calls.empty() ? "" : output.calls[0].arguments;
}

struct Streamed {
  ParsedOutput output;
  std::vector<ParserEvent> events;
};

// `cuts`: sizes of the pushes are drawn from this.
Streamed stream_ids(const ParserOptions& options, std::span<const TokenId> ids, FinishReason reason,
                    const std::function<std::size_t()>& cuts) {
  Streamed result;
  OutputParser parser(v41(), options);
  while (!ids.empty()) {
    const std::size_t size = std::min(cuts(), ids.size());
    std::vector<ParserEvent> events;
    parser.push(ids.first(size), events);
    for (const ParserEvent& event : events) {
      EXPECT_TRUE(valid_utf8_prefix(event.text) == event.text.size());
      EXPECT_TRUE(!event.text.empty() || event.kind == ParserEvent::Kind::kCallStart);
    }
    result.events.insert(result.events.end(), events.begin(), events.end());
    ids = ids.subspan(size);
  }
  result.output.outcome = parser.finish(reason, result.events);
  accumulate(result.events, result.output);
  return result;
}

ParsedOutput stream_text(const ParserOptions& options, std::string_view text, FinishReason reason,
                         const std::function<std::size_t()>& cuts) {
  ParsedOutput output;
  std::vector<ParserEvent> events;
  OutputParser parser(v41(), options);
  while (!text.empty()) {
    const std::size_t size = std::min(cuts(), text.size());
    parser.push_text(text.substr(0, size), 1, events);
    text.remove_prefix(size);
  }
  output.outcome = parser.finish(reason, events);
  accumulate(events, output);
  return output;
}

void expect_same(const ParsedOutput& left, const ParsedOutput& right, const std::string& where) {
  EXPECT_EQ(left.reasoning, right.reasoning) << where;
  EXPECT_EQ(left.content, right.content) << where;
  ASSERT_EQ(left.calls.size(), right.calls.size()) << where;
  for (std::size_t i = 0; i < left.calls.size(); ++i) {
    EXPECT_EQ(left.calls[i].name, right.calls[i].name) << where;
    EXPECT_EQ(left.calls[i].arguments, right.calls[i].arguments) << where;
  }
  EXPECT_EQ(left.outcome.finish, right.outcome.finish) << where;
  EXPECT_EQ(left.outcome.stop, right.outcome.stop) << where;
  EXPECT_EQ(left.outcome.repairs, right.outcome.repairs) << where;
}

ParserOptions options_of_row(const nlohmann::ordered_json& row) {
  ParserOptions options;
  const auto& given = row.at("options");
  options.tools_enabled = given.value("tools", false);
  options.json_mode = given.value("json", false);
  options.stops = given.value("stops", std::vector<std::string>());
  if (given.contains("stage") && given["stage"] == "reasoning_start") options.start = ParserStart::kReasoning;
  return options;
}

TEST(OutputParser, ResultsDoNotDependOnTheCuts) {
  std::mt19937_64 random(17);
  for (const auto& row : test_data::cases("parse")) {
    const auto id = row.at("id").get<std::string>();
    const auto ids = row.at("ids").get<Ids>();
    ParserOptions options = options_of_row(row);
    for (const ParserProfile profile : {ParserProfile::kOurs, ParserProfile::kPackage}) {
      options.profile = profile;
      for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength}) {
        const ParsedOutput whole = parse_output(v41(), options, ids, reason);
        expect_same(stream_ids(options, ids, reason, [] { return 1; }).output, whole, id);
        expect_same(stream_ids(options, ids, reason, [&] { return 1 + random() % 5; }).output, whole, id);
        if (!row.at("text").is_string()) continue;
        const auto text = row["text"].get<std::string>();
        const ParsedOutput whole_text = stream_text(options, text, reason, [&] { return text.size(); });
        expect_same(stream_text(options, text, reason, [] { return 1; }), whole_text, id);
        expect_same(stream_text(options, text, reason, [&] { return 1 + random() % 9; }), whole_text, id);
      }
    }
  }
}

// Where the ids are the text, reading the text gives the same; control tokens without a meaning in it apart.
TEST(OutputParser, TextModeAgreesWithIds) {
  std::size_t compared = 0;
  for (const auto& row : test_data::cases("parse")) {
    if (!row.at("text").is_string()) continue;
    const auto text = row["text"].get<std::string>();
    if (text.find("<｜end▁of▁sentence｜>") != std::string::npos) continue;
    ++compared;
    ParserOptions options = options_of_row(row);
    const auto ids = row.at("ids").get<Ids>();
    const ParsedOutput by_id = parse_output(v41(), options, ids, FinishReason::kStop);
    expect_same(stream_text(options, text, FinishReason::kStop, [&] { return text.size(); }), by_id,
                row.at("id"));
    options.match_text = true;
    expect_same(parse_output(v41(), options, ids, FinishReason::kStop), by_id, row.at("id"));
  }
  EXPECT_GT(compared, 300U);
}

// Whatever a model writes: no half characters, no dependence on cuts, and arguments that parse when calls are the finish.
TEST(OutputParser, DamagedOutputsKeepThePromises) {
  std::mt19937_64 random(99);
  const auto rows = test_data::cases("parse");
  const ControlIds& control = v41().control();
  const Ids pieces = {
      control.dsml, control.end_think, control.think, 30, 1718, 201, 4, 32, 1281, 3574, 102, 10767, 34756,
      10699};
  for (int round = 0; round < 1500; ++round) {
    const auto& row = rows[random() % rows.size()];
    auto ids = row.at("ids").get<Ids>();
    for (std::size_t edits = 1 + random() % 4; edits > 0 && !ids.empty(); --edits) {
      const auto at = ids.begin() + static_cast<std::ptrdiff_t>(random() % ids.size());
      switch (random() % 3) {
        case 0: ids.erase(at); break;
        case 1: ids.insert(at, pieces[random() % pieces.size()]); break;
        default: ids.erase(at, std::min(at + static_cast<std::ptrdiff_t>(random() % 8), ids.end())); break;
      }
    }
    ParserOptions options = options_of_row(row);
    options.tools = {
        {"f",
         R"({"properties":{"a":{"type":"integer"},"k_1":{"type":["string","null"]},"n":{"type":"object"}}})"}};
    const ParsedOutput whole = parse_output(v41(), options, ids, FinishReason::kStop);
    expect_same(stream_ids(options, ids, FinishReason::kStop, [&] { return 1 + random() % 4; }).output, whole,
                row.at("id"));
    if (whole.outcome.finish != FinishReason::kToolCalls) continue;
    for (const ParsedCall& call : whole.calls) {
      ASSERT_TRUE(is_json(call.arguments) && json_types(call.arguments) == kJsonObject) << call.arguments;
    }
  }
}

TEST(OutputParser, ValuesFollowTheSchema) {
  const ParserOptions typed = tools(
      R"({"type":"object","properties":{"s":{"type":"string"},"i":{"type":"integer"},"b":{"type":["boolean","null"]},
      "o":{"anyOf":[{"type":"object"},{"type":"array"}]},"e":{"enum":[1,2]},"x":{}}})");
  // 5.3.1: what is not JSON and may be a string is one; Python literals and trailing commas are mended.
  EXPECT_EQ(arguments(typed, parameter("s", "false", "Paris")), R"({"s": "Paris"})");
  EXPECT_EQ(arguments(typed, parameter("s", "false", "True")), R"({"s": "True"})");
  EXPECT_EQ(arguments(typed, parameter("b", "false", "True")), R"({"b": true})");
  EXPECT_EQ(arguments(typed, parameter("o", "false", "{\"a\": [None, 'x', 1,],}")),
            R"({"o": "{\"a\": [None, 'x', 1,],}"})");
  EXPECT_EQ(arguments(typed, parameter("o", "false", "{\"a\": [None, \"True,]\", 1, ], }")),
            R"({"o": {"a": [null, "True,]", 1 ] }})");
  EXPECT_EQ(arguments(typed, parameter("x", "false", "None")), R"({"x": null})");
  EXPECT_EQ(arguments(typed, parameter("i", "false", "12345678901234567890123")),
            R"({"i": 12345678901234567890123})");
  // 5.3.3: strings where the schema has none.
  EXPECT_EQ(arguments(typed, parameter("i", "true", "42")), R"({"i": 42})");
  EXPECT_EQ(arguments(typed, parameter("i", "true", "4.5")), R"({"i": "4.5"})");
  EXPECT_EQ(arguments(typed, parameter("i", "true", "many")), R"({"i": "many"})");
  EXPECT_EQ(arguments(typed, parameter("e", "true", "2")), R"({"e": 2})");
  EXPECT_EQ(arguments(typed, parameter("o", "true", "[1]")), R"({"o": [1]})");
  EXPECT_EQ(arguments(typed, parameter("s", "true", "42")), R"({"s": "42"})");
  EXPECT_EQ(arguments(typed, parameter("x", "true", "42")), R"({"x": "42"})");
  // The package profile and a tool without a usable schema change nothing.
  ParserOptions package = typed;
  package.profile = ParserProfile::kPackage;
  EXPECT_EQ(arguments(package, parameter("i", "true", "42")), R"({"i": "42"})");
  EXPECT_EQ(arguments(tools("not json"), parameter("i", "true", "42")), R"({"i": "42"})");
}

TEST(OutputParser, WrapperKeysAreOpenedOnlyWhenTheyFit) {
  const ParserOptions typed =
      tools(R"({"properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})");
  EXPECT_EQ(arguments(typed, parameter("arguments", "false", "{\"a\": 1}")), R"({"a": 1})");
  EXPECT_EQ(arguments(typed, parameter("input", "true", "{\"a\": 1, \"b\": \"x\"}")),
            R"({"a": 1, "b": "x"})");
  EXPECT_EQ(arguments(typed, parameter("arguments", "false", "{\"b\": \"x\"}")),
            R"({"arguments": {"b": "x"}})");
  EXPECT_EQ(arguments(typed, parameter("arguments", "false", "{\"a\": \"1\"}")),
            R"({"arguments": {"a": "1"}})");
  EXPECT_EQ(arguments(typed, parameter("arguments", "false", "{\"a\": 1, \"z\": 2}")),
            R"({"arguments": {"a": 1, "z": 2}})");
  EXPECT_EQ(
      arguments(typed, parameter("arguments", "false", "{\"a\": 1}") + "\n" + parameter("b", "true", "y")),
      R"({"arguments": {"a": 1}, "b": "y"})");
  EXPECT_EQ(arguments(typed, parameter("b", "true", "y") + "\n" + parameter("input", "false", "{\"a\": 1}")),
            R"({"b": "y", "input": {"a": 1}})");
  EXPECT_EQ(arguments(tools(), parameter("arguments", "false", "{\"a\": 1}")), R"({"arguments": {"a": 1}})");
  const std::string owner = R"({"properties":{"input":{"type":"object"},"a":{"type":"integer"}}})";
  EXPECT_EQ(arguments(tools(owner), parameter("input", "false", "{\"a\": 1}")), R"({"input": {"a": 1}})");
}

TEST(OutputParser, LiteralClosingMarksInsideAValue) {
  const std::string odd = "a</｜DSML｜ other>b</｜DSML｜> c";
  EXPECT_EQ(arguments(tools(), parameter("s", "true", odd)), "{\"s\": \"" + odd + "\"}");
}

TEST(OutputParser, CallsAreCutByLengthAndClosedAtTheEndOfTheTurn) {
  const std::string cut =
      kOpen + parameter("a", "false", "1") + "\n<｜DSML｜ parameter name=\"b\" string=\"true\">hal";
  const ParsedOutput length = parse(tools(), cut, FinishReason::kLength);
  EXPECT_EQ(length.calls.at(0).arguments, R"({"a": 1, "b": "hal)");
  EXPECT_EQ(length.outcome.finish, FinishReason::kLength);
  EXPECT_TRUE(length.outcome.open_call);
  const ParsedOutput ended = parse(tools(), cut);
  EXPECT_EQ(ended.calls.at(0).arguments, R"({"a": 1, "b": "hal"})");
  EXPECT_EQ(ended.outcome.finish, FinishReason::kToolCalls);
  EXPECT_TRUE(ended.outcome.open_call);
  EXPECT_EQ(parse(tools(), cut, FinishReason::kContentFilter).outcome.finish, FinishReason::kContentFilter);
  EXPECT_EQ(parse(tools(), cut, FinishReason::kAborted).outcome.finish, FinishReason::kAborted);
  EXPECT_EQ(parse(tools(), cut, FinishReason::kNone).outcome.finish, FinishReason::kStop);
  EXPECT_FALSE(parse(tools(), kOpen + kClose).outcome.open_call);
}

TEST(OutputParser, RoleTokensAndStopIdsEndTheTurn) {
  for (const char* stop : {"<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜System｜>",
                           "<｜Assistant｜>", "<｜latest_reminder｜>"}) {
    const ParsedOutput output = parse({}, std::string("Hi") + stop + "more", FinishReason::kLength);
    EXPECT_EQ(output.content, "Hi");
    EXPECT_EQ(output.outcome.finish, FinishReason::kStop) << stop;
    EXPECT_EQ(output.outcome.stop_id, v41().special_id(stop));
    EXPECT_EQ(output.outcome.completion_tokens, 2U);
  }
  ParserOptions options;
  options.stop_ids = v41().encode("!");
  const ParsedOutput output = parse(options, "Hello! there");
  EXPECT_EQ(output.content, "Hello");
  EXPECT_EQ(output.outcome.stop_id, options.stop_ids[0]);
}

TEST(OutputParser, StopStringsAndTheirSwitches) {
  ParserOptions options;
  options.stops = {"zzz", "END"};
  ParsedOutput output = parse(options, "one END two", FinishReason::kLength);
  EXPECT_EQ(output.content, "one ");
  EXPECT_EQ(output.outcome.stop, 1U);
  EXPECT_EQ(output.outcome.finish, FinishReason::kStop);
  options.include_stop = true;
  EXPECT_EQ(parse(options, "one END two").content, "one END");
  options.start = ParserStart::kReasoning;
  EXPECT_EQ(parse(options, "r END</think>a END").content, "a END");
  options.stop_in_reasoning = true;
  output = parse(options, "r END</think>a END");
  EXPECT_EQ(output.reasoning, "r END");
  EXPECT_EQ(output.content, "");
}

// A stop string is looked for in what the client reads: U+FFFD there is that character, whatever bytes it stands for.
TEST(OutputParser, StopStringsMatchReplacedBytes) {
  struct Case {
    std::string_view output, stop, content;  // without a match: all of it
    bool found;
  };
  for (const auto& [output, stop, content, found] : {
           Case{"ab\xF0\x9F\xA6 cd", "\uFFFD", "ab", true},      // three bytes, one character
           Case{"ab\xC0\x80 cd", "b\uFFFD\uFFFD c", "a", true},  // two that are none
           Case{"ab\uFFFD cd", "\uFFFD", "ab", true},            // the character itself
           Case{"ab\xF0\x9F", "\uFFFD", "ab", true},             // cut by the end
           Case{"ab\xF0\x9F<", "\uFFFD!", "ab\uFFFD<", false},   // nearly
           Case{"ab🦀 cd", "\uFFFD", "ab🦀 cd", false},          // in pieces on the way, whole at last
           Case{"ab\xE3\x81\x82", "\x81", "abあ", false},        // no stop of half a character
           Case{"ab\x81 cd", "\x81", "ab", true},                // broken on both sides
       }) {
    for (const std::size_t piece : {std::size_t{1}, output.size()}) {
      ParserOptions options;
      options.stops = {std::string(stop)};
      OutputParser parser(v41(), options);
      std::vector<ParserEvent> events;
      for (std::size_t at = 0; at < output.size(); at += piece)
        parser.push_text(output.substr(at, piece), 1, events);
      ParsedOutput parsed;
      parsed.outcome = parser.finish(FinishReason::kLength, events);
      accumulate(events, parsed);
      EXPECT_EQ(parsed.content, content) << output;
      EXPECT_EQ(parsed.outcome.stop.has_value(), found) << output;
      EXPECT_EQ(parsed.outcome.finish, found ? FinishReason::kStop : FinishReason::kLength) << output;
    }
  }
}

TEST(OutputParser, IgnoredEndsLeaveNothingAndStopIdsStillEnd) {
  ParserOptions options;
  options.ignore_eos = true;
  const std::string text = "Hi<｜end▁of▁sentence｜> there<｜User｜>!";
  const auto ids = v41().encode_with_specials(text);
  ParsedOutput output = parse(options, text, FinishReason::kLength);
  EXPECT_EQ(output.content, "Hi there!");
  EXPECT_EQ(output.outcome.finish, FinishReason::kLength);
  EXPECT_EQ(output.outcome.completion_tokens, ids.size());
  options.stop_ids = {*v41().special_id("<｜User｜>")};
  output = parse(options, text, FinishReason::kLength);
  EXPECT_EQ(output.content, "Hi there");
  EXPECT_EQ(output.outcome.stop_id, options.stop_ids[0]);
  options.raw = true;
  EXPECT_EQ(parse(options, text, FinishReason::kLength).content, "Hi there");
}

TEST(OutputParser, StopStringsCountOnceThereAreEnoughTokens) {
  ParserOptions options;
  options.stops = {"b"};
  const auto content = [&](std::size_t least) {
    options.min_tokens = least;
    OutputParser parser(v41(), options);
    std::vector<ParserEvent> events;
    for (const char* token : {"a", "b", "a", "b"})
      parser.push(v41().encode(token), events);
    ParsedOutput output;
    output.outcome = parser.finish(FinishReason::kLength, events);
    accumulate(events, output);
    return output.content + (output.outcome.stop ? "|" : "");
  };
  EXPECT_EQ(content(0), "a|");
  EXPECT_EQ(content(1), "a|");
  EXPECT_EQ(content(2), "aba|");
  EXPECT_EQ(content(3), "aba|");
  EXPECT_EQ(content(4), "abab");
}

TEST(OutputParser, CallsWithoutToolsAreDroppedOrSurfaced) {
  const std::string text = "before\n\n" + kOpen + kClose + " after";
  EXPECT_EQ(parse({}, text).content, "before after");
  EXPECT_EQ(parse({}, text).outcome.finish, FinishReason::kStop);
  EXPECT_GT(parse({}, text).outcome.repairs, 0U);
  EXPECT_EQ(parse({}, "the <｜DSML｜ prefix").content, "the <｜DSML｜ prefix");
  ParserOptions options;
  options.surface_stray_calls = true;
  EXPECT_EQ(parse(options, text).content, text);
}

// A call comes back to the prompt as it was written, however it was written; one that is not whole does not.
TEST(OutputParser, CallsAreKeptAsTheyWereWritten) {
  const auto written = [](const std::string& output, FinishReason reason = FinishReason::kStop) {
    std::vector<std::string> texts;
    for (const ParsedCall& call : parse(tools(), output, reason).calls) {
      std::string text;
      for (const PromptPiece& piece : call.written) {
        EXPECT_EQ(piece.special, piece.bytes == "｜DSML｜" || piece.bytes == "</think>") << piece.bytes;
        text += piece.bytes;
      }
      texts.push_back(std::move(text));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  const std::string end = "\n</｜DSML｜ calls>";
  const std::string usual =
      "<｜DSML｜ invoke name=\"f\">\n" + parameter("a", "false", "[1,2]") + "\n</｜DSML｜ invoke>";
  const std::string odd = "<｜DSML｜invoke  name='f'>" + parameter("a", "true", "x") + "\n\n" +
                          parameter("b", "false", "1.50") + " </｜DSML｜invoke>";
  const std::string bare = "<｜DSML｜ invoke name=\"f\"></｜DSML｜ invoke>";
  const std::string open =
      "<｜DSML｜ invoke name=\"f\">" + std::string("<｜DSML｜ parameter name=\"a\" string=\"true\">x");
  for (const std::string& call : {usual, odd, bare, open + "</｜DSML｜ invoke>"})
    EXPECT_EQ(written("<｜DSML｜ calls>\n" + call + end), Texts{call});
  EXPECT_EQ(written("<｜DSML｜ calls>\n" + usual + "\n\n" + odd + end), (Texts{usual, odd}));
  EXPECT_EQ(written("<｜DSML｜ calls>\n" + open + end), Texts{""});
  EXPECT_EQ(written("<｜DSML｜ calls>\n" + open, FinishReason::kLength), Texts{""});
  EXPECT_EQ(written("<｜DSML｜ calls>\n" + open), Texts{""});
  // Also when it is the prompt of another version that it goes into.
  Conversation conversation;
  Message turn;
  turn.role = Role::kAssistant;
  turn.tool_calls.push_back(
      {"id", "f", "{}", parse(tools(), "<｜DSML｜ calls>\n" + odd + end).calls[0].written});
  conversation.messages = {Message::of_text(Role::kUser, "u"), turn};
  const RenderedPrompt prompt = render(conversation, {});
  const std::size_t at = prompt.text().find(odd);
  ASSERT_NE(at, std::string::npos) << prompt.text();
  const auto special = prompt.special_ranges();
  EXPECT_EQ(
      std::count_if(special.begin(), special.end(),
                    [&](const auto& range) { return range.first >= at && range.second <= at + odd.size(); }),
      6);
}

TEST(OutputParser, RawOutputIsAllText) {
  ParserOptions options;
  options.start = ParserStart::kContentContinuation;
  options.raw = true;
  const std::string text = "\n\na</think>b" + kOpen + parameter("a", "true", "x") + kClose + "<think>";
  EXPECT_EQ(parse(options, text).content, text);
  options.stops = {"b<"};
  const ParsedOutput cut = parse(options, text);
  EXPECT_EQ(cut.content, "\n\na</think>");
  EXPECT_TRUE(cut.calls.empty());
}

// What is shown of an output, id by id: the ids of the text it is part of, and no others.
TEST(OutputParser, ShownIdsSpellTheText) {
  ParserOptions options = tools();
  options.start = ParserStart::kReasoning;
  options.stops = {" STOP here"};
  const std::string call = kOpen + parameter("a", "true", "x") + kClose;
  for (const auto& [output, reasoning, content] :
       {std::tuple{std::string("\nthink 🦀</think>\n\nthe answer"), "think 🦀", "the answer"},
        std::tuple{std::string("hm</think>text\n\n") + call, "hm", "text"},
        std::tuple{std::string("hm</think>one ST STOP here and more"), "hm", "one ST"},
        std::tuple{std::string("hm</think>< a <b STO"), "hm", "< a <b STO"}}) {
    const std::vector<TokenId> ids = v41().encode_with_specials(output);
    OutputParser parser(v41(), options);
    std::vector<ParserEvent> events;
    std::vector<ShownToken> shown;
    for (const TokenId id : ids) {
      parser.push({&id, 1}, events);
      parser.take_shown(shown);
    }
    parser.finish(FinishReason::kStop, events);
    parser.take_shown(shown);
    std::string spelled[2];
    for (const ShownToken& token : shown)
      spelled[token.kind == ParserEvent::Kind::kContent ? 1 : 0] += v41().token_bytes(ids[token.index]);
    EXPECT_EQ(spelled[0], reasoning) << output;
    EXPECT_EQ(spelled[1], content) << output;
  }
}

TEST(OutputParser, UsageCountsIds) {
  ParserOptions options;
  options.start = ParserStart::kReasoning;
  const Ids ids = v41().encode_with_specials("\nthink 🦀\n</think>\n\nHi 🦀<｜end▁of▁sentence｜>");
  const auto tag =
      static_cast<std::size_t>(std::find(ids.begin(), ids.end(), v41().control().end_think) - ids.begin());
  const ParsedOutput output = parse_output(v41(), options, ids, FinishReason::kStop);
  EXPECT_EQ(output.outcome.reasoning_tokens, tag + 1);
  EXPECT_EQ(output.outcome.completion_tokens, ids.size());
  EXPECT_EQ(output.content, "Hi 🦀");
}

TEST(OutputParser, StreamsAtOnce) {
  OutputParser parser(v41(), tools());
  std::vector<ParserEvent> events;
  const auto push = [&](const std::string& text) {
    events.clear();
    parser.push(v41().encode_with_specials(text), events);
    std::string seen;
    for (const ParserEvent& event : events)
      seen += (event.kind == ParserEvent::Kind::kCallStart ? "#" : "") + event.text;
    return seen;
  };
  EXPECT_EQ(push("2 <"), "2 ");  // held: may open calls
  EXPECT_EQ(push(" 3"), "< 3");  // refuted: out at once
  EXPECT_EQ(push("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_"), "");
  EXPECT_EQ(push("weather\""), "#get_weather");  // the name when its quote closes
  EXPECT_EQ(push(">\n<｜DSML｜ parameter name=\"city\" string=\"true\">"), "{\"city\": \"");
  EXPECT_EQ(push("Par"), "Par");  // strings stream
  EXPECT_EQ(push("is</"), "is");
  EXPECT_EQ(push("｜DSML｜ parameter>"), "\"");
  EXPECT_FALSE(parser.ended());
  EXPECT_EQ(push("\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"), "}");
  EXPECT_TRUE(parser.ended());
  EXPECT_EQ(push("anything"), "");
  EXPECT_EQ(parser.finish(FinishReason::kStop, events).finish, FinishReason::kToolCalls);
}

TEST(OutputParser, ParsersShareNothing) {
  OutputParser first(v41(), tools()), second(v41(), {});
  std::vector<ParserEvent> one, two;
  for (const TokenId id : v41().encode_with_specials(kOpen + parameter("a", "true", "x") + kClose)) {
    first.push({&id, 1}, one);
    second.push(v41().encode("y"), two);
  }
  first.finish(FinishReason::kStop, one);
  ParsedOutput left, right;
  accumulate(one, left);
  accumulate(two, right);
  EXPECT_EQ(left.calls.at(0).arguments, R"({"a": "x"})");
  EXPECT_EQ(right.content.find_first_not_of('y'), std::string::npos);
}

// The demo tokenizer has no placeholder families: the parser needs the required control tokens only.
TEST(OutputParser, WorksWithASmallTokenizer) {
  const auto tokenizer = Tokenizer::parse(SmallTokenizer().json(), "small");
  ASSERT_TRUE(tokenizer.ok());
  ParserOptions options = tools();
  options.start = ParserStart::kReasoning;
  const std::string text = "why</think>hello\n\n" + kOpen + parameter("a", "true", "日本") + kClose;
  const ParsedOutput output =
      parse_output(*tokenizer, options, tokenizer->encode_with_specials(text), FinishReason::kStop);
  EXPECT_EQ(output.reasoning, "why");
  EXPECT_EQ(output.content, "hello");
  EXPECT_EQ(output.calls.at(0).arguments, R"({"a": "日本"})");
}

}  // namespace
}  // namespace deepinfer::text
