// Typed reading of request fields. Faults are collected, not thrown: reading goes on with a default, and the first
// fault of the graver kind is what the client gets (a wrong type anywhere comes before a meaningless value).
// null counts as absent everywhere. Private to the dialects.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "dialects/request.h"

namespace deepinfer::dialects {

class Findings {
 public:
  void shape(std::string message);
  void semantic(std::string message);
  void add(RequestError error);
  void merge(const Findings& other);  // as if its faults had come now
  bool clean() const { return !shape_ && !semantic_; }
  // The fault to report. Call only when not clean().
  const RequestError& error() const { return shape_ ? *shape_ : *semantic_; }

 private:
  std::optional<RequestError> shape_, semantic_;
};

using text::JsonValue;

// The member unless absent or null.
const JsonValue* given(const JsonValue& object, std::string_view key);
// "a.b" of a path and a key.
std::string join_path(std::string_view path, std::string_view key);
std::string index_path(std::string_view path, std::size_t index);  // "a[3]"
std::string_view type_name(const JsonValue& value);                // for messages: "a string", "a list", ...

// Each reports a member of another type as a shape fault and returns nothing.
std::optional<std::string> string_field(Findings& findings, const JsonValue& object, std::string_view key,
                                        std::string_view path);
std::optional<bool> bool_field(Findings& findings, const JsonValue& object, std::string_view key,
                               std::string_view path);
std::optional<double> number_field(Findings& findings, const JsonValue& object, std::string_view key,
                                   std::string_view path);
std::optional<std::uint64_t> unsigned_field(Findings& findings, const JsonValue& object, std::string_view key,
                                            std::string_view path,
                                            std::uint64_t most = std::numeric_limits<std::uint64_t>::max());
const JsonValue* object_field(Findings& findings, const JsonValue& object, std::string_view key,
                              std::string_view path);
const JsonValue* array_field(Findings& findings, const JsonValue& object, std::string_view key,
                             std::string_view path);

// The same, and an absent member is a shape fault too.
std::string required_string(Findings& findings, const JsonValue& object, std::string_view key,
                            std::string_view path);
const JsonValue* required_array(Findings& findings, const JsonValue& object, std::string_view key,
                                std::string_view path);
const JsonValue* required_object(Findings& findings, const JsonValue& object, std::string_view key,
                                 std::string_view path);
// The member must be there, null included; otherwise a shape fault and null.
const JsonValue* required_any(Findings& findings, const JsonValue& object, std::string_view key,
                              std::string_view path);
// The value must be an object; otherwise a shape fault.
bool expect_object(Findings& findings, const JsonValue& value, std::string_view path);
// One of a list of words; another word is a shape fault that names them. Returns its index.
std::optional<std::size_t> word_field(Findings& findings, const JsonValue& object, std::string_view key,
                                      std::string_view path, std::initializer_list<std::string_view> words);
// The same for a member that must be there.
std::optional<std::size_t> required_word(Findings& findings, const JsonValue& object, std::string_view key,
                                         std::string_view path,
                                         std::initializer_list<std::string_view> words);
void unknown_word(Findings& findings, std::string_view path, std::string_view word,
                  std::initializer_list<std::string_view> words);

}  // namespace deepinfer::dialects
