// The readable cases of tests/text/cases: format in the README there.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "dialects/recipe_test_data.h"
#include "dialects/request.h"
#include "text/prompt_constants.h"

namespace deepinfer::dialects {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOpen = "«", kClose = "»", kLineFeed = "⏎";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

struct Case {
  std::multimap<std::string, std::string> given, expected;
};

Case read_case(const fs::path& path) {
  Case result;
  auto* section = &result.given;
  auto last = section->end();
  for (const std::string& line : test_data::lines_of(path)) {
    if (line.starts_with('#')) continue;
    if (line.empty()) {
      section = &result.expected;
    } else if (line.starts_with("  ")) {
      last->second += line.substr(2);
    } else {
      const std::size_t colon = line.find(':');
      EXPECT_NE(colon, std::string::npos) << path << ": " << line;
      std::string value = line.size() > colon + 1 ? line.substr(colon + 2) : "";
      last = section->emplace(line.substr(0, colon), std::move(value));
    }
  }
  return result;
}

std::string one(const std::multimap<std::string, std::string>& fields, const std::string& key,
                const std::string& otherwise = "") {
  const auto found = fields.find(key);
  return found == fields.end() ? otherwise : found->second;
}

// A prompt as cases write it. Control tokens inside the constants are marked there too.
std::string written(const std::vector<text::PromptPiece>& pieces) {
  std::string text;
  for (const text::PromptPiece& piece : pieces) {
    text += piece.special ? std::string(kOpen) + piece.bytes + std::string(kClose) : piece.bytes;
  }
  return text;
}

std::string with_constants(std::string text, text::ModelVersion version) {
  const text::FormatConstants& format = text::format_constants(version);
  replace_all(text, kLineFeed, "\n");
  replace_all(text, "{EFFORT 75}", format.effort_prefix + "75" + format.effort_suffix);
  replace_all(text, "{EFFORT high}", format.effort_high);
  replace_all(text, "{TOOLS_BEFORE}", written(format.tools_before));
  replace_all(text, "{TOOLS_AFTER}", format.tools_after);
  replace_all(text, "{JSON_OBJECT}", format.json_object);
  replace_all(text, "{JSON_SCHEMA}", format.json_schema_lead);
  return text;
}

void run_render(const Case& test) {
  const auto version = text::model_version_from_name(one(test.given, "model"));
  const auto dialect = dialect_from_name(one(test.given, "dialect"));
  ASSERT_TRUE(version && dialect);
  auto body = text::read_json(one(test.given, "request"));
  ASSERT_TRUE(body.ok()) << body.error().message();
  if (body->find("model") == nullptr) body->set("model", "m");
  RequestContext context;
  context.models = {{"m", *version}};
  const auto request = parse_request(*dialect, write_json(*body), context);
  if (!request.ok()) {
    EXPECT_EQ(std::to_string(request.error().status) + " " + request.error().code,
              one(test.expected, "error"))
        << request.error().message;
    return;
  }
  text::EncodingOptions options;
  options.version = *version;
  EXPECT_EQ(written(text::render(request->conversation, options).pieces),
            with_constants(one(test.expected, "prompt"), *version));
}

// Ids of text in which marked spellings are control tokens.
std::vector<text::TokenId> ids_of(std::string_view text, const text::Tokenizer& tokenizer) {
  std::vector<text::TokenId> ids;
  while (!text.empty()) {
    const std::size_t open = std::min(text.find(kOpen), text.size());
    tokenizer.encode(text.substr(0, open), ids);
    text.remove_prefix(open);
    if (text.empty()) break;
    const std::size_t close = text.find(kClose);
    ids.push_back(tokenizer.special_id(text.substr(kOpen.size(), close - kOpen.size())).value());
    text.remove_prefix(close + kClose.size());
  }
  return ids;
}

std::string finish_name(text::FinishReason reason) {
  if (reason == text::FinishReason::kLength) return "length";
  return reason == text::FinishReason::kToolCalls ? "tool_calls" : "stop";
}

void run_parse(const Case& test) {
  const auto version = text::model_version_from_name(one(test.given, "model"));
  ASSERT_TRUE(version);
  const auto& tokenizer =
      *version == text::ModelVersion::kV4 ? *test_data::tokenizers().v4 : *test_data::tokenizers().v41;
  text::ParserOptions options;
  const std::string start = one(test.given, "start", "content");
  options.start = start == "reasoning" ? text::ParserStart::kReasoning
                  : start == "calls"   ? text::ParserStart::kCalls
                                       : text::ParserStart::kContent;
  options.tools_enabled = one(test.given, "tools", "off") == "on";
  std::string output = one(test.given, "output");
  replace_all(output, kLineFeed, "\n");
  const auto finish =
      one(test.given, "finish", "stop") == "length" ? text::FinishReason::kLength : text::FinishReason::kStop;
  const auto parsed = text::parse_output(tokenizer, options, ids_of(output, tokenizer), finish);
  EXPECT_EQ(parsed.reasoning, with_constants(one(test.expected, "reasoning"), *version));
  EXPECT_EQ(parsed.content, with_constants(one(test.expected, "content"), *version));
  EXPECT_EQ(finish_name(parsed.outcome.finish), one(test.expected, "finish"));
  std::vector<std::string> calls, expected_calls;
  for (const text::ParsedCall& call : parsed.calls)
    calls.push_back(call.name + " " + call.arguments);
  const auto [begin, end] = test.expected.equal_range("call");
  for (auto call = begin; call != end; ++call)
    expected_calls.push_back(call->second);
  EXPECT_EQ(calls, expected_calls);
}

void run_folder(std::string_view folder, void (*run)(const Case&)) {
  std::vector<fs::path> files;
  const fs::path root = fs::path(DEEPINFER_SOURCE_DIR) / "tests/text/cases" / folder;
  for (const auto& entry : fs::directory_iterator(root))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.filename().string());
    const Case test = read_case(file);
    ASSERT_FALSE(test.expected.empty());
    run(test);
  }
}

TEST(TextCases, Render) {
  run_folder("render", run_render);
}
TEST(TextCases, Parse) {
  run_folder("parse", run_parse);
}

}  // namespace
}  // namespace deepinfer::dialects
