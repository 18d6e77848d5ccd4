// Typed, bounded access to the fields of a JSON object. The first fault is kept and every later read
// returns its default, so that a parser reads straight down and asks once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer::model {

// Bounds of a number, both inclusive.
template <class T>
struct Bounds {
  T lowest;
  T highest;
};

// Names of one field: the first is the canonical one, the rest are the spellings of other files.
using Names = std::initializer_list<std::string_view>;

class ConfigReader {
 public:
  // `prefix` names the object in messages: "" or "text_config". Both are borrowed.
  ConfigReader(const nlohmann::json& object, std::string prefix);

  bool has(Names names) const;
  int64_t integer(Names names, Bounds<int64_t> bounds, std::optional<int64_t> fallback = {});
  int narrow(Names names, Bounds<int64_t> bounds, std::optional<int64_t> fallback = {}) {
    return static_cast<int>(integer(names, bounds, fallback));
  }
  double real(Names names, Bounds<double> bounds, std::optional<double> fallback = {});
  bool boolean(Names names, bool fallback);
  std::string text(Names names, std::optional<std::string> fallback = {});
  std::vector<int64_t> integers(Names names, Bounds<int64_t> bounds, size_t longest);
  // The nested object, or an empty one (and a fault, unless optional).
  ConfigReader object(Names names, bool optional = false);

  // Refuses a field whose text differs from the only value this build runs. An absent one passes.
  void require_text(Names names, std::string_view only);
  void require_false(Names names);

  // Records a fault about a field: "<field> is <found>, expected <expected>".
  void refuse(std::string_view name, const std::string& found, const std::string& expected,
              ErrorKind kind = ErrorKind::kFormat);
  void adopt(const ConfigReader& inner);  // takes over the first fault of a nested reader
  bool failed() const { return fault_.has_value(); }
  const Error& fault() const { return *fault_; }

 private:
  const nlohmann::json* find(Names names, std::string_view* used) const;
  void missing(Names names, const std::string& expected);
  std::string path(std::string_view name) const;

  const nlohmann::json* object_;
  std::string prefix_;
  std::optional<Error> fault_;
};

}  // namespace deepinfer::model
