#include "dialects/schema_check.h"

#include <gtest/gtest.h>

#include "dialects/strict_schema.h"

namespace deepinfer::dialects {
namespace {

using text::JsonValue;

bool good(std::string_view schema) {
  return !schema_fault(text::read_json(schema).value()).has_value();
}

TEST(SchemaCheck, AcceptsSchemas) {
  for (const char* schema :
       {"true", "{}", R"({"type":["string","null"],"enum":[]})", R"({"$ref":"#"})",
        R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{}}})", R"({"$ref":"#x","items":{"$anchor":"x"}})",
        R"({"minLength":1.0,"pattern":"^\\d+(?=x)$"})",
        R"({"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string"}]})",
        R"({"$schema":"http://json-schema.org/draft-04/schema#","exclusiveMinimum":true})",
        R"({"dependencies":{"a":["b"],"c":{}}})", R"({"unknown":5})"})
    EXPECT_TRUE(good(schema)) << schema;
}

TEST(SchemaCheck, RefusesOthers) {
  for (const char* schema :
       {"5", "null", R"({"type":"nonsense"})", R"({"type":[]})", R"({"type":["string","string"]})",
        R"({"required":"a"})", R"({"required":["a","a"]})", R"({"properties":{"a":5}})", R"({"items":[{}]})",
        R"({"anyOf":[]})", R"({"minLength":-1})", R"({"multipleOf":0})", R"({"pattern":"("})",
        R"({"patternProperties":{"[":{}}})", R"({"$ref":"http://h/s.json"})", R"({"$ref":"#/nowhere"})",
        R"({"$ref":"#nowhere"})", R"({"$schema":"zzz"})", R"({"exclusiveMinimum":true})"})
    EXPECT_FALSE(good(schema)) << schema;
}

TEST(SchemaCheck, RegularExpressions) {
  for (const char* pattern : {"", "a|b*", "(?:a)(?<n>b)(?=c)(?!d)(?<=e)(?<!f)(?i)g", "[]a-z^-]", "[^\\]]",
                              "a{2,3}?b{2}+", "x{,3}", "\\p{L}+", "é*"})
    EXPECT_TRUE(is_regex(pattern)) << pattern;
  for (const char* pattern : {"(", ")", "*a", "a{3,2}", "[", "[z-a]", "\\", "(?", "(?<>a)", "a|+"})
    EXPECT_FALSE(is_regex(pattern)) << pattern;
  EXPECT_FALSE(is_regex(std::string(100000, '(')));
}

TEST(StrictSchema, NormalForm) {
  const JsonValue schema = text::read_json(R"({"description":"d","type":"object","properties":{
      "s":{"minLength":3,"type":"string","description":"x","enum":["a"]},"n":{"type":["integer","null"]},
      "l":{"type":"array","items":{"type":"object","properties":{"k":{"type":"null"}}}}}})")
                               .value();
  const StrictSchema normal = strict_schema(schema, false);
  EXPECT_EQ(normal.fault, "");
  EXPECT_EQ(
      write_json(normal.schema),
      R"({"type":"object","properties":{"s":{"type":"string","description":"x","enum":["a"]},"n":{"type":["integer","null"]},)"
      R"("l":{"type":"array","items":{"type":"object","properties":{"k":{"type":"null"}},"additionalProperties":false,)"
      R"("required":["k"]}}},"additionalProperties":false,"required":["s","n","l"],"description":"d"})");
  EXPECT_NE(strict_schema(text::read_json(R"({"type":"object"})").value(), false).fault, "");
  EXPECT_EQ(strict_schema(text::read_json(R"({"type":"object"})").value(), true).fault, "");
}

}  // namespace
}  // namespace deepinfer::dialects
