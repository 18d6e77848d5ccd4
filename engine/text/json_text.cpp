#include "text/json_text.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

namespace deepinfer::text {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front()))
    text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back()))
    text.remove_suffix(1);
  return text;
}

// Reads JSON without building it. No recursion: a model may nest as deep as it likes.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool document() {
    std::vector<char> open;  // closing brackets that are due
    while (true) {
      skip_blanks();
      if (take('{')) {
        skip_blanks();
        if (!take('}')) {
          open.push_back('}');
          if (!key()) return false;
          continue;
        }
      } else if (take('[')) {
        skip_blanks();
        if (!take(']')) {
          open.push_back(']');
          continue;
        }
      } else if (!scalar()) {
        return false;
      }
      // A value has ended: close what ends with it, up to the next value or the end of the text.
      while (true) {
        skip_blanks();
        if (open.empty()) return at_ == text_.size();
        if (take(',')) {
          skip_blanks();
          if (open.back() == '}' && !key()) return false;
          break;
        }
        if (!take(open.back())) return false;
        open.pop_back();
      }
    }
  }

 private:
  bool more() const { return at_ < text_.size(); }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_blanks() {
    while (more() && is_blank(text_[at_]))
      ++at_;
  }
  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  bool key() {
    if (!string()) return false;
    skip_blanks();
    return take(':');
  }
  bool scalar() {
    if (!more()) return false;
    switch (text_[at_]) {
      case '"': return string();
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      default: return number();
    }
  }
  bool digits() {
    const std::size_t begin = at_;
    while (more() && is_digit(text_[at_]))
      ++at_;
    return at_ > begin;
  }
  bool number() {
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      return digits();
    }
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    while (more()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') continue;
      if (!more()) return false;
      const char escaped = text_[at_++];
      if (escaped == 'u') {
        for (int i = 0; i < 4; ++i, ++at_) {
          if (!more() ||
              std::string_view("0123456789abcdefABCDEF").find(text_[at_]) == std::string_view::npos)
            return false;
        }
      } else if (std::string_view("\"\\/bfnrt").find(escaped) == std::string_view::npos) {
        return false;
      }
    }
    return false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::uint8_t type_named(const nlohmann::json& name) {
  static const std::array<std::pair<std::string_view, std::uint8_t>, 7> names = {{
      {"string", kJsonString},
      {"integer", kJsonInteger},
      {"number", kJsonNumber},
      {"boolean", kJsonBoolean},
      {"array", kJsonArray},
      {"object", kJsonObject},
      {"null", kJsonNull},
  }};
  if (!name.is_string()) return kAnyJsonType;
  for (const auto& [text, type] : names) {
    if (name.get_ref<const std::string&>() == text) return type;
  }
  return kAnyJsonType;
}

std::uint8_t types_of_value(const nlohmann::json& value) {
  if (value.is_number_integer()) return kJsonInteger | kJsonNumber;
  if (value.is_number()) return kJsonNumber;
  return type_named(value.type_name());
}

std::uint8_t types_of_schema(const nlohmann::json& schema) {
  if (!schema.is_object()) return kAnyJsonType;
  std::uint8_t types = 0;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) return type_named(*type);
    for (const nlohmann::json& name : *type)
      types |= type_named(name);
    return types;
  }
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const nlohmann::json& value : *values)
      types |= types_of_value(value);
    return types;
  }
  if (const auto value = schema.find("const"); value != schema.end()) return types_of_value(*value);
  for (const char* choice : {"anyOf", "oneOf"}) {
    const auto list = schema.find(choice);
    if (list == schema.end() || !list->is_array()) continue;
    for (const nlohmann::json& one : *list)
      types |= types_of_schema(one);
    return types;
  }
  return kAnyJsonType;
}

}  // namespace

void append_json_escaped(std::string_view text, std::string& json) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"': json += "\\\""; break;
      case '\\': json += "\\\\"; break;
      case '\b': json += "\\b"; break;
      case '\f': json += "\\f"; break;
      case '\n': json += "\\n"; break;
      case '\r': json += "\\r"; break;
      case '\t': json += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          json += "\\u00";
          json += kHex[static_cast<unsigned char>(c) >> 4];
          json += kHex[c & 15];
        } else {
          json += c;
        }
    }
  }
}

std::string json_string(std::string_view text) {
  std::string json = "\"";
  append_json_escaped(text, json);
  return json += '"';
}

bool is_json(std::string_view text) {
  return Scanner(text).document();
}

std::optional<std::string> mend_json(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kLiterals = {
      {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
  std::string mended;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      mended += c;
      if (c == '\\' && at + 1 < text.size()) mended += text[++at];
      if (c == '"') in_string = false;
      continue;
    }
    const auto literal = std::find_if(kLiterals.begin(), kLiterals.end(), [&](const auto& pair) {
      return text.substr(at, pair.first.size()) == pair.first;
    });
    if (literal != kLiterals.end()) {
      mended += literal->second;
      at += literal->first.size() - 1;
    } else if (c == ',' && [&] {
                 const std::size_t next = text.find_first_not_of(" \t\r\n", at + 1);
                 return next != std::string_view::npos && (text[next] == ']' || text[next] == '}');
               }()) {
      continue;
    } else {
      mended += c;
      in_string = c == '"';
    }
  }
  if (!is_json(mended)) return std::nullopt;
  return mended;
}

std::uint8_t json_types(std::string_view text) {
  text = trimmed(text);
  switch (text.front()) {
    case '"': return kJsonString;
    case '{': return kJsonObject;
    case '[': return kJsonArray;
    case 't':
    case 'f': return kJsonBoolean;
    case 'n': return kJsonNull;
    default:
      return text.find_first_of(".eE") == std::string_view::npos ? kJsonInteger | kJsonNumber : kJsonNumber;
  }
}

ArgumentSchema ArgumentSchema::from_json(std::string_view schema) {
  ArgumentSchema result;
  const nlohmann::json root = nlohmann::json::parse(schema, nullptr, false);
  if (!root.is_object()) return result;
  const auto properties = root.find("properties");
  if (properties == root.end() || !properties->is_object()) return result;
  const auto required = root.find("required");
  const auto is_required = [&](const std::string& key) {
    return required != root.end() && required->is_array() &&
           std::find(required->begin(), required->end(), key) != required->end();
  };
  result.known_ = true;
  for (const auto& [key, property] : properties->items()) {
    result.properties_.push_back({key, types_of_schema(property), is_required(key)});
  }
  return result;
}

const ArgumentSchema::Property* ArgumentSchema::find(std::string_view key) const {
  const auto at =
      std::find_if(properties_.begin(), properties_.end(), [&](const Property& p) { return p.key == key; });
  return at == properties_.end() ? nullptr : &*at;
}

bool ArgumentSchema::has(std::string_view key) const {
  return find(key) != nullptr;
}

std::uint8_t ArgumentSchema::types(std::string_view key) const {
  const Property* property = find(key);
  return property == nullptr ? kAnyJsonType : property->types;
}

bool ArgumentSchema::fits(std::string_view object) const {
  const nlohmann::json value = nlohmann::json::parse(object, nullptr, false);
  if (!known_ || !value.is_object()) return false;
  for (const auto& [key, member] : value.items()) {
    const Property* property = find(key);
    if (property == nullptr || (property->types & types_of_value(member)) == 0) return false;
  }
  return std::all_of(properties_.begin(), properties_.end(), [&](const Property& property) {
    return !property.required || value.contains(property.key);
  });
}

}  // namespace deepinfer::text
