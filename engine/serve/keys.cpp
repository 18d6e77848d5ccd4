#include "serve/keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <charconv>

#include "base/mapped_file.h"
#include "sched/request.h"

namespace deepinfer::serve {
namespace {

constexpr std::size_t kMostBytes = std::size_t{16} << 20;
constexpr std::size_t kLeastKeyLength = 8;

std::string_view next_word(std::string_view& line) {
  const std::size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  const std::size_t end = std::min(line.find_first_of(" \t\r", begin), line.size());
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

Result<int> number_in(std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return make_error(ErrorKind::kFormat,
                      fmt::format("\"{}\" is no number from {} to {}", text, least, most));
  }
  return value;
}

Result<void> read_option(std::string_view word, KeyOwner& owner) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
  if (name == "tenant" && !value.empty()) {
    owner.tenant = value;
    return {};
  }
  if (name == "weight") {
    DI_ASSIGN(owner.weight, number_in(value, 1, sched::kMaxWeight));
    return {};
  }
  if (name == "max_waiting") {
    DI_ASSIGN(owner.max_waiting, number_in(value, 0, 1'000'000));
    return {};
  }
  if (name == "priority") {
    DI_ASSIGN(owner.priority, number_in(value, 0, sched::kPriorities - 1));
    return {};
  }
  return make_error(ErrorKind::kFormat, fmt::format("\"{}\" is no option", word),
                    "known: tenant=NAME, weight=N, max_waiting=N, priority=N");
}

}  // namespace

Result<std::vector<ApiKeys::Entry>> ApiKeys::parse(const std::filesystem::path& file, std::string_view text) {
  std::vector<Entry> entries;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    const std::string_view key = next_word(line);
    if (key.empty()) continue;
    const std::string where = fmt::format("cannot use {}: line {}", file.string(), number);
    if (key.size() < kLeastKeyLength) {
      return make_error(ErrorKind::kFormat, where + ": the key is shorter than 8 characters",
                        "a key that can be guessed protects nothing: openssl rand -hex 24 makes one");
    }
    Entry entry;
    entry.digest = sha256(key);
    entry.owner.tenant = "key-" + hex_text(std::span(entry.digest).first(6));
    entry.owner.priority = sched::kDefaultPriority;
    for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
      auto read = read_option(word, entry.owner);
      if (!read) return within(std::move(read).error(), where);
    }
    const bool twice = std::any_of(entries.begin(), entries.end(),
                                   [&](const Entry& other) { return other.digest == entry.digest; });
    if (twice) return make_error(ErrorKind::kFormat, where + ": the key stands in an earlier line too");
    entries.push_back(std::move(entry));
  }
  if (entries.empty()) {
    return make_error(ErrorKind::kFormat, fmt::format("cannot use {}: it holds no key", file.string()),
                      "one key a line; without --api-key-file everybody may use the server");
  }
  return entries;
}

Result<std::unique_ptr<ApiKeys>> ApiKeys::read(const std::filesystem::path& file) {
  auto keys = std::make_unique<ApiKeys>();
  keys->file_ = file;
  DI_TRY(keys->reread());
  return keys;
}

Result<void> ApiKeys::reread() {
  DI_ASSIGN(const std::string text, read_small_file(file_, kMostBytes));
  DI_ASSIGN(auto entries, parse(file_, text));
  const std::lock_guard lock(mutex_);
  entries_ = std::move(entries);
  return {};
}

bool ApiKeys::required() const {
  return !file_.empty();
}

std::optional<KeyOwner> ApiKeys::find(std::string_view key) const {
  const Sha256Digest digest = sha256(key);
  const std::lock_guard lock(mutex_);
  std::optional<KeyOwner> found;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = entry.owner;
  }
  return found;
}

std::vector<KeyOwner> ApiKeys::owners() const {
  const std::lock_guard lock(mutex_);
  std::vector<KeyOwner> owners;
  for (const Entry& entry : entries_)
    owners.push_back(entry.owner);
  return owners;
}

std::string_view key_of(std::string_view authorization, std::string_view x_api_key) {
  constexpr std::string_view kBearer = "bearer ";
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
  if (authorization.size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(),
                 [&](char b, char a) { return same(a, b); })) {
    return authorization.substr(kBearer.size());
  }
  return x_api_key;
}

}  // namespace deepinfer::serve
