#include "text/char_classes.h"

#include <algorithm>
#include <vector>

namespace deepinfer::text {
namespace {

constexpr char32_t kCodePoints = 0x110000;

struct Run {
  char32_t first;
  std::uint8_t classes;
};

constexpr std::uint8_t kOther = 0;
constexpr std::uint8_t kLetter = kWordClass;
constexpr std::uint8_t kMark = kWordClass;
constexpr std::uint8_t kNumber = kNumberClass;
constexpr std::uint8_t kPunctuation = kSymbolClass;
constexpr std::uint8_t kSymbol = kSymbolClass;
constexpr std::uint8_t kSpace = kBlankClass;

constexpr Run kRuns[] = {
#define RUN(first, classes) {first, classes},
#include "text/char_classes_runs.inc"
#undef RUN
};

std::vector<std::uint8_t> expand() {
  std::vector<std::uint8_t> table(kCodePoints);
  for (std::size_t i = 0; i < std::size(kRuns); ++i) {
    const char32_t end = i + 1 < std::size(kRuns) ? kRuns[i + 1].first : kCodePoints;
    std::fill(table.begin() + kRuns[i].first, table.begin() + end, kRuns[i].classes);
  }
  table['\n'] = table['\r'] = kLineEndClass;
  const auto mark_cjk = [&](char32_t first, char32_t last) {
    for (char32_t code = first; code <= last; ++code)
      table[code] |= kCjkClass;
  };
  mark_cjk(0x4E00, 0x9FA5);
  mark_cjk(0x3040, 0x30FF);
  return table;
}

}  // namespace

const std::uint8_t* char_classes() {
  static const std::vector<std::uint8_t> table = expand();
  return table.data();
}

}  // namespace deepinfer::text
