// The JSON arguments of one tool call, built from its parameters as they arrive. recipe.md 5.2 and 5.3.1 to 5.3.4.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/json_text.h"

namespace deepinfer::text {

// Order of calls: begin_parameter, key, after_key, begin_value, value..., end_value for each parameter, then close (or
// cut). Every function appends to `out` what may be sent now. Strings stream; a JSON value is held until it is
// whole, because it may have to be mended.
class ArgumentsBuilder {
 public:
  enum class Kind {
    kString,
    kJson
  };  // a parameter that does not say is taken as JSON: what does not parse becomes a string

  // `schema` may be null: no conversions. It must outlive the builder.
  explicit ArgumentsBuilder(const ArgumentSchema* schema) : schema_(schema) {}

  void begin_parameter(std::string& out);
  void key(std::string_view bytes, std::string& out);  // a repeated key: the whole parameter is dropped
  void after_key(std::string& out);
  void begin_value(Kind kind, std::string& out);
  void value(std::string_view bytes, std::string& out);
  void end_value(std::string& out);
  // The parameter's tag never ended: the value is null.
  void no_value(std::string& out);

  // End of the call: always leaves a whole JSON object.
  void close(std::string& out);
  // Output was cut by length: sends what is held, closes nothing. `key` is the part of a key that has been read, with
  // `quoted` telling whether its opening quote was.
  void cut(std::string_view key, bool quoted, std::string& out);

  std::size_t repairs() const { return repairs_; }

 private:
  enum class Stage { kBetween, kBegun, kKey, kAfterKey, kValue };

  std::string& sink(std::string& out) { return wrapping_ ? held_ : out; }
  std::string_view separator() const { return keys_.empty() ? "{" : ", "; }
  std::string finished_json_value();
  std::string finished_string_value();

  const ArgumentSchema* schema_;
  Stage stage_ = Stage::kBetween;
  std::vector<std::string> keys_;
  bool dropped_ = false;   // the current parameter repeats a key
  bool buffered_ = false;  // the current value is held until it is whole
  Kind kind_ = Kind::kJson;
  std::string value_;
  Utf8Stream utf8_;
  std::string piece_;  // scratch of value()

  // 5.3.4: a first parameter `arguments` or `input` that the schema does not know. It is held: if it stays alone and its
  // value is an object that fits the schema, that object is the arguments.
  bool wrapping_ = false;
  std::string held_;
  std::string wrapped_;
  std::size_t repairs_ = 0;
};

}  // namespace deepinfer::text
