// JSON as text: what the parser needs to check and mend the values that a model wrote, without changing valid ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::text {

// Appends `text` as the inside of a JSON string. `text` is valid UTF-8. Escapes quotes, backslashes and control
// characters only, in the short form where there is one; everything else stays raw.
void append_json_escaped(std::string_view text, std::string& json);
std::string json_string(std::string_view text);  // with its quotes

// Whether `text` is one JSON value with optional white space around it (RFC 8259; any depth, any size of number).
bool is_json(std::string_view text);

// Mends what models get wrong: True, False and None outside strings, and a comma before a closing bracket. Returns
// nothing when the result is still not JSON.
std::optional<std::string> mend_json(std::string_view text);

// Types of JSON Schema, as bits. An integer is also a number.
enum JsonType : std::uint8_t {
  kJsonString = 1,
  kJsonInteger = 2,
  kJsonNumber = 4,
  kJsonBoolean = 8,
  kJsonArray = 16,
  kJsonObject = 32,
  kJsonNull = 64,
};
inline constexpr std::uint8_t kAnyJsonType = 127;

// Types of a text for which is_json holds.
std::uint8_t json_types(std::string_view text);

// What is checked of a tool's parameters: the types of its properties.
class ArgumentSchema {
 public:
  // A text that is not an object schema gives a schema without knowledge: known() is false and nothing is checked.
  static ArgumentSchema from_json(std::string_view schema);

  bool known() const { return known_; }
  bool has(std::string_view key) const;
  // Types allowed for a property; kAnyJsonType when the schema does not say.
  std::uint8_t types(std::string_view key) const;
  // Whether a JSON object has only known keys, all required ones, and fitting types.
  bool fits(std::string_view object) const;

 private:
  struct Property {
    std::string key;
    std::uint8_t types;
    bool required;
  };
  const Property* find(std::string_view key) const;

  bool known_ = false;
  std::vector<Property> properties_;
};

}  // namespace deepinfer::text
