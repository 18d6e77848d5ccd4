#include "dialects/schema_check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <set>

#include <fmt/format.h>

namespace deepinfer::dialects {
namespace {

using text::JsonValue;

enum class Rule : std::uint8_t {
  kSchema,
  kItems,  // a schema; in older drafts also a list of schemas
  kSchemas,
  kSchemaMap,
  kDependencies,  // each a schema or a list of names
  kPatternMap,
  kString,
  kReference,
  kPattern,
  kBoolean,
  kNumber,
  kExclusive,  // a number; in draft 4 a boolean
  kPositive,
  kCount,
  kList,
  kNames,
  kNamesMap,
  kType,
};

struct Keyword {
  std::string_view name;
  Rule rule;
};

constexpr auto kKeywords = std::to_array<Keyword>({
    {"$schema", Rule::kString},
    {"$id", Rule::kString},
    {"$ref", Rule::kReference},
    {"$dynamicRef", Rule::kReference},
    {"$anchor", Rule::kString},
    {"$dynamicAnchor", Rule::kString},
    {"$comment", Rule::kString},
    {"$defs", Rule::kSchemaMap},
    {"definitions", Rule::kSchemaMap},
    {"type", Rule::kType},
    {"enum", Rule::kList},
    {"multipleOf", Rule::kPositive},
    {"maximum", Rule::kNumber},
    {"minimum", Rule::kNumber},
    {"exclusiveMaximum", Rule::kExclusive},
    {"exclusiveMinimum", Rule::kExclusive},
    {"maxLength", Rule::kCount},
    {"minLength", Rule::kCount},
    {"pattern", Rule::kPattern},
    {"maxItems", Rule::kCount},
    {"minItems", Rule::kCount},
    {"uniqueItems", Rule::kBoolean},
    {"maxContains", Rule::kCount},
    {"minContains", Rule::kCount},
    {"maxProperties", Rule::kCount},
    {"minProperties", Rule::kCount},
    {"required", Rule::kNames},
    {"dependentRequired", Rule::kNamesMap},
    {"prefixItems", Rule::kSchemas},
    {"items", Rule::kItems},
    {"additionalItems", Rule::kSchema},
    {"unevaluatedItems", Rule::kSchema},
    {"contains", Rule::kSchema},
    {"properties", Rule::kSchemaMap},
    {"patternProperties", Rule::kPatternMap},
    {"additionalProperties", Rule::kSchema},
    {"unevaluatedProperties", Rule::kSchema},
    {"propertyNames", Rule::kSchema},
    {"dependentSchemas", Rule::kSchemaMap},
    {"dependencies", Rule::kDependencies},
    {"if", Rule::kSchema},
    {"then", Rule::kSchema},
    {"else", Rule::kSchema},
    {"not", Rule::kSchema},
    {"allOf", Rule::kSchemas},
    {"anyOf", Rule::kSchemas},
    {"oneOf", Rule::kSchemas},
    {"title", Rule::kString},
    {"description", Rule::kString},
    {"format", Rule::kString},
    {"contentEncoding", Rule::kString},
    {"contentMediaType", Rule::kString},
    {"contentSchema", Rule::kSchema},
    {"deprecated", Rule::kBoolean},
    {"readOnly", Rule::kBoolean},
    {"writeOnly", Rule::kBoolean},
    {"examples", Rule::kList},
});

constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                    "array",  "object", "null"};
constexpr std::string_view kOldDrafts[] = {"draft-04", "draft-06", "draft-07", "2019-09"};

bool is_type_word(const JsonValue& value) {
  if (!value.is_string()) return false;
  for (const std::string_view type : kTypes) {
    if (value.text() == type) return true;
  }
  return false;
}

// Whether no string of a list repeats.
bool is_unique(const JsonValue& list) {
  std::set<std::string_view> seen;
  return std::all_of(list.items().begin(), list.items().end(),
                     [&](const JsonValue& item) { return seen.insert(item.text()).second; });
}

constexpr int kMostReferences = 2000;      // each is looked up
constexpr std::size_t kLongestPath = 100;  // of a place in a message

class Checker {
 public:
  explicit Checker(const JsonValue& root) : root_(root) {}

  std::optional<std::string> run() {
    if (root_.is_object()) {
      const JsonValue* draft = root_.find("$schema");
      if (draft != nullptr && draft->is_string() && !know_draft(draft->text()))
        return fmt::format("$schema names an unknown draft: '{}'", draft->text());
    }
    schema(root_, "");
    return fault_;
  }

 private:
  bool know_draft(std::string_view name) {
    if (name.find("json-schema.org/") == std::string_view::npos) return false;
    for (const std::string_view draft : kOldDrafts) {
      if (name.find(draft) != std::string_view::npos) {
        old_ = true;
        boolean_bounds_ = draft == "draft-04";
        return true;
      }
    }
    return name.find("2020-12") != std::string_view::npos;
  }

  void fail(const std::string& path, std::string_view what) {
    if (!fault_)
      fault_ = fmt::format("{}: {}", path.empty() ? "the schema" : path.substr(0, kLongestPath), what);
  }

  void schema(const JsonValue& value, const std::string& path) {
    if (value.is_boolean()) return;
    if (!value.is_object()) return fail(path, "a schema is an object or a boolean");
    for (const Keyword& keyword : kKeywords) {
      if (const JsonValue* member = value.find(keyword.name))
        check(*member, keyword.rule, path + "/" + std::string(keyword.name));
    }
  }

  void check(const JsonValue& value, Rule rule, const std::string& path) {
    switch (rule) {
      case Rule::kItems:
        if (old_ && value.is_array()) return schemas(value, path, true);
        return schema(value, path);
      case Rule::kSchema: return schema(value, path);
      case Rule::kSchemas: return schemas(value, path, false);
      case Rule::kSchemaMap:
      case Rule::kDependencies:
      case Rule::kPatternMap: return schema_map(value, rule, path);
      case Rule::kString:
        if (!value.is_string()) fail(path, "expected a string");
        return;
      case Rule::kReference: return reference(value, path);
      case Rule::kPattern:
        if (!value.is_string() || !is_regex(value.text())) fail(path, "expected a regular expression");
        return;
      case Rule::kBoolean:
        if (!value.is_boolean()) fail(path, "expected a boolean");
        return;
      case Rule::kExclusive:
        if (boolean_bounds_ && value.is_boolean()) return;
        [[fallthrough]];
      case Rule::kNumber:
        if (!value.is_number()) fail(path, "expected a number");
        return;
      case Rule::kPositive:
        if (!value.is_number() || !(value.as_double() > 0)) fail(path, "expected a number above 0");
        return;
      case Rule::kCount: {
        const double count = value.is_number() ? value.as_double() : -1;
        if (!(count >= 0) || count != static_cast<double>(static_cast<std::uint64_t>(count)))
          fail(path, "expected a whole number from 0");
        return;
      }
      case Rule::kList:
        if (!value.is_array()) fail(path, "expected a list");
        return;
      case Rule::kNames: return names(value, path);
      case Rule::kNamesMap:
        if (!value.is_object()) return fail(path, "expected an object");
        for (std::size_t i = 0; i < value.size(); ++i)
          names(value.items()[i], path + "/" + value.keys()[i]);
        return;
      case Rule::kType: return type(value, path);
    }
  }

  void schemas(const JsonValue& value, const std::string& path, bool may_be_empty) {
    if (!value.is_array()) return fail(path, "expected a list of schemas");
    if (value.size() == 0 && !may_be_empty) return fail(path, "expected at least one schema");
    for (std::size_t i = 0; i < value.size(); ++i)
      schema(value.items()[i], fmt::format("{}/{}", path, i));
  }

  void schema_map(const JsonValue& value, Rule rule, const std::string& path) {
    if (!value.is_object()) return fail(path, "expected an object of schemas");
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string at = path + "/" + value.keys()[i];
      if (rule == Rule::kPatternMap && !is_regex(value.keys()[i]))
        fail(at, "the key is not a regular expression");
      if (rule == Rule::kDependencies && value.items()[i].is_array()) {
        names(value.items()[i], at);
      } else {
        schema(value.items()[i], at);
      }
    }
  }

  void names(const JsonValue& value, const std::string& path) {
    if (!value.is_array()) return fail(path, "expected a list of names");
    for (const JsonValue& name : value.items()) {
      if (!name.is_string()) return fail(path, "expected a list of names");
    }
    if (!is_unique(value)) fail(path, "a name repeats");
  }

  void type(const JsonValue& value, const std::string& path) {
    bool good = is_type_word(value);
    if (value.is_array()) {
      good = value.size() > 0 && is_unique(value);
      for (const JsonValue& word : value.items())
        good = good && is_type_word(word);
    }
    if (!good) fail(path, "expected a JSON type, or a list of different ones");
  }

  void reference(const JsonValue& value, const std::string& path) {
    if (!value.is_string()) return fail(path, "expected a string");
    const std::string& target = value.text();
    if (target.starts_with("https://json-schema.org/draft/") ||
        target.starts_with("http://json-schema.org/draft"))
      return;
    if (!target.starts_with('#')) return fail(path, "references to other documents are not followed");
    const std::string fragment = decode_percent(std::string_view(target).substr(1));
    if (fragment.empty()) return;
    if (++references_ > kMostReferences) return fail(path, "too many references");
    const bool found = fragment.starts_with('/') ? pointer_exists(fragment) : anchors().contains(fragment);
    if (!found) fail(path, fmt::format("'{}' leads nowhere", target.substr(0, kLongestPath)));
  }

  static std::string decode_percent(std::string_view text) {
    std::string decoded;
    for (std::size_t i = 0; i < text.size(); ++i) {
      unsigned byte = 0;
      if (text[i] == '%' && i + 2 < text.size() &&
          std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16).ptr == text.data() + i + 3) {
        decoded.push_back(static_cast<char>(byte));
        i += 2;
      } else {
        decoded.push_back(text[i]);
      }
    }
    return decoded;
  }

  bool pointer_exists(std::string_view pointer) const {
    const JsonValue* at = &root_;
    while (!pointer.empty()) {
      pointer.remove_prefix(1);  // the slash
      const std::size_t end = std::min(pointer.find('/'), pointer.size());
      std::string step;
      for (std::size_t i = 0; i < end; ++i) {
        const bool escaped = pointer[i] == '~' && i + 1 < end;
        step.push_back(!escaped ? pointer[i] : pointer[i + 1] == '1' ? '/' : '~');
        if (escaped) ++i;
      }
      pointer.remove_prefix(end);
      if (at->is_array()) {
        std::size_t index = 0;
        const auto result = std::from_chars(step.data(), step.data() + step.size(), index);
        if (result.ec != std::errc() || result.ptr != step.data() + step.size() || index >= at->size())
          return false;
        at = &at->items()[index];
      } else {
        at = at->find(step);
      }
      if (at == nullptr) return false;
    }
    return true;
  }

  const std::set<std::string, std::less<>>& anchors() {
    if (!anchors_) collect_anchors(root_, anchors_.emplace());
    return *anchors_;
  }

  static void collect_anchors(const JsonValue& value, std::set<std::string, std::less<>>& anchors) {
    for (const char* key : {"$anchor", "$dynamicAnchor"}) {
      const JsonValue* anchor = value.find(key);
      if (anchor != nullptr && anchor->is_string()) anchors.insert(anchor->text());
    }
    for (const JsonValue& item : value.items())
      collect_anchors(item, anchors);
  }

  const JsonValue& root_;
  bool old_ = false;
  bool boolean_bounds_ = false;
  int references_ = 0;
  std::optional<std::set<std::string, std::less<>>> anchors_;
  std::optional<std::string> fault_;
};

// Reads a pattern without building anything; groups nest on the call stack up to a bound.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : text_(pattern) {}

  bool read() { return alternatives(0) && at_ == text_.size(); }

 private:
  static constexpr int kMostDepth = 250;

  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool alternatives(int depth) {
    if (depth > kMostDepth) return false;
    while (true) {
      while (more() && text_[at_] != '|' && text_[at_] != ')') {
        if (!atom(depth) || !quantifier()) return false;
      }
      if (!take("|")) return true;
    }
  }

  bool atom(int depth) {
    switch (text_[at_]) {
      case '(': ++at_; return group(depth);
      case '[': ++at_; return character_class();
      case '*':
      case '+':
      case '?': return false;
      case '\\': return escape();
      default: ++at_; return true;
    }
  }

  bool group(int depth) {
    if (take("?")) {
      if (take("<") || take("P<")) {
        if (!take("=") && !take("!")) {
          const std::size_t end = text_.find('>', at_);
          if (end == std::string_view::npos || end == at_) return false;
          at_ = end + 1;
        }
      } else if (!take(":") && !take("=") && !take("!") && !take(">")) {
        const std::size_t begin = at_;
        while (more() && (std::string_view("imsxuU-").find(text_[at_]) != std::string_view::npos))
          ++at_;
        if (at_ == begin) return false;
        if (take(")")) return true;
        if (!take(":")) return false;
      }
    }
    return alternatives(depth + 1) && take(")");
  }

  bool escape() {
    ++at_;
    if (!more()) return false;
    ++at_;
    return true;
  }

  // Reads one member of a class; `code` is -1 for one that can't bound a range.
  bool class_member(int& code) {
    if (text_[at_] == '\\') {
      const std::size_t begin = at_ + 1;
      code = -1;
      if (!escape()) return false;
      const char letter = text_[begin];
      const bool named = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                         (letter >= '0' && letter <= '9');
      if (!named) code = static_cast<unsigned char>(letter);
      return true;
    }
    code = static_cast<unsigned char>(text_[at_++]);
    if (code >= 0x80) code = -1;  // part of a longer character
    return true;
  }

  bool character_class() {
    take("^");
    take("]");  // first in a class it stands for itself
    while (more() && text_[at_] != ']') {
      int first = 0;
      if (!class_member(first)) return false;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        int last = 0;
        if (!class_member(last)) return false;
        if (first >= 0 && last >= 0 && last < first) return false;
      }
    }
    return take("]");
  }

  bool quantifier() {
    if (!more()) return true;
    if (!take("*") && !take("+") && !take("?")) {
      if (text_[at_] != '{') return true;
      const std::size_t begin = at_++;
      std::uint32_t least = 0, most = 0;
      const bool counted = count(least);
      const bool ranged = counted && take(",");
      const bool bounded = ranged && count(most);
      if (!counted || !take("}")) {
        at_ = begin + 1;  // a brace that means itself
        return true;
      }
      if (bounded && most < least) return false;
    }
    if (!take("?")) take("+");
    return true;
  }

  bool count(std::uint32_t& value) {
    const auto result = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (result.ec != std::errc()) return false;
    at_ = static_cast<std::size_t>(result.ptr - text_.data());
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<std::string> schema_fault(const JsonValue& schema) {
  return Checker(schema).run();
}

bool is_regex(std::string_view pattern) {
  return PatternReader(pattern).read();
}

}  // namespace deepinfer::dialects
