// Log lines on standard error; standard output belongs to results. Thread-safe.
#pragma once

#include <optional>
#include <string_view>

namespace deepinfer {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// The words of --log-level: debug, info, warning, error, off.
std::optional<LogLevel> log_level_of(std::string_view word);

// Lines below this level are dropped. At the start: warning.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

// One line. Where making the text costs something, ask log_enabled first.
void log(LogLevel level, std::string_view text);
inline void log_debug(std::string_view text) {
  log(LogLevel::kDebug, text);
}
inline void log_info(std::string_view text) {
  log(LogLevel::kInfo, text);
}
inline void log_warning(std::string_view text) {
  log(LogLevel::kWarning, text);
}
inline void log_error(std::string_view text) {
  log(LogLevel::kError, text);
}

}  // namespace deepinfer
