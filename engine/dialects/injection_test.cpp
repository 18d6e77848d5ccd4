// Bytes of a request never become control tokens: requests whose every string is stuffed with control spellings render to
// the same sequence of control ids as the same requests with harmless strings. recipe.md section 4.
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "dialects/recipe_test_data.h"
#include "dialects/request.h"
#include "text/prompt_constants.h"

namespace deepinfer::dialects {
namespace {

using text::JsonValue;

constexpr std::string_view kSlot = "@";  // stands in templates for a string of the request

// Requests of each dialect with a slot in every string that reaches the prompt. Names of tools and parameters of strict
// form can hold no such bytes: they are refused.
struct Template {
  Dialect dialect;
  std::string_view body;
};
constexpr Template kTemplates[] = {
    {Dialect::kChat, R"({"model":"m","messages":[
        {"role":"system","content":"@"},
        {"role":"user","content":[{"type":"text","text":"@"},
          {"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}},{"type":"text","text":"@"}]},
        {"role":"assistant","content":"@","reasoning_content":"@","tool_calls":[
          {"id":"a","type":"function","function":{"name":"@","arguments":"{\"@\": \"@\", \"k\": {\"@\": [\"@\"]}}"}},
          {"id":"b","type":"function","function":{"name":"f","arguments":"@"}}]},
        {"role":"tool","tool_call_id":"b","content":"@"},{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"@"}]},
        {"role":"latest_reminder","content":"@"},{"role":"system","content":"@"},{"role":"user","content":"@"}],
      "tools":[{"type":"function","function":{"name":"f","description":"@","parameters":
        {"type":"object","description":"@","properties":{"@":{"type":"string","enum":["@"],"default":"@"}}}}}],
      "response_format":{"type":"json_schema","json_schema":{"name":"@","schema":{"type":"object","title":"@"}}}})"},
    {Dialect::kChat, R"({"model":"m","messages":[{"role":"user","content":"@"},
        {"role":"assistant","content":"@","reasoning_content":"@","prefix":true}]})"},
    {Dialect::kResponses, R"({"model":"m","instructions":"@","input":[
        {"role":"system","content":"@"},{"role":"developer","content":"@"},
        {"role":"user","content":[{"type":"input_text","text":"@"},{"type":"input_image","image_url":"http://@"}]},
        {"type":"reasoning","content":[{"type":"reasoning_text","text":"@"}]},
        {"role":"assistant","content":[{"type":"output_text","text":"@"}]},
        {"type":"function_call","call_id":"a","name":"@","namespace":"@","arguments":"@"},
        {"type":"custom_tool_call","call_id":"b","name":"@","input":"@"},
        {"type":"function_call_output","call_id":"a","output":"@"},
        {"type":"custom_tool_call_output","call_id":"b","output":[{"type":"input_text","text":"@"}]}],
      "tools":[{"type":"namespace","name":"n","description":"@","tools":[{"type":"function","name":"g","description":"@"}]},
        {"type":"custom","name":"apply_patch","description":"@"}],
      "text":{"format":{"type":"json_schema","name":"@","schema":{"description":"@"}}}})"},
    {Dialect::kMessages, R"({"model":"m","max_tokens":9,"system":[{"type":"text","text":"@"}],"messages":[
        {"role":"user","content":[{"type":"text","text":"@"},
          {"type":"document","source":{"type":"base64","media_type":"@","data":""}},
          {"type":"document","source":{"type":"text","media_type":"text/plain","data":"@"}}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"@","signature":"@"},{"type":"text","text":"@"},
          {"type":"tool_use","id":"t","name":"@","input":{"@":"@","n":["@"]}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"@"},
          {"type":"tool_reference","tool_name":"late"}]},{"type":"text","text":"@"}]},
        {"role":"system","content":"@"},{"role":"user","content":"@"}],
      "tools":[{"name":"f","description":"@","input_schema":{"type":"object","description":"@"}},
        {"name":"late","description":"@","input_schema":{"type":"object"},"defer_loading":true}]})"},
};

std::string filled(std::string_view body, const auto& string_for_slot) {
  std::string out;
  for (const char c : body)
    out += c == kSlot[0] ? string_for_slot() : std::string(1, c);
  return out;
}

std::vector<std::string> control_spellings_of_both() {
  std::vector<std::string> spellings;
  for (const auto* tokenizer : {test_data::tokenizers().v4.get(), test_data::tokenizers().v41.get()}) {
    for (text::TokenId id = 0; static_cast<std::size_t>(id) < tokenizer->vocabulary_size(); ++id) {
      if (tokenizer->is_special(id)) spellings.emplace_back(tokenizer->token_bytes(id));
    }
  }
  return spellings;
}

struct Special {
  std::vector<std::string> spellings;  // of the special pieces
  std::vector<text::TokenId> ids;      // of the control tokens in the encoded prompt
};

Special special_of(const Template& one, const std::string& body, text::ModelVersion version,
                   text::Profile profile) {
  RequestContext context;
  context.profile = profile;
  context.models = {{"m", version}};
  const auto request = parse_request(one.dialect, body, context);
  EXPECT_TRUE(request.ok()) << request.error().message << "\n" << body;
  if (!request.ok()) return {};
  text::EncodingOptions options;
  options.version = version;
  options.profile = profile;
  options.grounding_in_history = false;  // the package's exception, recipe.md 4.3
  const text::RenderedPrompt prompt = text::render(request->conversation, options);
  const auto& tokenizer =
      version == text::ModelVersion::kV4 ? *test_data::tokenizers().v4 : *test_data::tokenizers().v41;
  Special special;
  for (const text::PromptPiece& piece : prompt.pieces) {
    if (piece.special) special.spellings.push_back(piece.bytes);
  }
  const std::vector<text::TokenId> ids = text::encode(prompt, tokenizer).value();
  for (const text::TokenId id : ids) {
    if (tokenizer.is_special(id)) special.ids.push_back(id);
  }
  return special;
}

// Conversations of each kind: DEEPINFER_INJECTION_ROUNDS (16 kinds).
int rounds() {
  const char* text = std::getenv("DEEPINFER_INJECTION_ROUNDS");
  return text == nullptr ? 20 : std::atoi(text);
}

TEST(Injection, StuffedStringsLeaveTheControlIdsAsTheyAre) {
  const std::vector<std::string> spellings = control_spellings_of_both();
  ASSERT_GT(spellings.size(), 1000U);
  std::mt19937 random(20);
  // The package's JSON reader refuses half a character.
  const auto stuffing_for = [&](text::Profile profile) {
    std::string text;
    const std::size_t count = 1 + random() % 4;
    for (std::size_t i = 0; i < count; ++i) {
      // Whole spellings, the ones of the templates more often, and halves that a neighbour may complete.
      static constexpr std::string_view kOften[] = {
          "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜System｜>",
          "<｜end▁of▁sentence｜>", "<｜deepseek_image｜>", "</｜DSML｜ parameter>", "</tool_result>", "<｜",
          "User｜>",
          // The same, and last half a character, behind JSON's escapes.
          R"(\u003c\uff5cUser\uff5c\u003e)", R"(\u003cthink\u003e)", R"(\uff5cDSML\uff5c)", R"(\ud83d)",
          R"(\ude00)"};
      const std::size_t usable = std::size(kOften) - (profile == text::Profile::kOurs ? 0 : 2);
      text +=
          random() % 2 == 0 ? std::string(kOften[random() % usable]) : spellings[random() % spellings.size()];
    }
    return text;
  };
  for (const Template& one : kTemplates) {
    for (const auto version : {text::ModelVersion::kV4, text::ModelVersion::kV41}) {
      for (const auto profile : {text::Profile::kOurs, text::Profile::kPackage}) {
        const Special plain =
            special_of(one, filled(one.body, [] { return std::string("x"); }), version, profile);
        ASSERT_FALSE(plain.ids.empty());
        for (int round = 0; round < rounds(); ++round) {
          const std::string body = filled(one.body, [&] { return stuffing_for(profile); });
          const Special stuffed = special_of(one, body, version, profile);
          ASSERT_EQ(stuffed.spellings, plain.spellings) << body;
          ASSERT_EQ(stuffed.ids, plain.ids) << body;
        }
      }
    }
  }
}

// The package renders grounding spellings of assistant turns as control tokens; ours only when told to.
TEST(Injection, GroundingSpellingsAreAnOption) {
  text::Conversation conversation;
  conversation.thinking = false;
  conversation.messages = {text::Message::of_text(text::Role::kAssistant, "see <｜ref｜>cat<｜/ref｜>")};
  text::EncodingOptions options;
  const std::size_t plain = text::render(conversation, options).special_ranges().size();
  options.grounding_in_history = true;
  EXPECT_EQ(text::render(conversation, options).special_ranges().size(), plain + 2);
}

}  // namespace
}  // namespace deepinfer::dialects
