// Every row of the conformance data of kinds render, events, errors, limits and images, in both profiles, against the lists
// of rows that are meant to differ: tests/text/faults/KIND.jsonl (the package is wrong: id, our values by path, why) and
// tests/text/ours/KIND.jsonl (recipe.md says OURS, default profile only: id, paragraph, what differs).
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "dialects/recipe_runner.h"
#include "dialects/recipe_test_data.h"
#include "text/json_value.h"

namespace deepinfer::dialects {
namespace {

using text::JsonValue;
using text::Profile;

std::map<std::string, JsonValue> listed(const std::string& list, const std::string& kind) {
  std::map<std::string, JsonValue> rows;
  const std::string folder = DEEPINFER_SOURCE_DIR "/tests/text/" + list + "/";
  for (const std::string& line : test_data::lines_of(folder + kind + ".jsonl")) {
    const JsonValue row = text::read_json(line).value();
    const JsonValue* reason = row.find(list == "faults" ? "why" : "paragraph");
    EXPECT_TRUE(reason != nullptr && !reason->text().empty()) << line;
    EXPECT_TRUE(rows.emplace(row.find("id")->text(), row).second) << line << " is listed twice";
  }
  return rows;
}

// Our values by path, as the list of faults has them.
JsonValue values_of(const std::vector<RecipeDifference>& differences) {
  JsonValue values = JsonValue::object();
  for (const RecipeDifference& one : differences)
    values.set(one.path, one.ours == "absent" ? JsonValue("absent") : text::read_json(one.ours).value());
  return values;
}

// The members that differ, as the list of our own decisions has them.
std::vector<JsonValue> members_of(const std::vector<RecipeDifference>& differences) {
  std::set<std::string> members;
  for (const RecipeDifference& one : differences)
    members.insert(one.path.substr(0, one.path.find_first_of(".[")));
  return {members.begin(), members.end()};
}

class RecipeData : public testing::TestWithParam<std::tuple<std::string, Profile>> {};

TEST_P(RecipeData, RowsAgreeExceptTheListedOnes) {
  const auto& [kind, profile] = GetParam();
  const auto faults = listed("faults", kind);
  const auto ours = profile == Profile::kOurs ? listed("ours", kind) : std::map<std::string, JsonValue>();
  std::set<std::string> due;
  for (const auto& [id, row] : faults)
    due.insert(id);
  for (const auto& [id, row] : ours)
    due.insert(id);
  const auto lines = test_data::lines_of(test_data::recipe_folder() / "cases" / (kind + ".jsonl"));
  ASSERT_FALSE(lines.empty());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string id = recipe_case_name(lines[i], i + 1);
    const auto line = run_recipe_case(kind, lines[i], test_data::tokenizers(), profile);
    ASSERT_TRUE(line.ok()) << id << ": " << line.error().message();
    const auto differences = recipe_differences(kind, lines[i], *line);
    if (const auto own = ours.find(id); own != ours.end()) {
      EXPECT_EQ(members_of(differences), own->second.find("paths")->items())
          << id << ": " << describe(differences);
    } else if (const auto fault = faults.find(id); fault != faults.end()) {
      EXPECT_EQ(values_of(differences), *fault->second.find("ours")) << id << ": " << describe(differences);
    } else {
      EXPECT_TRUE(differences.empty()) << id << ": " << describe(differences);
      continue;
    }
    EXPECT_FALSE(differences.empty()) << id << " is listed but agrees";
    due.erase(id);
  }
  EXPECT_TRUE(due.empty()) << *due.begin() << " is listed but not in the data";
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecipeData,
                         testing::Combine(testing::Values("render", "events", "errors", "limits", "images"),
                                          testing::Values(Profile::kOurs, Profile::kPackage)),
                         [](const auto& suite) {
                           return std::get<0>(suite.param) +
                                  (std::get<1>(suite.param) == Profile::kOurs ? "_ours" : "_package");
                         });

}  // namespace
}  // namespace deepinfer::dialects
