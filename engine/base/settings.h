// Every setting of the program, in one table: name, flag, environment name, type, default, allowed values, documentation.
// Help texts, the documentation page and the tests are made from it. A flag beats its environment name; a value that
// is not allowed is refused with the list of those that are (interfaces.md section 3).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

enum class SettingType { kText, kChoice, kInteger, kSwitch };

struct SettingChoice {
  std::string_view value;             // what the flag takes and Settings returns
  std::string_view environment_word;  // what the environment name takes; empty: not offered there
};

struct SettingRow {
  std::string_view name = {};         // "precision"
  std::string_view flag = {};         // "--precision"; empty: none
  std::string_view environment = {};  // "DEEPINFER_..."; empty: none
  SettingType type = SettingType::kText;
  std::string_view default_value = {};          // empty: unset, the documentation says what then happens
  std::span<const SettingChoice> choices = {};  // kChoice
  std::int64_t least = 0;                       // kInteger
  std::int64_t most = 0;
  std::string_view unit = {};
  std::string_view documentation = {};
};

std::span<const SettingRow> setting_table();
// The row of a name; the name must exist (checked).
const SettingRow& setting_row(std::string_view name);

class Settings {
 public:
  using Environment = std::function<std::optional<std::string>(std::string_view name)>;
  enum class Source { kDefault, kEnvironment, kFlag };

  // All settings from flags (by setting name, as given on the command line) and the environment. kInvalidArgument
  // names the flag or environment name, the value, and the allowed values.
  static Result<Settings> read(const std::map<std::string, std::string>& flags,
                               const Environment& environment = process_environment);

  // The value in the flag's words; "" when unset. `name` must be in the table, with that type where one is named (checked).
  const std::string& text(std::string_view name) const;
  bool given(std::string_view name) const { return source(name) != Source::kDefault; }
  Source source(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  bool enabled(std::string_view name) const;

  static std::optional<std::string> process_environment(std::string_view name);

 private:
  struct Value {
    std::string text;
    Source source = Source::kDefault;
  };
  const Value& value(std::string_view name) const;
  std::map<std::string, Value, std::less<>> values_;
};

// The value a word stands for, checked against the row; `from_environment` takes the environment's words. kInvalidArgument.
Result<std::string> parse_setting(const SettingRow& row, std::string_view word, bool from_environment);

// The table as a Markdown table, for docs/settings.md.
std::string settings_markdown();

}  // namespace deepinfer
