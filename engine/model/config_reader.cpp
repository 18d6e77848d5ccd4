#include "model/config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace deepinfer::model {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownCharacters = 60;  // of a wrong value in a message

const Json kEmptyObject = Json::object();

std::string shown(const Json& value) {
  // Never walk into a wrong value: it may be nested deeper than the stack.
  if (value.is_object()) return fmt::format("an object of {} fields", value.size());
  if (value.is_array()) return fmt::format("a list of {} entries", value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownCharacters) text = text.substr(0, kShownCharacters) + "...";
  return text;
}

// An integral JSON number; 4.0 counts, since some writers print every number with a fraction.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return {};
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::isfinite(number) && std::fabs(number) <= kExact && number == std::trunc(number)) {
      return static_cast<int64_t>(number);
    }
  }
  return {};
}

}  // namespace

ConfigReader::ConfigReader(const Json& object, std::string prefix)
    : object_(&object), prefix_(std::move(prefix)) {}

std::string ConfigReader::path(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
}

const Json* ConfigReader::find(Names names, std::string_view* used) const {
  for (const std::string_view name : names) {
    const auto found = object_->find(name);
    if (found == object_->end() || found->is_null()) continue;
    if (used != nullptr) *used = name;
    return &*found;
  }
  return nullptr;
}

bool ConfigReader::has(Names names) const {
  return find(names, nullptr) != nullptr;
}

void ConfigReader::refuse(std::string_view name, const std::string& found, const std::string& expected,
                          ErrorKind kind) {
  if (failed()) return;
  fault_ = make_error(kind, fmt::format("{} is {}, expected {}", path(name), found, expected),
                      kind == ErrorKind::kUnsupported
                          ? "this build does not run that variant of the model"
                          : "correct the field, or take config.json from the same release as the weights");
}

void ConfigReader::missing(Names names, const std::string& expected) {
  refuse(*names.begin(), "missing", expected);
}

void ConfigReader::adopt(const ConfigReader& inner) {
  if (!failed() && inner.failed()) fault_ = inner.fault();
}

int64_t ConfigReader::integer(Names names, Bounds<int64_t> bounds, std::optional<int64_t> fallback) {
  const std::string expected = fmt::format("an integer in {}..{}", bounds.lowest, bounds.highest);
  std::string_view used;
  const Json* value = find(names, &used);
  const int64_t safe = fallback.value_or(bounds.lowest);
  if (value == nullptr) {
    if (!fallback.has_value()) missing(names, expected);
    return safe;
  }
  const std::optional<int64_t> number = as_integer(*value);
  if (!number.has_value() || *number < bounds.lowest || *number > bounds.highest) {
    refuse(used, shown(*value), expected);
    return safe;
  }
  return *number;
}

double ConfigReader::real(Names names, Bounds<double> bounds, std::optional<double> fallback) {
  const std::string expected = fmt::format("a number in {}..{}", bounds.lowest, bounds.highest);
  std::string_view used;
  const Json* value = find(names, &used);
  const double safe = fallback.value_or(bounds.lowest);
  if (value == nullptr) {
    if (!fallback.has_value()) missing(names, expected);
    return safe;
  }
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= bounds.lowest && number <= bounds.highest)) {
    refuse(used, shown(*value), expected);
    return safe;
  }
  return number;
}

bool ConfigReader::boolean(Names names, bool fallback) {
  std::string_view used;
  const Json* value = find(names, &used);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    refuse(used, shown(*value), "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigReader::text(Names names, std::optional<std::string> fallback) {
  std::string_view used;
  const Json* value = find(names, &used);
  if (value == nullptr) {
    if (!fallback.has_value()) missing(names, "a string");
    return fallback.value_or("");
  }
  if (!value->is_string()) {
    refuse(used, shown(*value), "a string");
    return fallback.value_or("");
  }
  return value->get<std::string>();
}

std::vector<int64_t> ConfigReader::integers(Names names, Bounds<int64_t> bounds, size_t longest) {
  const std::string expected =
      fmt::format("a list of at most {} integers in {}..{}", longest, bounds.lowest, bounds.highest);
  std::string_view used;
  const Json* value = find(names, &used);
  if (value == nullptr) {
    missing(names, expected);
    return {};
  }
  if (!value->is_array() || value->size() > longest) {
    refuse(used, shown(*value), expected);
    return {};
  }
  std::vector<int64_t> numbers;
  numbers.reserve(value->size());
  for (const Json& element : *value) {
    const std::optional<int64_t> number = as_integer(element);
    if (!number.has_value() || *number < bounds.lowest || *number > bounds.highest) {
      refuse(fmt::format("{}[{}]", used, numbers.size()), shown(element),
             fmt::format("an integer in {}..{}", bounds.lowest, bounds.highest));
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

ConfigReader ConfigReader::object(Names names, bool optional) {
  std::string_view used;
  const Json* value = find(names, &used);
  if (value == nullptr) {
    if (!optional) missing(names, "an object");
    return {kEmptyObject, path(*names.begin())};
  }
  if (!value->is_object()) {
    refuse(used, shown(*value), "an object");
    return {kEmptyObject, path(used)};
  }
  return {*value, path(used)};
}

void ConfigReader::require_text(Names names, std::string_view only) {
  if (!has(names)) return;
  const std::string value = text(names);
  if (value != only && !failed()) {
    refuse(*names.begin(), fmt::format("\"{}\"", value.substr(0, kShownCharacters)),
           fmt::format("\"{}\"", only), ErrorKind::kUnsupported);
  }
}

void ConfigReader::require_false(Names names) {
  if (boolean(names, false)) refuse(*names.begin(), "true", "false", ErrorKind::kUnsupported);
}

}  // namespace deepinfer::model
