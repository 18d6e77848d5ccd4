#include "text/symbol_matcher.h"

#include "base/check.h"

namespace deepinfer::text {

std::vector<Symbol> pattern(std::string_view text) {
  std::vector<Symbol> symbols = byte_pattern(text);
  for (Symbol& symbol : symbols) {
    if (symbol == 1) symbol = kDsmlSymbol;
    if (symbol == 2) symbol = kEndThinkSymbol;
  }
  return symbols;
}

std::vector<Symbol> byte_pattern(std::string_view text) {
  std::vector<Symbol> symbols;
  for (const char c : text)
    symbols.push_back(static_cast<unsigned char>(c));
  return symbols;
}

SymbolMatcher::SymbolMatcher(std::vector<Symbol> symbols, bool with_line_feeds)
    : pattern_(std::move(symbols)), fallback_(pattern_.size() + 1), with_line_feeds_(with_line_feeds) {
  DI_CHECK(!pattern_.empty());
  std::size_t length = 0;
  for (std::size_t i = 1; i < pattern_.size(); ++i) {
    while (length > 0 && pattern_[i] != pattern_[length])
      length = fallback_[length];
    if (pattern_[i] == pattern_[length]) ++length;
    fallback_[i + 1] = static_cast<std::uint32_t>(length);
  }
}

bool SymbolMatcher::feed(Symbol symbol) {
  if (with_line_feeds_ && matched_ == 0 && symbol == '\n') {
    ++line_feeds_;
    return false;
  }
  while (matched_ > 0 && pattern_[matched_] != symbol) {
    matched_ = fallback_[matched_];
    line_feeds_ = 0;
  }
  if (pattern_[matched_] == symbol) {
    ++matched_;
  } else {
    line_feeds_ = 0;
  }
  return matched_ == pattern_.size();
}

}  // namespace deepinfer::text
