#include "text/tokenizer.h"

#include <algorithm>
#include <array>

#include "base/digest.h"
#include "base/mapped_file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace deepinfer::text {
namespace {

// Largest tokenizer.json that is read; the shipped ones have 6.4 MB.
constexpr std::size_t kMostBytes = std::size_t{256} << 20;

struct ControlSpelling {
  std::string_view spelling;
  TokenId ControlIds::*id;
  bool required;
};

constexpr ControlSpelling kControlSpellings[] = {
    {"<｜begin▁of▁sentence｜>", &ControlIds::begin_of_sentence, true},
    {"<｜end▁of▁sentence｜>", &ControlIds::end_of_sentence, true},
    {"<｜User｜>", &ControlIds::user, true},
    {"<｜Assistant｜>", &ControlIds::assistant, true},
    {"<think>", &ControlIds::think, true},
    {"</think>", &ControlIds::end_think, true},
    {"｜DSML｜", &ControlIds::dsml, true},
    {"<｜▁pad▁｜>", &ControlIds::pad, false},
    {"<｜System｜>", &ControlIds::system, false},
    {"<｜latest_reminder｜>", &ControlIds::latest_reminder, false},
    {"<｜deepseek_image｜>", &ControlIds::image, false},
};

// Beginnings of the spellings of reserved entries: padding, the families of numbered placeholders, image positions.
constexpr std::string_view kPlaceholderBeginnings[] = {
    "<｜▁pad▁｜>",          "<｜place▁holder▁", "<|place_holder_", "<｜rl_image_",
    "<｜deepseek_image｜>", "<｜image｜>",      "<｜image2｜>"};

Result<ControlIds> find_control_ids(const AddedTokens& added) {
  ControlIds ids;
  for (const ControlSpelling& control : kControlSpellings) {
    const std::optional<TokenId> id = added.find(control.spelling);
    if (!id && control.required) {
      return make_error(ErrorKind::kFormat,
                        "added_tokens lacks the required token " + std::string(control.spelling),
                        "this is not the tokenizer of a DeepSeek-V4 or V4.1 chat model");
    }
    ids.*control.id = id.value_or(kNoToken);
  }
  return ids;
}

void append_number(std::string& buffer, std::size_t value) {
  for (int shift = 0; shift < 32; shift += 8)
    buffer += static_cast<char>(value >> shift & 0xFF);
}
void append_text(std::string& buffer, std::string_view text) {
  append_number(buffer, text.size());
  buffer += text;
}

std::string digest_of(const TokenizerFile& file) {
  std::string buffer;
  append_number(buffer, file.entries.size());
  for (const auto& entry : file.entries) {
    append_number(buffer, static_cast<std::size_t>(entry.id));
    append_text(buffer, entry.bytes);
  }
  append_number(buffer, file.merges.size());
  for (const auto& [left, right] : file.merges) {
    append_text(buffer, left);
    append_text(buffer, right);
  }
  append_number(buffer, file.split_regexes.size());
  for (const std::string& regex : file.split_regexes)
    append_text(buffer, regex);
  buffer += file.ignore_merges ? '\1' : '\0';
  return hex_text(sha256(buffer));
}

TokenBytes token_bytes_of(const TokenizerFile& file) {
  std::vector<TokenId> ids;
  std::vector<std::string_view> bytes;
  for (const auto& entry : file.entries) {
    ids.push_back(entry.id);
    bytes.push_back(entry.bytes);
  }
  const auto is_entry = [&](TokenId id) {
    return std::binary_search(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(file.entries.size()),
                              id);
  };
  for (const AddedToken& token : file.added) {
    if (is_entry(token.id)) continue;  // BOS, EOS, PAD: also base entries, with the same spelling
    ids.push_back(token.id);
    bytes.push_back(token.spelling);
  }
  return {ids, bytes};
}

Result<BytePairMerger> build_merger(const TokenizerFile& file, const TokenBytes& tokens,
                                    const PieceTable& entries) {
  if (file.merges.size() > BytePairMerger::kMostMerges) {
    return make_error(ErrorKind::kUnsupported, "model.merges has " + std::to_string(file.merges.size()) +
                                                   " entries, at most " +
                                                   std::to_string(BytePairMerger::kMostMerges) + " fit");
  }
  std::array<TokenId, 256> byte_tokens{};
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_tokens[byte] = entries.find(std::string_view(&c, 1));
    if (byte_tokens[byte] == kNoToken) {
      return make_error(ErrorKind::kFormat,
                        "model.vocab has no entry for the single byte " + std::to_string(byte),
                        "a byte-level vocabulary needs all 256");
    }
  }
  BytePairMerger merger(byte_tokens, file.merges.size());
  std::string both;
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    both = left;
    both += right;
    const TokenId left_id = entries.find(left), right_id = entries.find(right), merged = entries.find(both);
    const std::string path = "model.merges[" + std::to_string(rank) + "]";
    if (left_id == kNoToken || right_id == kNoToken || merged == kNoToken) {
      const std::string_view unknown = left_id == kNoToken    ? left
                                       : right_id == kNoToken ? right
                                                              : std::string_view(both);
      return make_error(ErrorKind::kFormat,
                        path + " joins " + in_quotes(to_valid_utf8(left)) + " and " +
                            in_quotes(to_valid_utf8(right)) + ", but model.vocab has no " +
                            in_quotes(to_valid_utf8(unknown)),
                        "take tokenizer.json from the same release as the weights");
    }
    if (!merger.add(left_id, right_id, merged)) {
      return make_error(ErrorKind::kFormat,
                        path + " repeats an earlier merge of " + in_quotes(to_valid_utf8(left)) + " and " +
                            in_quotes(to_valid_utf8(right)),
                        "take tokenizer.json from the same release as the weights");
    }
  }
  merger.learn(tokens);
  return merger;
}

}  // namespace

struct Tokenizer::Data {
  TokenBytes tokens;
  AddedTokens added;
  ControlIds control;
  Pretokenizer pretokenizer;
  BytePairMerger merger;
  PieceTable pieces;  // entries that merging reaches when they are a whole piece
  std::string digest;

  // `text` is valid UTF-8.
  void encode_valid(std::string_view text, std::vector<TokenId>& ids) const {
    constexpr std::size_t kAhead = 16;
    std::array<PieceTable::Probe, kAhead> probes;
    const char* end = text.data() + text.size();
    for (const char* begin = text.data(); begin != end;) {
      std::size_t count = 0;
      for (; count < kAhead && begin != end; ++count) {
        const char* piece_end = pretokenizer.piece_end(begin, end);
        probes[count] = pieces.prepare({begin, static_cast<std::size_t>(piece_end - begin)}, end);
        begin = piece_end;
      }
      for (std::size_t i = 0; i < count; ++i) {
        const TokenId whole = pieces.find(probes[i]);
        if (whole != kNoToken) {
          ids.push_back(whole);
        } else {
          merger.encode(probes[i].bytes, ids);
        }
      }
    }
  }

  void encode_plain(std::string_view bytes, std::vector<TokenId>& ids) const {
    if (valid_utf8_prefix(bytes) == bytes.size()) {
      encode_valid(bytes, ids);
    } else {
      encode_valid(to_valid_utf8(bytes), ids);
    }
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& file) {
  Result<MappedFile> mapped = MappedFile::open(file);
  if (!mapped) return within(std::move(mapped).error(), "cannot load the tokenizer");
  const std::span<const std::byte> bytes = mapped->bytes();
  if (bytes.size() > kMostBytes) {
    return make_error(ErrorKind::kFormat,
                      "cannot load " + file.string() + ": it has " + std::to_string(bytes.size()) +
                          " bytes, at most " + std::to_string(kMostBytes) + " are read",
                      "take tokenizer.json from the same release as the weights");
  }
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string());
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view name) {
  const auto build = [&]() -> Result<Tokenizer> {
    DI_ASSIGN(const TokenizerFile file, read_tokenizer_file(json));
    auto data = std::make_unique<Data>();
    data->tokens = token_bytes_of(file);
    data->added = AddedTokens(file.added);
    DI_ASSIGN(data->control, find_control_ids(data->added));
    DI_ASSIGN(data->pretokenizer,
              Pretokenizer::from_regexes({file.split_regexes.begin(), file.split_regexes.end()}));
    const auto short_entries = static_cast<std::size_t>(
        std::count_if(file.entries.begin(), file.entries.end(),
                      [](const auto& entry) { return entry.bytes.size() <= PieceTable::kInline; }));
    data->pieces = PieceTable(data->tokens, short_entries, file.entries.size() - short_entries);
    for (const auto& entry : file.entries) {
      if (entry.in_alphabet && !data->pieces.insert(entry.id)) {
        return make_error(ErrorKind::kFormat,
                          "model.vocab has the entry of id " + std::to_string(entry.id) + " twice",
                          "take tokenizer.json from the same release as the weights");
      }
    }
    DI_ASSIGN(data->merger, build_merger(file, data->tokens, data->pieces));
    std::vector<TokenId> ids;
    for (const auto& entry : file.entries) {
      if (!entry.in_alphabet || file.ignore_merges) continue;
      ids.clear();
      data->merger.encode(entry.bytes, ids);
      if (ids.size() != 1 || ids[0] != entry.id) data->pieces.hide(entry.id);
    }
    data->digest = digest_of(file);
    return Tokenizer(std::move(data));
  };
  Result<Tokenizer> result = build();
  if (!result) return within(std::move(result).error(), "cannot load " + std::string(name));
  return result;
}

std::vector<TokenId> Tokenizer::encode(std::string_view bytes) const {
  std::vector<TokenId> ids;
  encode(bytes, ids);
  return ids;
}

void Tokenizer::encode(std::string_view bytes, std::vector<TokenId>& ids) const {
  data_->encode_plain(bytes, ids);
}

std::vector<TokenId> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<TokenId> ids;
  std::string joined;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (!segments[i].is_plain()) {
      DI_CHECK_MSG(data_->added.contains(segments[i].id), "a control segment must hold an added token");
      ids.push_back(segments[i].id);
      continue;
    }
    joined = segments[i].bytes;
    while (i + 1 < segments.size() && segments[i + 1].is_plain())
      joined += segments[++i].bytes;
    data_->encode_plain(joined, ids);
  }
  return ids;
}

std::vector<TokenId> Tokenizer::encode_with_specials(std::string_view bytes) const {
  std::vector<TokenId> ids;
  const std::string text = to_valid_utf8(bytes);
  data_->added.split(
      text, [&](std::string_view plain) { data_->encode_valid(plain, ids); },
      [&](TokenId id) { ids.push_back(id); });
  return ids;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return data_->tokens[id];
}
bool Tokenizer::has_entry(TokenId id) const {
  return data_->tokens.has(id);
}
std::optional<TokenId> Tokenizer::special_id(std::string_view spelling) const {
  return data_->added.find(spelling);
}
bool Tokenizer::is_special(TokenId id) const {
  return data_->added.contains(id);
}
const ControlIds& Tokenizer::control() const {
  return data_->control;
}
std::size_t Tokenizer::vocabulary_size() const {
  return data_->tokens.size();
}
const std::string& Tokenizer::model_digest() const {
  return data_->digest;
}

bool Tokenizer::is_placeholder(TokenId id) const {
  if (!is_special(id)) return false;
  const std::string_view spelling = token_bytes(id);
  return std::any_of(std::begin(kPlaceholderBeginnings), std::end(kPlaceholderBeginnings),
                     [&](std::string_view beginning) { return spelling.starts_with(beginning); });
}

std::vector<TokenId> Tokenizer::never_sampled(std::size_t rows) const {
  std::vector<TokenId> never;
  for (TokenId id = 0; static_cast<std::size_t>(id) < rows; ++id) {
    if (!has_entry(id) || is_placeholder(id)) never.push_back(id);
  }
  return never;
}

}  // namespace deepinfer::text
