#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/ids.h"

namespace deepinfer {
namespace {

constexpr int kBarWidth = 28;
constexpr std::chrono::milliseconds kBetweenDrawings{100};
constexpr double kSecondsBeforeAnEstimate = 0.5;

std::string amount(std::int64_t value, const std::string& unit) {
  if (unit == "B") return bytes_text(static_cast<std::uint64_t>(value));
  return unit.empty() ? fmt::format("{}", value) : fmt::format("{} {}", value, unit);
}

}  // namespace

Progress::Progress(std::string title, std::int64_t total, bool wanted, std::string unit)
    : title_(std::move(title)),
      total_(total),
      unit_(std::move(unit)),
      drawing_(wanted && total > 0 && ::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      next_(start_) {}

Progress::~Progress() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

void Progress::update(std::int64_t done) {
  if (!drawing_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kBetweenDrawings;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::fputs(("\r" + line(title_, done, total_, seconds, unit_) + "\x1b[K").c_str(), stderr);
  std::fflush(stderr);
}

std::string Progress::line(const std::string& title, std::int64_t done, std::int64_t total, double seconds,
                           const std::string& unit) {
  const std::int64_t within = std::clamp(done, std::int64_t{0}, total);
  const double part = total > 0 ? static_cast<double>(within) / static_cast<double>(total) : 1.0;
  const int filled = static_cast<int>(part * kBarWidth);
  std::string text =
      fmt::format("{}  [{}{}]  {} %  {} of {}", title, std::string(static_cast<std::size_t>(filled), '#'),
                  std::string(static_cast<std::size_t>(kBarWidth - filled), '-'),
                  static_cast<int>(part * 100), amount(within, unit), amount(total, unit));
  if (seconds >= kSecondsBeforeAnEstimate && part > 0)
    text += fmt::format("  {:.0f} s left", seconds * (1 - part) / part);
  return text;
}

}  // namespace deepinfer
