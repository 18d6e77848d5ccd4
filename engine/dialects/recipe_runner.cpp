#include "dialects/recipe_runner.h"

#include <algorithm>

#include <fmt/format.h>

#include "dialects/recipe_cases.h"
#include "text/json_value.h"
#include "text/recipe_cases.h"

namespace deepinfer::dialects {
namespace {

using text::JsonValue;

constexpr std::string_view kTextKinds[] = {"tokenizer", "decode", "parse", "stream"};

bool is_text_kind(std::string_view kind) {
  return std::find(std::begin(kTextKinds), std::end(kTextKinds), kind) != std::end(kTextKinds);
}

bool skips(const JsonValue& line, const std::vector<std::string>& tags) {
  const JsonValue* own = line.find("tags");
  if (own == nullptr) return false;
  return std::any_of(own->items().begin(), own->items().end(), [&](const JsonValue& tag) {
    return std::find(tags.begin(), tags.end(), tag.text()) != tags.end();
  });
}

constexpr std::size_t kMostShown = 4;  // differences of a case in a description

// Collects where two values part.
class Comparison {
 public:
  std::vector<RecipeDifference> differences;

  void member(std::string_view key, const JsonValue& expected, const JsonValue& ours) {
    const JsonValue null;
    const JsonValue* left = expected.find(key);
    const JsonValue* right = ours.find(key);
    values(std::string(key), left == nullptr ? null : *left, right == nullptr ? null : *right);
  }

  void values(const std::string& path, const JsonValue& expected, const JsonValue& ours) {
    if (expected.type() != ours.type()) return add(path, expected, ours);
    if (expected.is_object()) return objects(path, expected, ours);
    // Ids and ranges shift as a whole: one difference tells all.
    const bool whole = path == "ids" || path == "special";
    if (expected.is_array() && !whole) return arrays(path, expected, ours);
    const bool same = expected.is_number()
                          ? expected.text() == ours.text() || expected.as_double() == ours.as_double()
                          : expected == ours;
    if (!same) add(path, expected, ours);
  }

 private:
  void add(const std::string& path, const JsonValue& expected, const JsonValue& ours) {
    differences.push_back({path, write_json(expected), write_json(ours)});
  }

  void objects(const std::string& path, const JsonValue& expected, const JsonValue& ours) {
    const JsonValue null;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const JsonValue* other = ours.find(expected.keys()[i]);
      const std::string at = path + "." + expected.keys()[i];
      if (other == nullptr) {
        differences.push_back({at, write_json(expected.items()[i]), "absent"});
      } else {
        values(at, expected.items()[i], *other);
      }
    }
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (expected.find(ours.keys()[i]) == nullptr)
        differences.push_back({path + "." + ours.keys()[i], "absent", write_json(ours.items()[i])});
    }
  }

  void arrays(const std::string& path, const JsonValue& expected, const JsonValue& ours) {
    if (expected.size() != ours.size())
      differences.push_back({path + ".size", std::to_string(expected.size()), std::to_string(ours.size())});
    for (std::size_t i = 0; i < std::min(expected.size(), ours.size()); ++i)
      values(fmt::format("{}[{}]", path, i), expected.items()[i], ours.items()[i]);
  }
};

// The constraint's text is JSON when its kind is not a regular expression: spelling doesn't count.
JsonValue with_comparable_constraint(JsonValue line) {
  JsonValue* constraint = line.find("constraint");
  if (constraint == nullptr || constraint->size() != 2 || constraint->items()[0].text() == "regex")
    return line;
  auto text = text::read_json(constraint->items()[1].text());
  if (text.ok()) *constraint = JsonValue::array({constraint->items()[0], std::move(text).value()});
  return line;
}

void compare_error(const JsonValue& expected, const JsonValue& ours, Comparison& comparison) {
  const JsonValue* left = expected.find("error");
  const JsonValue* right = ours.find("error");
  if (left == nullptr || right == nullptr || !left->is_object() || !right->is_object())
    return comparison.member("error", expected, ours);
  for (const char* key : {"kind", "status", "type", "param", "code"})
    comparison.member(key, *left, *right);
}

// Where two texts part, with some of what follows.
std::string text_difference(std::string_view expected, std::string_view ours) {
  constexpr std::size_t kBefore = 20, kShown = 80;
  std::size_t at = 0;
  while (at < std::min(expected.size(), ours.size()) && expected[at] == ours[at])
    ++at;
  const std::size_t begin = at - std::min(at, kBefore);
  return fmt::format("at byte {}: expected {}, got {}", at, expected.substr(begin, kShown),
                     ours.substr(begin, kShown));
}

Result<void> run_dialect_case(std::string_view kind, RecipeCase& one) {
  if (kind == "render") return run_render_case(one);
  if (kind == "events") return run_events_case(one);
  if (kind == "errors") return run_errors_case(one);
  if (kind == "limits") return run_limits_case(one);
  if (kind == "images") return run_images_case(one);
  return make_error(ErrorKind::kInvalidArgument, fmt::format("unknown kind of cases '{}'", kind),
                    "kinds: tokenizer, decode, render, parse, stream, events, errors, limits, images");
}

}  // namespace

Result<RecipeTokenizers> RecipeTokenizers::load(const std::filesystem::path& folder) {
  RecipeTokenizers result;
  DI_ASSIGN(auto v4, text::Tokenizer::load(folder / "v4" / "tokenizer.json"));
  DI_ASSIGN(auto v41, text::Tokenizer::load(folder / "v41" / "tokenizer.json"));
  result.v4 = std::make_unique<text::Tokenizer>(std::move(v4));
  result.v41 = std::make_unique<text::Tokenizer>(std::move(v41));
  return result;
}

RequestContext recipe_context(text::Profile profile) {
  RequestContext context;
  context.profile = profile;
  context.models = {{"DeepSeek-V4-Pro", text::ModelVersion::kV4},
                    {"DeepSeek-V4.1-Flash", text::ModelVersion::kV41}};
  return context;
}

Result<std::string> case_string(const JsonValue& line, std::string_view key) {
  const JsonValue* value = line.find(key);
  if (value != nullptr && value->is_string()) return value->text();
  return make_error(ErrorKind::kFormat, fmt::format("cannot run the case: it has no text '{}'", key));
}

Result<std::uint64_t> case_number(const JsonValue& line, std::string_view key) {
  const JsonValue* value = line.find(key);
  if (value != nullptr && value->is_number() && value->as_double() >= 0)
    return static_cast<std::uint64_t>(value->as_double());
  return make_error(ErrorKind::kFormat, fmt::format("cannot run the case: it has no number '{}'", key));
}

Result<std::string> run_recipe_case(std::string_view kind, std::string_view line,
                                    const RecipeTokenizers& tokenizers, text::Profile profile) {
  if (is_text_kind(kind))
    return text::run_text_case(kind, line, {tokenizers.v4.get(), tokenizers.v41.get()}, profile);
  DI_ASSIGN(JsonValue parsed, text::read_json(line));
  RecipeCase one{std::move(parsed), tokenizers, profile};
  DI_TRY(run_dialect_case(kind, one));
  return write_json(one.line);
}

std::vector<RecipeDifference> recipe_differences(std::string_view kind, std::string_view expected,
                                                 std::string_view ours) {
  if (is_text_kind(kind)) {
    const std::string words = text::compare_text_case(kind, expected, ours);
    if (words.empty()) return {};
    return {{"text", "", words}};
  }
  const auto read_expected = text::read_json(expected);
  const auto read_ours = text::read_json(ours);
  if (!read_expected.ok() || !read_ours.ok()) return {{"line", std::string(expected), std::string(ours)}};
  const JsonValue left = with_comparable_constraint(*read_expected);
  const JsonValue right = with_comparable_constraint(*read_ours);
  Comparison comparison;
  const auto members = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      comparison.member(key, left, right);
  };
  if (kind == "render") {
    members({"error", "prompt", "special", "ids", "thinking", "effort", "options", "constraint", "parse",
             "images", "namespaces"});
  } else if (kind == "errors") {
    compare_error(left, right, comparison);
  } else if (kind == "events") {
    members({"sse_events", "events", "response"});
  } else if (kind == "limits") {
    members({"resolved"});
    if ((left.find("error") == nullptr) != (right.find("error") == nullptr)) members({"error"});
  } else {
    members({"tokens", "resized", "error"});
  }
  return std::move(comparison.differences);
}

std::string describe(const std::vector<RecipeDifference>& differences) {
  std::string out;
  for (std::size_t i = 0; i < std::min(differences.size(), kMostShown); ++i) {
    const RecipeDifference& one = differences[i];
    if (i > 0) out += "; ";
    out += one.path == "text" ? one.ours : one.path + " " + text_difference(one.expected, one.ours);
  }
  if (differences.size() > kMostShown) out += fmt::format("; and {} more", differences.size() - kMostShown);
  return out;
}

std::string recipe_case_name(std::string_view line, std::size_t number) {
  const auto parsed = text::read_json(line);
  const JsonValue* id = parsed.ok() ? parsed->find("id") : nullptr;
  return id != nullptr && id->is_string() ? id->text() : std::to_string(number);
}

Result<RecipeReport> run_recipe(const RecipeRun& run, const RecipeTokenizers& tokenizers, std::istream& input,
                                std::ostream& output) {
  RecipeReport report;
  std::string line;
  for (std::size_t number = 1; std::getline(input, line); ++number) {
    if (line.empty()) continue;
    const auto parsed = text::read_json(line);
    if (!parsed.ok()) return within(parsed.error(), fmt::format("line {}", number));
    if (skips(*parsed, run.skip_tags)) {
      ++report.skipped;
      continue;
    }
    ++report.cases;
    auto ours = run_recipe_case(run.kind, line, tokenizers, run.profile);
    if (!ours.ok()) return within(std::move(ours).error(), fmt::format("line {}", number));
    if (!run.check) {
      output << *ours << '\n';
      continue;
    }
    const auto differences = recipe_differences(run.kind, line, *ours);
    if (differences.empty()) continue;
    ++report.different;
    output << recipe_case_name(line, number) << ": " << describe(differences) << '\n';
  }
  return report;
}

}  // namespace deepinfer::dialects
