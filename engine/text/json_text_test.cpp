#include "text/json_text.h"

#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace deepinfer::text {
namespace {

TEST(JsonText, AgreesWithAParserOnRandomTexts) {
  std::mt19937_64 random(41);
  const std::vector<std::string> parts = {"{",       "}", "[",  "]",      ",",  ":",   "\"a\"", "\"",   "\\",
                                          "\\u00e9", "1", "-",  "0",      ".5", "e-3", "true",  "null", " ",
                                          "\n",      "x", "\t", "\"k\":", "12", "[]",  "{}"};
  std::size_t valid = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string text;
    for (std::size_t i = random() % 7; i > 0; --i)
      text += parts[random() % parts.size()];
    const bool expected = nlohmann::json::accept(text);
    ASSERT_EQ(is_json(text), expected) << text;
    valid += expected ? 1 : 0;
  }
  EXPECT_GT(valid, 5000U);
}

TEST(JsonText, AnySizeAndDepth) {
  EXPECT_TRUE(is_json("1e999999"));
  EXPECT_TRUE(is_json("123456789012345678901234567890"));
  EXPECT_TRUE(is_json(std::string(100000, '[') + std::string(100000, ']')));
  EXPECT_FALSE(is_json(std::string(100000, '[')));
  for (const char* text : {"", " ", "01", "1.", ".5", "+1", "-", "NaN", "Infinity", "'a'", "{\"a\"}", "[1 2]",
                           "\"\x01\"", "1 1"}) {
    EXPECT_FALSE(is_json(text)) << text;
  }
}

TEST(JsonText, EscapesTheShortestWay) {
  EXPECT_EQ(json_string(std::string_view("\0\x1f\b\f\n\r\t\"\\/\x7f é\u2028", 17)),
            "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7f é\u2028\"");
}

TEST(JsonText, MendsLiteralsAndTrailingCommas) {
  EXPECT_EQ(mend_json("True"), "true");
  EXPECT_EQ(mend_json("[1, 2, ]"), "[1, 2 ]");
  EXPECT_EQ(mend_json("{\"a\": None, \"None,]\": False,}"), "{\"a\": null, \"None,]\": false}");
  EXPECT_EQ(mend_json("Truely"), std::nullopt);
  EXPECT_EQ(mend_json("{'a': 1}"), std::nullopt);
  EXPECT_EQ(mend_json("[1,,]"), std::nullopt);
}

TEST(ArgumentSchema, ReadsTypes) {
  const auto schema = ArgumentSchema::from_json(
      R"({"properties":{"a":{"type":"integer"},"b":{"type":["string","null"]},"c":{"oneOf":[{"type":"array"},{"const":true}]},
      "d":{},"e":{"enum":["x",null]},"f":true},"required":["a"]})");
  EXPECT_TRUE(schema.known());
  EXPECT_EQ(schema.types("a"), kJsonInteger);
  EXPECT_EQ(schema.types("b"), kJsonString | kJsonNull);
  EXPECT_EQ(schema.types("c"), kJsonArray | kJsonBoolean);
  EXPECT_EQ(schema.types("d"), kAnyJsonType);
  EXPECT_EQ(schema.types("e"), kJsonString | kJsonNull);
  EXPECT_EQ(schema.types("f"), kAnyJsonType);
  EXPECT_EQ(schema.types("missing"), kAnyJsonType);
  EXPECT_TRUE(schema.fits(R"({"a": 1, "b": null})"));
  EXPECT_FALSE(schema.fits(R"({"b": null})"));
  EXPECT_FALSE(schema.fits(R"({"a": 1.5})"));
  EXPECT_FALSE(schema.fits("[1]"));
  for (const char* text : {"", "[]", "{}", "{\"properties\":7}", "{\"type\":\"object\"}", "\xFF"}) {
    EXPECT_FALSE(ArgumentSchema::from_json(text).known()) << text;
  }
}

}  // namespace
}  // namespace deepinfer::text
