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

// Numbers by value, objects without order.
bool same(const JsonValue& a, const JsonValue& b) {
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_number()) return a.text() == b.text() || a.as_double() == b.as_double();
  if (a.is_object()) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const JsonValue* other = b.find(a.keys()[i]);
      if (other == nullptr || !same(a.items()[i], *other)) return false;
    }
    return true;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a.items()[i], b.items()[i])) return false;
  }
  return a.boolean() == b.boolean() && a.text() == b.text();
}

std::string shortened(const JsonValue& value) {
  constexpr std::size_t kMost = 160;
  std::string text = write_json(value);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

// Where two texts part, with some of what follows.
std::string text_difference(const std::string& expected, const std::string& ours) {
  constexpr std::size_t kBefore = 20, kAfter = 60;
  std::size_t at = 0;
  while (at < std::min(expected.size(), ours.size()) && expected[at] == ours[at]) ++at;
  const std::size_t begin = at - std::min(at, kBefore);
  return fmt::format("differs at byte {}: expected ...{}, got ...{}", at,
                     shortened(JsonValue(expected.substr(begin, kBefore + kAfter))),
                     shortened(JsonValue(ours.substr(begin, kBefore + kAfter))));
}

void compare_member(std::string_view key, const JsonValue* expected, const JsonValue* ours, std::string& out) {
  const JsonValue null;
  const JsonValue& left = expected == nullptr ? null : *expected;
  const JsonValue& right = ours == nullptr ? null : *ours;
  if (same(left, right)) return;
  if (!out.empty()) out += "; ";
  if (left.is_string() && right.is_string()) {
    out += fmt::format("{} {}", key, text_difference(left.text(), right.text()));
  } else {
    out += fmt::format("{}: expected {}, got {}", key, shortened(left), shortened(right));
  }
}

// The constraint's text is JSON when its kind is not a regular expression: spelling doesn't count.
JsonValue comparable_constraint(const JsonValue* constraint) {
  if (constraint == nullptr || constraint->size() != 2) return constraint == nullptr ? JsonValue() : *constraint;
  auto text = text::read_json(constraint->items()[1].text());
  if (constraint->items()[0].text() == "regex" || !text.ok()) return *constraint;
  return JsonValue::array({constraint->items()[0], std::move(text).value()});
}

void compare_render(const JsonValue& expected, const JsonValue& ours, std::string& out) {
  compare_member("error", expected.find("error"), ours.find("error"), out);
  for (const char* key : {"prompt", "special", "ids", "thinking", "effort", "options", "parse", "images", "namespaces"})
    compare_member(key, expected.find(key), ours.find(key), out);
  const JsonValue left = comparable_constraint(expected.find("constraint"));
  const JsonValue right = comparable_constraint(ours.find("constraint"));
  compare_member("constraint", &left, &right, out);
}

void compare_error(const JsonValue& expected, const JsonValue& ours, std::string& out) {
  const JsonValue* left = expected.find("error");
  const JsonValue* right = ours.find("error");
  const bool refused = right != nullptr && !right->is_null();
  if (left == nullptr || left->is_null() || !refused) return compare_member("error", left, right, out);
  for (const char* key : {"kind", "status", "type", "param", "code"})
    compare_member(std::string("error.") + key, left->find(key), right->find(key), out);
}

// One event a member, so that a message shows where sequences part.
void compare_list(std::string_view key, const JsonValue* expected, const JsonValue* ours, std::string& out) {
  if (expected == nullptr || ours == nullptr || expected->size() != ours->size()) {
    const std::size_t left = expected == nullptr ? 0 : expected->size(), right = ours == nullptr ? 0 : ours->size();
    out += fmt::format("{}{}: expected {} of them, got {}", out.empty() ? "" : "; ", key, left, right);
    if (expected == nullptr || ours == nullptr) return;
  }
  for (std::size_t i = 0; i < std::min(expected->size(), ours->size()); ++i) {
    if (same(expected->items()[i], ours->items()[i])) continue;
    return compare_member(fmt::format("{}[{}]", key, i), &expected->items()[i], &ours->items()[i], out);
  }
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
  context.models = {{"DeepSeek-V4-Pro", text::ModelVersion::kV4}, {"DeepSeek-V4.1-Flash", text::ModelVersion::kV41}};
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

Result<std::string> run_recipe_case(std::string_view kind, std::string_view line, const RecipeTokenizers& tokenizers,
                                    text::Profile profile) {
  if (is_text_kind(kind))
    return text::run_text_case(kind, line, {tokenizers.v4.get(), tokenizers.v41.get()}, profile);
  DI_ASSIGN(JsonValue parsed, text::read_json(line));
  RecipeCase one{std::move(parsed), tokenizers, profile};
  DI_TRY(run_dialect_case(kind, one));
  return write_json(one.line);
}

std::string compare_recipe_case(std::string_view kind, std::string_view expected, std::string_view ours) {
  if (is_text_kind(kind)) return text::compare_text_case(kind, expected, ours);
  const auto left = text::read_json(expected);
  const auto right = text::read_json(ours);
  if (!left.ok() || !right.ok()) return "not JSON";
  std::string out;
  if (kind == "render") {
    compare_render(*left, *right, out);
  } else if (kind == "errors") {
    compare_error(*left, *right, out);
  } else if (kind == "events") {
    for (const char* key : {"sse_events", "events"}) compare_list(key, left->find(key), right->find(key), out);
    compare_member("response", left->find("response"), right->find("response"), out);
  } else if (kind == "limits") {
    compare_member("resolved", left->find("resolved"), right->find("resolved"), out);
    if ((left->find("error") == nullptr) != (right->find("error") == nullptr))
      compare_member("error", left->find("error"), right->find("error"), out);
  } else {
    for (const char* key : {"tokens", "resized", "error"})
      compare_member(key, left->find(key), right->find(key), out);
  }
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
    const std::string difference = compare_recipe_case(run.kind, line, *ours);
    if (difference.empty()) continue;
    ++report.different;
    output << recipe_case_name(line, number) << ": " << difference << '\n';
  }
  return report;
}

}  // namespace deepinfer::dialects
