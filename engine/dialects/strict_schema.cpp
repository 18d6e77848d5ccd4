#include "dialects/strict_schema.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>

namespace deepinfer::dialects {
namespace {

using text::JsonValue;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Whether two lists hold the same strings, in any order and without repeats in the second.
bool same_names(const JsonValue& left, const JsonValue& right) {
  std::set<std::string_view> names;
  for (const JsonValue& name : left.items()) {
    if (name.is_string()) names.insert(name.text());
  }
  if (left.size() != right.size() || names.size() != right.size()) return false;
  return std::all_of(right.items().begin(), right.items().end(),
                     [&](const JsonValue& name) { return names.contains(name.text()); });
}

class Normaliser {
 public:
  std::string fault;

  JsonValue schema(const JsonValue& value, bool may_be_empty) {
    if (const JsonValue* type = value.find("type")) {
      if (type->is_string()) return typed(value, type->text(), may_be_empty);
      if (type->is_array()) return several_types(value, *type);
    }
    if (const JsonValue* any = value.find("anyOf"); any != nullptr && any->is_array()) {
      JsonValue branches = JsonValue::array();
      for (const JsonValue& branch : any->items())
        branches.push(schema(branch, false));
      JsonValue result = JsonValue::object({{"anyOf", std::move(branches)}});
      copy(value, result, {"description"});
      return result;
    }
    if (const JsonValue* reference = value.find("$ref"); reference != nullptr && reference->is_string())
      return JsonValue::object({{"$ref", *reference}});
    return fail("one of `type`, `anyOf`, `$ref` field is required");
  }

 private:
  JsonValue fail(std::string what) {
    if (fault.empty()) fault = std::move(what);
    return {};
  }

  static void copy(const JsonValue& from, JsonValue& to, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      const JsonValue* member = from.find(key);
      if (member != nullptr && !member->is_null()) to.set(key, *member);
    }
  }

  JsonValue typed(const JsonValue& value, const std::string& type, bool may_be_empty) {
    JsonValue result = JsonValue::object({{"type", type}});
    if (type == "object") return object(value, std::move(result), may_be_empty);
    if (type == "array") {
      const JsonValue* items = value.find("items");
      if (items == nullptr) return fail("missing field `items`");
      result.set("items", schema(*items, false));
      copy(value, result, {"description"});
    } else if (type == "string") {
      check_string(value);
      copy(value, result, {"description", "enum", "pattern", "format"});
    } else if (type == "number" || type == "integer") {
      check_bounds(value, type == "integer");
      copy(value, result,
           {"description", "const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
            "multipleOf"});
    } else if (type == "boolean" || type == "null") {
      copy(value, result, {"description"});
    } else {
      return fail(fmt::format("unknown type `{}`", type));
    }
    return result;
  }

  JsonValue several_types(const JsonValue& value, const JsonValue& types) {
    for (const JsonValue& type : types.items()) {
      if (!type.is_string() || !is_one_of(type.text(), {"string", "number", "integer", "boolean", "null"}))
        return fail("a list of types may hold string, number, integer, boolean and null");
    }
    JsonValue result = JsonValue::object({{"type", types}});
    copy(value, result, {"description"});
    return result;
  }

  void check_string(const JsonValue& value) {
    if (const JsonValue* words = value.find("enum")) {
      bool good = words->is_array();
      for (const JsonValue& word : words->items())
        good = good && word.is_string();
      if (!good) fail("`enum` of a string needs strings");
    }
    if (const JsonValue* format = value.find("format")) {
      if (!format->is_string() || !is_one_of(format->text(), {"email", "hostname", "ipv4", "ipv6", "uuid"}))
        fail("`format` is one of email, hostname, ipv4, ipv6, uuid");
    }
  }

  void check_bounds(const JsonValue& value, bool integer) {
    for (const char* key :
         {"const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      const JsonValue* bound = value.find(key);
      if (bound == nullptr || bound->is_null()) continue;
      if (!bound->is_number() || (integer && !bound->is_integer()))
        fail(fmt::format("`{}` needs {}", key, integer ? "an integer" : "a number"));
    }
  }

  JsonValue object(const JsonValue& value, JsonValue result, bool may_be_empty) {
    const JsonValue* properties = value.find("properties");
    if (properties != nullptr && !properties->is_object()) return fail("`properties` needs an object");
    if ((properties == nullptr || properties->size() == 0) && !may_be_empty)
      return fail("An object with no properties is not allowed.");
    JsonValue normal = JsonValue::object();
    JsonValue names = JsonValue::array();
    if (properties != nullptr) {
      for (std::size_t i = 0; i < properties->size(); ++i) {
        normal.append(properties->keys()[i], schema(properties->items()[i], false));
        names.push(properties->keys()[i]);
      }
    }
    if (const JsonValue* additional = value.find("additionalProperties")) {
      if (!additional->is_boolean()) return fail("`additionalProperties` needs a boolean");
      if (additional->boolean()) return fail("additionalProperties should not be true");
    }
    if (const JsonValue* required = value.find("required")) {
      if (!required->is_array() || !same_names(*required, names))
        return fail("Required properties must match all properties in the object");
    }
    result.set("properties", std::move(normal));
    result.set("additionalProperties", false);
    result.set("required", std::move(names));
    copy(value, result, {"description"});
    if (const JsonValue* definitions = value.find("$def");
        definitions != nullptr && definitions->is_object()) {
      JsonValue all = JsonValue::object();
      for (std::size_t i = 0; i < definitions->size(); ++i)
        all.append(definitions->keys()[i], schema(definitions->items()[i], false));
      result.set("$def", std::move(all));
    }
    return result;
  }
};

}  // namespace

StrictSchema strict_schema(const JsonValue& schema, bool may_be_empty) {
  Normaliser normaliser;
  StrictSchema result;
  result.schema = normaliser.schema(schema, may_be_empty);
  result.fault = std::move(normaliser.fault);
  return result;
}

}  // namespace deepinfer::dialects
