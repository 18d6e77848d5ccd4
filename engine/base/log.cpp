#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <memory>
#include <utility>

namespace deepinfer {
namespace {

constexpr std::array<std::pair<std::string_view, LogLevel>, 5> kWords = {{{"debug", LogLevel::kDebug},
                                                                          {"info", LogLevel::kInfo},
                                                                          {"warning", LogLevel::kWarning},
                                                                          {"error", LogLevel::kError},
                                                                          {"off", LogLevel::kOff}}};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::off;
}

spdlog::logger& logger() {
  // Never destroyed: threads may still log while the process ends.
  static spdlog::logger* const instance = [] {
    auto* created = new spdlog::logger("deepinfer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    created->set_level(spdlog::level::warn);
    created->flush_on(spdlog::level::trace);
    return created;
  }();
  return *instance;
}

}  // namespace

std::optional<LogLevel> log_level_of(std::string_view word) {
  for (const auto& [known, level] : kWords) {
    if (known == word) return level;
  }
  return std::nullopt;
}

void set_log_level(LogLevel level) {
  logger().set_level(spdlog_level(level));
}

bool log_enabled(LogLevel level) {
  return logger().should_log(spdlog_level(level));
}

void log(LogLevel level, std::string_view text) {
  logger().log(spdlog_level(level), "{}", text);
}

}  // namespace deepinfer
