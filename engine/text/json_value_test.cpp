#include "text/json_value.h"

#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace deepinfer::text {
namespace {

std::string again(std::string_view text, const JsonWriteOptions& options = {}) {
  const auto value = read_json(text);
  return value.ok() ? write_json(*value, options) : "refused";
}

TEST(JsonValue, KeepsNumbersKeysAndText) {
  EXPECT_EQ(again(R"({"b": 123456789012345678901234567890, "a": [-0, 1.50, 1E-7, 1e400]})"),
            R"({"b":123456789012345678901234567890,"a":[-0,1.50,1E-7,1e400]})");
  EXPECT_EQ(again(R"(  "é\u0041\n\u0001\/"  )"), R"("éA\n\u0001/")");
}

TEST(JsonValue, RepeatedKeyKeepsFirstPlaceAndLastValue) {
  EXPECT_EQ(again(R"({"a":1,"b":2,"a":3})"), R"({"a":3,"b":2})");
  std::string many = "{";
  for (int i = 0; i < 40; ++i)
    many += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  const auto value = read_json(many + "\"k3\":\"x\",\"k39\":\"y\"}");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value->size(), 40U);
  EXPECT_EQ(value->keys()[3], "k3");
  EXPECT_EQ(value->find("k3")->text(), "x");
  EXPECT_EQ(value->find("k39")->text(), "y");
}

TEST(JsonValue, NumberStyles) {
  const std::string_view numbers =
      "[1.0,1e22,1E-7,0.00001,0.0001,1e15,1e16,12345678901234567.0,5e-324,-0.0,1e400,-0]";
  EXPECT_EQ(again(numbers, {.spaces = true, .numbers = NumberText::kPython}),
            "[1.0, 1e+22, 1e-07, 1e-05, 0.0001, 1000000000000000.0, 1e+16, 1.2345678901234568e+16, 5e-324, "
            "-0.0, 1e400, "
            "-0]");
  EXPECT_EQ(
      again(numbers, {.spaces = false, .numbers = NumberText::kSerde}),
      "[1.0,1e+22,1e-7,0.00001,0.0001,1000000000000000.0,1e+16,1.2345678901234568e+16,5e-324,-0.0,1e400,-0]");
}

TEST(JsonValue, Surrogates) {
  EXPECT_EQ(again(R"("\ud83e\udd80")"), "\"🦀\"");
  EXPECT_EQ(again(R"("a\ud800b\udc00\ud800\u0041")"),
            "\"a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD"
            "A\"");
  EXPECT_FALSE(read_json(R"("\ud800")", {.max_depth = 128, .replace_lone_surrogates = false}).ok());
}

TEST(JsonValue, RefusesWhatIsNotJson) {
  for (const char* text :
       {"",       "{",   "[1,]",  "{\"a\":1,}", "{a:1}", "01",       "1.",      ".5",
        "1e",     "+1",  "NaN",   "Infinity",   "nul",   "\"a",      "\"\\x\"", "\"\\u12\"",
        "\"\n\"", "1 2", "[1 2]", "{\"a\" 1}",  "\xff",  "\"\xc3\"", "'a'"})
    EXPECT_FALSE(read_json(text).ok()) << text;
  EXPECT_NE(read_json("[1, x]").error().what.find("byte 4"), std::string::npos);
}

TEST(JsonValue, DepthIsBounded) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(read_json(nested(128)).ok());
  EXPECT_FALSE(read_json(nested(129)).ok());
  EXPECT_FALSE(read_json(std::string(1 << 20, '[')).ok());
}

// Agrees with another reader about what is JSON, on texts one edit away from it.
TEST(JsonValue, AcceptsWhatAnotherReaderAccepts) {
  const std::string base =
      R"({"a": [1, -2.5e+3, "x\u00e9\n", true, null], "b": {"c": {}, "d": []}, "e": "é"})";
  std::mt19937 random(7);
  const std::string_view alphabet = "{}[],:\"\\0123456789.eE+-truefalsn \n\t\x01u";
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = base;
    for (unsigned edits = 1 + random() % 2; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = alphabet[random() % alphabet.size()];
      } else {
        text.erase(at, 1);
      }
    }
    const bool theirs = nlohmann::json::accept(text);
    ASSERT_EQ(read_json(text).ok(), theirs) << text;
    accepted += theirs ? 1 : 0;
  }
  EXPECT_GT(accepted, 1000);
}

TEST(JsonValue, BuildsAndEdits) {
  JsonValue value = JsonValue::object({{"a", 1}, {"b", "x"}, {"c", nullptr}, {"d", true}});
  value.set("b", JsonValue::array({1, "y"}));
  value.erase("a");
  value.erase("missing");
  EXPECT_EQ(write_json(value), R"({"b":[1,"y"],"c":null,"d":true})");
  EXPECT_EQ(write_json(JsonValue::real(0.1)), "0.1");
}

}  // namespace
}  // namespace deepinfer::text
