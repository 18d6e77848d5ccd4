// Every row of the conformance data of kinds tokenizer, decode, parse and stream, in both profiles, against the two lists of
// rows that are meant to differ: tests/text/faults/KIND.jsonl (the package is wrong, both profiles) and
// tests/text/ours/KIND.jsonl (recipe.md says OURS, default profile only).
#include "text/recipe_cases.h"

#include <map>

#include "text/tokenizer_test_data.h"

namespace deepinfer::text {
namespace {

using Json = nlohmann::ordered_json;

// Rows of a list by id. A missing file is an empty list.
std::map<std::string, Json> listed(const std::string& list, const std::string& kind) {
  std::map<std::string, Json> rows;
  std::ifstream file(std::string(DEEPINFER_SOURCE_DIR "/tests/text/") + list + "/" + kind + ".jsonl");
  for (std::string line; std::getline(file, line);) {
    Json row = Json::parse(line);
    EXPECT_EQ(row.at("kind"), kind);
    const bool reasoned = row.contains("why") || row.contains("paragraph");
    EXPECT_TRUE(reasoned) << row;
    const auto id = row.at("id").get<std::string>();
    EXPECT_TRUE(rows.emplace(id, std::move(row)).second) << id << " is listed twice";
  }
  return rows;
}

// What a list stores of a row.
Json own_value(const std::string& kind, const Json& row) {
  return kind == "parse" ? row.at("expect") : kind == "stream" ? row.at("joined") : row;
}

class RecipeCases : public testing::TestWithParam<std::tuple<std::string, ParserProfile>> {};

TEST_P(RecipeCases, RowsAgreeExceptTheListedOnes) {
  const auto& [kind, profile] = GetParam();
  const auto& shipped = test_data::shipped();
  const CaseTokenizers tokenizers{&shipped.v4, &shipped.v41};
  const auto faults = listed("faults", kind);
  const auto ours = profile == ParserProfile::kOurs ? listed("ours", kind) : std::map<std::string, Json>();
  const auto rows = test_data::cases(kind);
  ASSERT_FALSE(rows.empty());
  std::size_t differing = 0;
  for (const Json& row : rows) {
    const auto id = row.at("id").get<std::string>();
    const auto line = run_text_case(kind, row.dump(), tokenizers, profile);
    ASSERT_TRUE(line.ok()) << id << ": " << line.error().message();
    const std::string difference = compare_text_case(kind, row.dump(), *line);
    // A row that is in both lists has the value of `ours` in the default profile.
    const auto in_ours = ours.find(id);
    const auto in_faults = faults.find(id);
    const Json* entry = in_ours != ours.end()       ? &in_ours->second
                        : in_faults != faults.end() ? &in_faults->second
                                                    : nullptr;
    if (entry == nullptr) {
      EXPECT_EQ(difference, "") << id << " " << row.value("text", Json());
      continue;
    }
    ++differing;
    EXPECT_NE(difference, "") << id << " is listed but agrees";
    EXPECT_EQ(own_value(kind, Json::parse(*line)), entry->at("ours")) << id;
  }
  std::size_t expected = faults.size();
  for (const auto& [id, row] : ours)
    expected += faults.count(id) == 0 ? 1 : 0;
  EXPECT_EQ(differing, expected) << "a listed id is not in the data";
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecipeCases,
                         testing::Combine(testing::Values("tokenizer", "decode", "parse", "stream"),
                                          testing::Values(ParserProfile::kOurs, ParserProfile::kPackage)),
                         [](const auto& suite) {
                           return std::get<0>(suite.param) +
                                  (std::get<1>(suite.param) == ParserProfile::kOurs ? "_ours" : "_package");
                         });

}  // namespace
}  // namespace deepinfer::text
