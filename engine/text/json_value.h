// A JSON value that loses nothing a prompt must repeat: the text of numbers, the order of keys, any size of integer.
//
// The readers of packages turn big integers into doubles, drop the sign of -0 or refuse lone surrogates, which
// recipe.md 3.4 and 4.5 decide otherwise; so this one is our own. It is strict (RFC 8259) and bounded in depth.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace deepinfer::text {

class JsonValue {
 public:
  enum class Type : std::uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };

  JsonValue() = default;  // null
  // What converts by itself makes literals of objects readable.
  // NOLINTBEGIN(google-explicit-constructor)
  JsonValue(std::nullptr_t) {}
  JsonValue(bool value) : type_(Type::kBoolean), boolean_(value) {}
  template <std::integral T>
  JsonValue(T value) : JsonValue(Type::kNumber, std::to_string(value)) {}
  JsonValue(const char* text) : JsonValue(Type::kString, text) {}
  JsonValue(std::string_view text) : JsonValue(Type::kString, std::string(text)) {}
  JsonValue(std::string text) : JsonValue(Type::kString, std::move(text)) {}
  // NOLINTEND(google-explicit-constructor)

  // A number by its JSON text, which must be one.
  static JsonValue number(std::string text) { return JsonValue(Type::kNumber, std::move(text)); }
  // A finite number in the shortest form that reads back the same, with a point or an exponent.
  static JsonValue real(double value);
  static JsonValue array(std::vector<JsonValue> items = {});
  static JsonValue object(std::initializer_list<std::pair<std::string_view, JsonValue>> members = {});

  Type type() const { return type_; }
  bool is_null() const { return type_ == Type::kNull; }
  bool is_boolean() const { return type_ == Type::kBoolean; }
  bool is_number() const { return type_ == Type::kNumber; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_array() const { return type_ == Type::kArray; }
  bool is_object() const { return type_ == Type::kObject; }

  bool boolean() const { return boolean_; }
  const std::string& text() const { return text_; }               // of a string, or a number as written
  const std::vector<JsonValue>& items() const { return items_; }  // of an array, or the values of an object
  const std::vector<std::string>& keys() const { return keys_; }  // of an object, parallel to items()
  std::size_t size() const { return items_.size(); }

  // Whether the number is written without point and exponent.
  bool is_integer() const;
  // Value of a number; overflow gives an infinity.
  double as_double() const;

  // The member of an object, or null when absent or when this is not an object. Linear.
  const JsonValue* find(std::string_view key) const;
  JsonValue* find(std::string_view key);
  // Replaces a member in place or appends it.
  JsonValue& set(std::string_view key, JsonValue value);
  void push(JsonValue value) { items_.push_back(std::move(value)); }
  // Adds a member whose key is known to be absent; set() looks for it first.
  void append(std::string key, JsonValue value) {
    keys_.push_back(std::move(key));
    items_.push_back(std::move(value));
  }
  // Removes a member; nothing happens when it is absent.
  void erase(std::string_view key);

  bool operator==(const JsonValue&) const = default;

 private:
  JsonValue(Type type, std::string text) : type_(type), text_(std::move(text)) {}
  friend class JsonReader;

  Type type_ = Type::kNull;
  bool boolean_ = false;
  std::string text_;
  std::vector<JsonValue> items_;
  std::vector<std::string> keys_;
};

struct JsonReadOptions {
  std::size_t max_depth = 128;          // nested arrays and objects
  bool replace_lone_surrogates = true;  // a lone \ud800 escape becomes U+FFFD; false: refused
};

// Reads one value with optional white space around it. A key that repeats keeps its first place and its last value.
// Errors: kFormat (not UTF-8, not JSON, too deep), with the byte where it happened.
Result<JsonValue> read_json(std::string_view bytes, const JsonReadOptions& options = {});

enum class NumberText : std::uint8_t {
  kAsWritten,  // the request's own text
  kPython,     // integers as written; others like Python's repr: 1.0, 1e-07, 1e+22
  kSerde,      // integers as written; others like Rust's serde_json: 1.0, 1e-7, 1e+22
};

struct JsonWriteOptions {
  bool spaces = false;  // ", " and ": " as json.dumps writes them, or nothing
  NumberText numbers = NumberText::kAsWritten;
};

// Non-ASCII stays raw, only control characters, quotes and backslashes are escaped (recipe.md 3.4).
std::string write_json(const JsonValue& value, const JsonWriteOptions& options = {});
void write_json(const JsonValue& value, const JsonWriteOptions& options, std::string& out);

// `value` in the shortest digits that read back the same, laid out as the two styles do.
std::string double_text(double value, NumberText style);

}  // namespace deepinfer::text
