// Finds a marker in a stream of symbols: bytes, or control ids that stand for themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer::text {

// 0..255 is a byte; the others are control ids seen as one symbol.
using Symbol = std::uint16_t;
inline constexpr Symbol kEndThinkSymbol = 256;
inline constexpr Symbol kDsmlSymbol = 257;

// `text` as symbols, with kDsmlSymbol for each '\1' and kEndThinkSymbol for each '\2' in it (patterns hold no such
// bytes otherwise).
std::vector<Symbol> pattern(std::string_view text);
std::vector<Symbol> byte_pattern(std::string_view text);  // every byte is itself

// Knuth-Morris-Pratt over one pattern. Optionally takes the line feeds right before the pattern into the match: a run
// that starts where nothing of the pattern was matched. (A line feed that refutes a partial match starts no run, as in
// deepseek-recipe: "<", LF, marker leaves the line feed in the text.)
class SymbolMatcher {
 public:
  explicit SymbolMatcher(std::vector<Symbol> symbols, bool with_line_feeds = false);

  // Takes one symbol; true when it completes the pattern. Call reset before feeding further.
  bool feed(Symbol symbol);
  void reset() { matched_ = line_feeds_ = 0; }
  // Symbols at the end of the input that belong to a match which may still complete, or that has just completed.
  std::size_t length() const { return matched_ + line_feeds_; }
  // Of those, the ones of the pattern itself.
  std::size_t matched() const { return matched_; }

 private:
  std::vector<Symbol> pattern_;
  std::vector<std::uint32_t>
      fallback_;  // by matched length: the longest shorter prefix that is also a suffix
  bool with_line_feeds_;
  std::size_t matched_ = 0;
  std::size_t line_feeds_ = 0;
};

}  // namespace deepinfer::text
