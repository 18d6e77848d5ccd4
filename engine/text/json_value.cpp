#include "text/json_value.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "text/json_text.h"
#include "text/utf8.h"

namespace deepinfer::text {

JsonValue JsonValue::real(double value) {
  return number(double_text(value, NumberText::kPython));
}

JsonValue JsonValue::array(std::vector<JsonValue> items) {
  JsonValue value(Type::kArray, {});
  value.items_ = std::move(items);
  return value;
}

JsonValue JsonValue::object(std::initializer_list<std::pair<std::string_view, JsonValue>> members) {
  JsonValue value(Type::kObject, {});
  for (const auto& [key, member] : members)
    value.set(key, member);
  return value;
}

bool JsonValue::is_integer() const {
  return is_number() && text_.find_first_of(".eE") == std::string::npos;
}

double JsonValue::as_double() const {
  double value = 0;
  const auto result = std::from_chars(text_.data(), text_.data() + text_.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    // Too large or too small: the exponent's sign says which. A plain long integer is too large.
    const std::size_t exponent = text_.find_first_of("eE");
    const bool tiny = exponent != std::string::npos && text_.compare(exponent + 1, 1, "-") == 0;
    const double magnitude = tiny ? 0.0 : std::numeric_limits<double>::infinity();
    return text_.starts_with('-') ? -magnitude : magnitude;
  }
  return value;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i] == key) return &items_[i];
  }
  return nullptr;
}

JsonValue* JsonValue::find(std::string_view key) {
  return const_cast<JsonValue*>(static_cast<const JsonValue*>(this)->find(key));
}

JsonValue& JsonValue::set(std::string_view key, JsonValue value) {
  DI_CHECK(is_object());
  if (JsonValue* present = find(key)) return *present = std::move(value);
  keys_.emplace_back(key);
  return items_.emplace_back(std::move(value));
}

void JsonValue::erase(std::string_view key) {
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i] != key) continue;
    keys_.erase(keys_.begin() + static_cast<std::ptrdiff_t>(i));
    items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

class JsonReader {
 public:
  JsonReader(std::string_view bytes, const JsonReadOptions& options) : bytes_(bytes), options_(options) {}

  Result<JsonValue> read() {
    const std::size_t valid = valid_utf8_prefix(bytes_);
    if (valid != bytes_.size()) return error(valid, "the text is not UTF-8");
    JsonValue value;
    skip_space();
    if (!read_value(value, 0)) return std::move(error_);
    skip_space();
    if (at_ != bytes_.size()) return error(at_, "something follows the value");
    return value;
  }

 private:
  static constexpr std::size_t kIndexedKeys = 16;  // objects with more keys get a table to find repeats

  Error error(std::size_t at, std::string_view what) const {
    return make_error(ErrorKind::kFormat,
                      fmt::format("cannot read JSON: {} (byte {} of {})", what, at, bytes_.size()));
  }
  bool fail(std::string_view what) {
    error_ = error(at_, what);
    return false;
  }
  char peek() const { return at_ < bytes_.size() ? bytes_[at_] : '\0'; }
  void skip_space() {
    while (at_ < bytes_.size() &&
           (bytes_[at_] == ' ' || bytes_[at_] == '\n' || bytes_[at_] == '\r' || bytes_[at_] == '\t'))
      ++at_;
  }
  bool take(std::string_view word) {
    if (bytes_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool read_value(JsonValue& value, std::size_t depth) {
    switch (peek()) {
      case '{': return depth < options_.max_depth ? read_object(value, depth + 1) : fail("nested too deeply");
      case '[': return depth < options_.max_depth ? read_array(value, depth + 1) : fail("nested too deeply");
      case '"': value.type_ = JsonValue::Type::kString; return read_string(value.text_);
      case 't':
      case 'f':
        value = JsonValue(peek() == 't');
        return take(value.boolean_ ? "true" : "false") || fail("expected a value");
      case 'n': return take("null") || fail("expected a value");
      default: return read_number(value);
    }
  }

  bool read_object(JsonValue& value, std::size_t depth) {
    value.type_ = JsonValue::Type::kObject;
    ++at_;
    skip_space();
    if (take("}")) return true;
    std::unordered_map<std::string, std::size_t> places;
    while (true) {
      if (peek() != '"') return fail("expected a key in quotes");
      std::string key;
      if (!read_string(key)) return false;
      skip_space();
      if (!take(":")) return fail("expected a colon after a key");
      skip_space();
      JsonValue member;
      if (!read_value(member, depth)) return false;
      add_member(value, std::move(key), std::move(member), places);
      skip_space();
      if (take("}")) return true;
      if (!take(",")) return fail("expected a comma or } in an object");
      skip_space();
    }
  }

  static void add_member(JsonValue& object, std::string key, JsonValue member,
                         std::unordered_map<std::string, std::size_t>& places) {
    if (object.keys_.size() < kIndexedKeys) {
      object.set(key, std::move(member));
      return;
    }
    if (places.empty()) {
      for (std::size_t i = 0; i < object.keys_.size(); ++i)
        places.emplace(object.keys_[i], i);
    }
    const auto [place, is_new] = places.try_emplace(key, object.keys_.size());
    if (is_new) {
      object.keys_.push_back(std::move(key));
      object.items_.push_back(std::move(member));
    } else {
      object.items_[place->second] = std::move(member);
    }
  }

  bool read_array(JsonValue& value, std::size_t depth) {
    value.type_ = JsonValue::Type::kArray;
    ++at_;
    skip_space();
    if (take("]")) return true;
    while (true) {
      if (!read_value(value.items_.emplace_back(), depth)) return false;
      skip_space();
      if (take("]")) return true;
      if (!take(",")) return fail("expected a comma or ] in an array");
      skip_space();
    }
  }

  bool read_digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9')
      ++at_;
    return at_ > begin;
  }

  bool read_number(JsonValue& value) {
    const std::size_t begin = at_;
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else if (!read_digits()) {
      at_ = begin;
      return fail("expected a value");
    }
    if (take(".") && !read_digits()) return fail("expected digits after the point");
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!read_digits()) return fail("expected digits in the exponent");
    }
    value = JsonValue::number(std::string(bytes_.substr(begin, at_ - begin)));
    return true;
  }

  bool read_string(std::string& text) {
    ++at_;
    while (true) {
      const std::size_t begin = at_;
      while (at_ < bytes_.size() && bytes_[at_] != '"' && bytes_[at_] != '\\' &&
             static_cast<unsigned char>(bytes_[at_]) >= 0x20)
        ++at_;
      text.append(bytes_, begin, at_ - begin);
      if (at_ == bytes_.size()) return fail("a string does not end");
      if (take("\"")) return true;
      if (bytes_[at_] != '\\') return fail("a control character inside a string");
      ++at_;
      if (!read_escape(text)) return false;
    }
  }

  bool read_escape(std::string& text) {
    static constexpr std::string_view kLetters = "\"\\/bfnrt";
    static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const std::size_t letter = kLetters.find(peek());
        peek() != '\0' && letter != std::string_view::npos) {
      ++at_;
      text.push_back(kMeanings[letter]);
      return true;
    }
    if (!take("u")) return fail("an unknown escape");
    std::uint32_t code = 0;
    if (!read_hex(code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && bytes_.substr(at_, 2) == "\\u") {
      const std::size_t second = at_;
      at_ += 2;
      std::uint32_t low = 0;
      if (!read_hex(low)) return false;
      if (low >= 0xDC00 && low < 0xE000) {
        append_utf8(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), text);
        return true;
      }
      at_ = second;  // not a pair: the second escape is read on its own
    }
    if (code >= 0xD800 && code < 0xE000) {
      if (!options_.replace_lone_surrogates) return fail("half of a surrogate pair");
      text += kReplacement;
      return true;
    }
    append_utf8(code, text);
    return true;
  }

  bool read_hex(std::uint32_t& code) {
    if (bytes_.size() - at_ < 4) return fail("a \\u escape does not end");
    const char* first = bytes_.data() + at_;
    const auto result = std::from_chars(first, first + 4, code, 16);
    if (result.ec != std::errc() || result.ptr != first + 4)
      return fail("a \\u escape needs four hex digits");
    at_ += 4;
    return true;
  }

  std::string_view bytes_;
  const JsonReadOptions& options_;
  std::size_t at_ = 0;
  Error error_;
};

Result<JsonValue> read_json(std::string_view bytes, const JsonReadOptions& options) {
  return JsonReader(bytes, options).read();
}

std::string double_text(double value, NumberText style) {
  char buffer[32];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view scientific(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t mark = scientific.find('e');
  int exponent = 0;
  const char* exponent_text = scientific.data() + mark + 1;
  std::from_chars(exponent_text + (*exponent_text == '+' ? 1 : 0), end, exponent);
  std::string sign, digits;
  for (const char c : scientific.substr(0, mark)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  // Python's repr writes decimals from 1e-4 on, serde_json from 1e-5 on; both up to 16 digits before the point.
  const int smallest = style == NumberText::kSerde ? -5 : -4;
  if (value == 0) return sign + "0.0";
  if (exponent < smallest || exponent >= 16) {
    std::string text = sign + digits.substr(0, 1);
    if (digits.size() > 1) text += "." + digits.substr(1);
    if (style == NumberText::kSerde)
      return text + fmt::format("e{}{}", exponent < 0 ? "-" : "+", std::abs(exponent));
    return text + fmt::format("e{}{:02}", exponent < 0 ? "-" : "+", std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

namespace {

void write_number(const JsonValue& value, const JsonWriteOptions& options, std::string& out) {
  const bool keep = options.numbers == NumberText::kAsWritten || value.is_integer();
  const double number = keep ? 0 : value.as_double();
  // What no double can hold stays as it was written.
  out += keep || std::isinf(number) ? value.text() : double_text(number, options.numbers);
}

}  // namespace

void write_json(const JsonValue& value, const JsonWriteOptions& options, std::string& out) {
  switch (value.type()) {
    case JsonValue::Type::kNull: out += "null"; return;
    case JsonValue::Type::kBoolean: out += value.boolean() ? "true" : "false"; return;
    case JsonValue::Type::kNumber: write_number(value, options, out); return;
    case JsonValue::Type::kString:
      out += '"';
      append_json_escaped(value.text(), out);
      out += '"';
      return;
    case JsonValue::Type::kArray:
    case JsonValue::Type::kObject: break;
  }
  const bool object = value.is_object();
  out += object ? '{' : '[';
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (i > 0) out += options.spaces ? ", " : ",";
    if (object) {
      out += '"';
      append_json_escaped(value.keys()[i], out);
      out += options.spaces ? "\": " : "\":";
    }
    write_json(value.items()[i], options, out);
  }
  out += object ? '}' : ']';
}

std::string write_json(const JsonValue& value, const JsonWriteOptions& options) {
  std::string out;
  write_json(value, options, out);
  return out;
}

}  // namespace deepinfer::text
