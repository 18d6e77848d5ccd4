// The embedded data is what the sources say it is: lengths and SHA-256 of every text, the digest of the token map.
#include "text/embedded_data.h"

#include <set>

#include <gtest/gtest.h>

#include "base/digest.h"
#include "text/engram_token_map.h"
#include "text/json_value.h"
#include "text/prompt_constants.h"
#include "text/tokenizer_test_data.h"

namespace deepinfer::text {
namespace {

std::string sha256_hex(std::string_view bytes) {
  return hex_text(sha256(bytes));
}

// Every object with a text, its length and its digest, wherever it stands.
void check_texts(const JsonValue& value, int& checked) {
  const JsonValue* text = value.find("text");
  const JsonValue* digest = value.find("sha256");
  if (text != nullptr && digest != nullptr) {
    EXPECT_EQ(sha256_hex(text->text()), digest->text()) << text->text();
    EXPECT_EQ(std::to_string(text->text().size()), value.find("bytes")->text());
    ++checked;
  }
  for (const JsonValue& item : value.items())
    check_texts(item, checked);
}

TEST(EmbeddedData, ConstantsHaveTheirDigests) {
  const auto constants = read_json(embedded_prompt_constants());
  ASSERT_TRUE(constants.ok()) << constants.error().message();
  int checked = 0;
  check_texts(*constants, checked);
  EXPECT_EQ(checked, 22);
}

// The digests that recipe.md 3.2 prints.
TEST(EmbeddedData, FormatsHaveTheDigestsOfTheSpecification) {
  const auto joined = [](const std::vector<PromptPiece>& pieces) {
    std::string text;
    for (const PromptPiece& piece : pieces)
      text += piece.bytes;
    return text;
  };
  const FormatConstants& v41 = format_constants(ModelVersion::kV41);
  const FormatConstants& v4 = format_constants(ModelVersion::kV4);
  EXPECT_EQ(sha256_hex(v41.effort_prefix + "75" + v41.effort_suffix),
            "86fdea28dfcf6ee1cffe3c13c63f9472d1c250d444d06666b710530963194231");
  EXPECT_EQ(sha256_hex(joined(v41.tools_before)),
            "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d");
  EXPECT_EQ(sha256_hex(joined(v4.tools_before)),
            "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c");
  EXPECT_EQ(sha256_hex(v41.tools_after), "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7");
  EXPECT_EQ(sha256_hex(v4.effort_high), "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7");
  EXPECT_EQ(sha256_hex(v4.effort_max), "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c");
}

// The whole calls layout is taken apart and put together again by the renderer: tags of both versions.
TEST(EmbeddedData, TagsOfBothVersions) {
  const FormatConstants& v41 = format_constants(ModelVersion::kV41);
  const FormatConstants& v4 = format_constants(ModelVersion::kV4);
  EXPECT_EQ(v41.tag_calls + "|" + v41.tag_invoke + "|" + v41.tag_parameter, " calls| invoke| parameter");
  EXPECT_EQ(v4.tag_calls + "|" + v4.tag_invoke + "|" + v4.tag_parameter, "tool_calls|invoke|parameter");
  EXPECT_EQ(v41.empty_arguments, "\n\n");
  EXPECT_EQ(v4.empty_arguments, "\n");
}

TEST(EmbeddedData, TokenMapOfTheShippedTokenizers) {
  const auto& shipped = test_data::shipped();
  const auto map = engram_token_map(shipped.v41);
  ASSERT_EQ(map.size(), 129280U);
  EXPECT_EQ(engram_token_map(shipped.v4).data(), map.data());
  const std::string_view bytes(reinterpret_cast<const char*>(map.data()), map.size_bytes());
  EXPECT_EQ(sha256_hex(bytes), "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481");
  EXPECT_EQ(std::set<std::int32_t>(map.begin(), map.end()).size(), 99092U);
  EXPECT_EQ(map[2], 2);
}

}  // namespace
}  // namespace deepinfer::text
