#include "bench/mixed_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string_view>

#include "text/utf8.h"

namespace deepinfer::bench {
namespace {

// A script: which characters its words are made of, and how they stand together.
struct Script {
  std::string_view name;
  double share;
  char32_t first, last;  // its own letters; words have at least one, beside ASCII letters where `mixed`
  bool mixed;            // ASCII letters belong to its words as well
  double longer;         // chance that a word goes on with a further entry
  std::string_view comma, stop;
};

constexpr Script kScripts[] = {
    {"english", 0.35, 'A', 'z', true, 0.15, ", ", ". "},
    {"code", 0.20, 'A', 'z', true, 0.30, "", ""},
    {"chinese", 0.15, 0x4E00, 0x9FA5, false, 0.85, "，", "。"},
    {"japanese", 0.05, 0x3040, 0x30FF, false, 0.85, "、", "。"},
    {"cyrillic", 0.08, 0x400, 0x4FF, false, 0.35, ", ", ". "},
    {"accented latin", 0.07, 0xC0, 0x24F, true, 0.35, ", ", ". "},
    {"korean", 0.04, 0xAC00, 0xD7A3, false, 0.45, ", ", ". "},
    {"arabic", 0.03, 0x600, 0x6FF, false, 0.35, "، ", ". "},
    {"indic and thai", 0.03, 0x900, 0xE7F, false, 0.60, " ", "। "},
};

constexpr std::size_t kFewestEntries = 40;

// Entries of a script: those that begin a word (behind a blank, where the script has blanks) and those that go on.
struct Words {
  std::vector<std::string_view> begin, next;
};

// How an entry fits a script: not at all, as the beginning of a word, or as its continuation.
enum class Fit { kNone, kBegin, kNext };

Fit fit(const Script& script, std::string_view entry) {
  const bool blank = entry.starts_with(' ');
  std::string_view rest = entry.substr(blank ? 1 : 0);
  bool own = false;
  if (rest.empty() || text::valid_utf8_prefix(rest) != rest.size()) return Fit::kNone;
  while (!rest.empty()) {
    const text::Utf8Step step = text::read_utf8(rest);
    const bool ascii_letter = step.code < 0x80 && std::isalpha(static_cast<int>(step.code)) != 0;
    const bool letter =
        step.code >= script.first && step.code <= script.last && (step.code >= 0x80 || ascii_letter);
    if (!letter && !(script.mixed && ascii_letter)) return Fit::kNone;
    own = own || letter;
    rest.remove_prefix(step.size);
  }
  // Single letters are pieces of words, not words.
  constexpr std::size_t kShortestWord = 3;
  if (!own || (blank && entry.size() < kShortestWord)) return Fit::kNone;
  return blank ? Fit::kBegin : Fit::kNext;
}

Words words_of(const text::Tokenizer& tokenizer, const Script& script) {
  Words words;
  for (text::TokenId id = 0; static_cast<std::size_t>(id) < tokenizer.vocabulary_size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string_view entry = tokenizer.token_bytes(id);
    const Fit how = fit(script, entry);
    if (how == Fit::kBegin) words.begin.push_back(entry);
    if (how == Fit::kNext) words.next.push_back(entry);
  }
  return words;
}

class Writer {
 public:
  Writer(const Script& script, const Words& words, std::uint64_t seed)
      : script_(script), words_(words), random_(seed) {}

  std::string write(std::size_t bytes) {
    while (text_.size() < bytes) {
      if (script_.name == "code") {
        line_of_code();
      } else {
        sentence();
      }
    }
    return std::move(text_);
  }

 private:
  double uniform() { return std::generate_canonical<double, 53>(random_); }
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  // Entries stand in order of their merges, so roughly of their frequency: the chance falls as one over the place
  // behind a short head, as it does with the words of a language.
  std::string_view draw(const std::vector<std::string_view>& entries) {
    constexpr double kHead = 40;
    const double place = kHead * (std::pow(1 + static_cast<double>(entries.size()) / kHead, uniform()) - 1);
    return entries[std::min(static_cast<std::size_t>(place), entries.size() - 1)];
  }

  void word() {
    const bool has_blanks =
        words_.begin.size() >= kFewestEntries && words_.begin.size() * 4 > words_.next.size();
    text_ += draw(has_blanks ? words_.begin : words_.next);
    while (uniform() < script_.longer)
      text_ += draw(words_.next);
  }

  void sentence() {
    for (std::size_t words = 4 + below(18); words > 0; --words) {
      word();
      const double next = uniform();
      if (next < 0.08) text_ += script_.comma;
      if (next > 0.98) text_ += " " + std::to_string(below(10000));
    }
    text_ += script_.stop;
    if (uniform() < 0.2) text_ += uniform() < 0.5 ? "\n" : "\n\n";
  }

  void line_of_code() {
    static constexpr std::array<std::string_view, 12> kBetween = {"(",   ")", " = ", "_",  ".",  ", ",
                                                                  " + ", "[", "]",   "->", ": ", "\""};
    text_.append(4 * below(5), ' ');
    for (std::size_t words = 1 + below(7); words > 0; --words) {
      text_ += draw(words_.next);
      if (uniform() < script_.longer) text_ += draw(words_.next);
      text_ += kBetween[below(kBetween.size())];
      if (uniform() < 0.1) text_ += std::to_string(below(256));
    }
    text_ += uniform() < 0.7 ? ";\n" : " {\n";
    if (uniform() < 0.1) text_ += "// ";
  }

  const Script& script_;
  const Words& words_;
  std::mt19937_64 random_;
  std::string text_;
};

}  // namespace

std::vector<TextPart> mixed_text(const text::Tokenizer& tokenizer, std::size_t bytes, std::uint64_t seed) {
  std::vector<std::pair<const Script*, Words>> usable;
  double total = 0;
  for (const Script& script : kScripts) {
    Words words = words_of(tokenizer, script);
    if (words.next.size() < kFewestEntries) continue;
    total += script.share;
    usable.emplace_back(&script, std::move(words));
  }
  std::vector<TextPart> parts;
  for (const auto& [script, words] : usable) {
    const double share = script->share / total;
    Writer writer(*script, words, seed + parts.size());
    parts.push_back({std::string(script->name), share,
                     writer.write(static_cast<std::size_t>(share * static_cast<double>(bytes)))});
  }
  return parts;
}

}  // namespace deepinfer::bench
