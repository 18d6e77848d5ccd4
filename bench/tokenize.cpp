#include "bench/tokenize.h"

#include <ctime>

#include <fmt/format.h>

#include <algorithm>

#include "bench/mixed_text.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace deepinfer::bench {
namespace {

constexpr int kDefaultSamples = 5;
constexpr std::size_t kBytes = std::size_t{32} << 20;
constexpr std::size_t kPromptBytes = std::size_t{64} << 10;
constexpr std::uint64_t kSeed = 41;
constexpr double kLimitMibPerSecond = 30;
constexpr double kLimitLoadSeconds = 0.3;
constexpr double kMib = 1 << 20;

// The thread's own time: what others take of the core does not count.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Encoded {
  double seconds = 0;
  std::size_t tokens = 0;
};

Encoded encode(const text::Tokenizer& tokenizer, std::string_view bytes) {
  Encoded result;
  std::vector<text::TokenId> ids;
  const double start = thread_seconds();
  while (!bytes.empty()) {
    std::size_t size = std::min(kPromptBytes, bytes.size());
    while (size < bytes.size() && (static_cast<unsigned char>(bytes[size]) & 0xC0) == 0x80)
      ++size;
    ids.clear();
    tokenizer.encode(bytes.substr(0, size), ids);
    result.tokens += ids.size();
    bytes.remove_prefix(size);
  }
  result.seconds = thread_seconds() - start;
  return result;
}

}  // namespace

Result<std::vector<Row>> run_tokenize(const std::filesystem::path& file, const Options& options) {
  const int samples = options.samples > 0 ? options.samples : kDefaultSamples;
  std::vector<double> loads;
  for (int i = 0; i + 1 < samples; ++i) {
    const double start = thread_seconds();
    DI_TRY(text::Tokenizer::load(file));
    loads.push_back(thread_seconds() - start);
  }
  const double start = thread_seconds();
  DI_ASSIGN(const auto tokenizer, text::Tokenizer::load(file));
  loads.push_back(thread_seconds() - start);

  const std::vector<TextPart> parts = mixed_text(tokenizer, kBytes, kSeed);
  std::vector<std::vector<double>> seconds(parts.size());
  std::vector<double> all;
  std::vector<std::size_t> tokens(parts.size());
  for (int sample = 0; sample < samples; ++sample) {
    double total = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Encoded encoded = encode(tokenizer, parts[i].text);
      seconds[i].push_back(encoded.seconds);
      tokens[i] = encoded.tokens;
      total += encoded.seconds;
    }
    all.push_back(total);
    if (options.progress) options.progress("encoding", static_cast<double>(sample + 1) / samples);
  }

  std::vector<Row> rows;
  double bytes = 0;
  double all_tokens = 0;
  std::string shares;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto size = static_cast<double>(parts[i].text.size());
    bytes += size;
    all_tokens += static_cast<double>(tokens[i]);
    shares += fmt::format("{}{} {:.0f} %", i == 0 ? "" : ", ", parts[i].script, 100 * parts[i].share);
    rows.push_back({"tokenize " + parts[i].script, size / kMib / median(seconds[i]), "MiB/s", 0,
                    fmt::format("{:.1f} MiB, {:.2f} bytes a token", size / kMib,
                                size / static_cast<double>(tokens[i]))});
  }
  const std::string conditions = fmt::format(
      "{}, {} entries, 1 thread, its own time, median of {}; {:.1f} MiB without repeats ({}), {:.2f} bytes a "
      "token",
      file.string(), tokenizer.vocabulary_size(), samples, bytes / kMib, shares, bytes / all_tokens);
  rows.insert(rows.begin(),
              {"tokenize", bytes / kMib / median(all), "MiB/s", kLimitMibPerSecond, conditions});
  rows.push_back(
      {"tokenize load", median(loads), "s", kLimitLoadSeconds, "reading and indexing the file, own time"});
  return rows;
}

}  // namespace deepinfer::bench
