#include "dialects/fields.h"

#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace deepinfer::dialects {
namespace {

constexpr std::size_t kMostEcho = 100;  // bytes of request content that a message may repeat

std::string_view short_of(std::string_view text) {
  return text.substr(0, kMostEcho);
}

void wrong_type(Findings& findings, std::string_view path, std::string_view key, const JsonValue& value,
                std::string_view expected) {
  findings.shape(fmt::format("{}: expected {}, got {}", join_path(path, key), expected, type_name(value)));
}

}  // namespace

void Findings::shape(std::string message) {
  RequestError error;
  error.kind = RequestError::Kind::kShape;
  error.message = "invalid request body: " + message;
  add(std::move(error));
}

void Findings::semantic(std::string message) {
  RequestError error;
  error.message = std::move(message);
  add(std::move(error));
}

void Findings::add(RequestError error) {
  auto& slot = error.kind == RequestError::Kind::kShape ? shape_ : semantic_;
  if (!slot) slot = std::move(error);
}

void Findings::merge(const Findings& other) {
  if (other.shape_) add(*other.shape_);
  if (other.semantic_) add(*other.semantic_);
}

const JsonValue* given(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string join_path(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::string index_path(std::string_view path, std::size_t index) {
  return fmt::format("{}[{}]", path, index);
}

std::string_view type_name(const JsonValue& value) {
  switch (value.type()) {
    case JsonValue::Type::kNull: return "null";
    case JsonValue::Type::kBoolean: return "a boolean";
    case JsonValue::Type::kNumber: return value.is_integer() ? "an integer" : "a number";
    case JsonValue::Type::kString: return "a string";
    case JsonValue::Type::kArray: return "a list";
    case JsonValue::Type::kObject: return "an object";
  }
  return "";
}

std::optional<std::string> string_field(Findings& findings, const JsonValue& object, std::string_view key,
                                        std::string_view path) {
  const JsonValue* value = given(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->text();
  wrong_type(findings, path, key, *value, "a string");
  return std::nullopt;
}

std::optional<bool> bool_field(Findings& findings, const JsonValue& object, std::string_view key,
                               std::string_view path) {
  const JsonValue* value = given(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->boolean();
  wrong_type(findings, path, key, *value, "a boolean");
  return std::nullopt;
}

std::optional<double> number_field(Findings& findings, const JsonValue& object, std::string_view key,
                                   std::string_view path) {
  const JsonValue* value = given(object, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->as_double();
  wrong_type(findings, path, key, *value, "a number");
  return std::nullopt;
}

std::optional<std::uint64_t> unsigned_field(Findings& findings, const JsonValue& object, std::string_view key,
                                            std::string_view path, std::uint64_t most) {
  const JsonValue* value = given(object, key);
  if (value == nullptr) return std::nullopt;
  std::uint64_t number = 0;
  if (value->is_number()) {
    const std::string& text = value->text();
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    if (result.ec == std::errc() && result.ptr == text.data() + text.size() && number <= most) return number;
    findings.shape(fmt::format("{}: expected an integer from 0 to {}, got {}", join_path(path, key), most,
                               short_of(text)));
    return std::nullopt;
  }
  wrong_type(findings, path, key, *value, fmt::format("an integer from 0 to {}", most));
  return std::nullopt;
}

const JsonValue* object_field(Findings& findings, const JsonValue& object, std::string_view key,
                              std::string_view path) {
  const JsonValue* value = given(object, key);
  if (value == nullptr || value->is_object()) return value;
  wrong_type(findings, path, key, *value, "an object");
  return nullptr;
}

const JsonValue* array_field(Findings& findings, const JsonValue& object, std::string_view key,
                             std::string_view path) {
  const JsonValue* value = given(object, key);
  if (value == nullptr || value->is_array()) return value;
  wrong_type(findings, path, key, *value, "a list");
  return nullptr;
}

const JsonValue* required_any(Findings& findings, const JsonValue& object, std::string_view key,
                              std::string_view path) {
  const JsonValue* value = object.find(key);
  if (value == nullptr) findings.shape(fmt::format("missing field {}", join_path(path, key)));
  return value;
}

std::string required_string(Findings& findings, const JsonValue& object, std::string_view key,
                            std::string_view path) {
  const JsonValue* value = required_any(findings, object, key, path);
  if (value == nullptr) return {};
  if (value->is_string()) return value->text();
  wrong_type(findings, path, key, *value, "a string");
  return {};
}

const JsonValue* required_array(Findings& findings, const JsonValue& object, std::string_view key,
                                std::string_view path) {
  const JsonValue* value = required_any(findings, object, key, path);
  if (value == nullptr || value->is_array()) return value;
  wrong_type(findings, path, key, *value, "a list");
  return nullptr;
}

const JsonValue* required_object(Findings& findings, const JsonValue& object, std::string_view key,
                                 std::string_view path) {
  const JsonValue* value = required_any(findings, object, key, path);
  if (value == nullptr || value->is_object()) return value;
  wrong_type(findings, path, key, *value, "an object");
  return nullptr;
}

bool expect_object(Findings& findings, const JsonValue& value, std::string_view path) {
  if (value.is_object()) return true;
  findings.shape(fmt::format("{}: expected an object, got {}", path, type_name(value)));
  return false;
}

void unknown_word(Findings& findings, std::string_view path, std::string_view word,
                  std::initializer_list<std::string_view> words) {
  findings.shape(fmt::format("{}: unknown value '{}', expected one of {}", path, short_of(word),
                             fmt::join(words, ", ")));
}

namespace {

std::optional<std::size_t> find_word(Findings& findings, std::string_view path, std::string_view word,
                                     std::initializer_list<std::string_view> words) {
  std::size_t index = 0;
  for (const std::string_view one : words) {
    if (word == one) return index;
    ++index;
  }
  unknown_word(findings, path, word, words);
  return std::nullopt;
}

}  // namespace

std::optional<std::size_t> word_field(Findings& findings, const JsonValue& object, std::string_view key,
                                      std::string_view path, std::initializer_list<std::string_view> words) {
  const auto word = string_field(findings, object, key, path);
  return word ? find_word(findings, join_path(path, key), *word, words) : std::nullopt;
}

std::optional<std::size_t> required_word(Findings& findings, const JsonValue& object, std::string_view key,
                                         std::string_view path,
                                         std::initializer_list<std::string_view> words) {
  const JsonValue* value = required_any(findings, object, key, path);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    wrong_type(findings, path, key, *value, "a string");
    return std::nullopt;
  }
  return find_word(findings, join_path(path, key), value->text(), words);
}

}  // namespace deepinfer::dialects
