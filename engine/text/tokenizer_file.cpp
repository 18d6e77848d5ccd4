#include "text/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_set>

#include <simdjson.h>

#include "text/bpe.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kRemedy = "take tokenizer.json from the same release as the weights";

Error bad_format(std::string what) {
  return make_error(ErrorKind::kFormat, std::move(what), std::string(kRemedy));
}
Error unsupported(std::string what) {
  return make_error(ErrorKind::kUnsupported, std::move(what),
                    "this build reads the byte-level BPE tokenizers of the DeepSeek-V4 family");
}

template <class T>
Result<T> get(dom::element element, const std::string& path, std::string_view expected) {
  T value;
  if (element.get(value) != simdjson::SUCCESS) return bad_format(path + " is not " + std::string(expected));
  return value;
}

// A member that must be there.
template <class T>
Result<T> member(dom::object object, const char* key, const std::string& parent, std::string_view expected) {
  const std::string path = parent.empty() ? key : parent + "." + key;
  dom::element element;
  if (object[key].get(element) != simdjson::SUCCESS) return bad_format(path + " is missing");
  return get<T>(element, path, expected);
}

// A member that may be missing or null.
template <class T>
Result<T> member_or(dom::object object, const char* key, const std::string& parent, std::string_view expected,
                    T otherwise) {
  dom::element element;
  if (object[key].get(element) != simdjson::SUCCESS || element.is_null()) return otherwise;
  return get<T>(element, parent + "." + key, expected);
}

// Code points of the byte alphabet (GPT-2): printable Latin-1 stands for itself, the other 68 bytes for U+0100 on.
std::array<std::int16_t, 324> inverse_alphabet() {
  std::array<std::int16_t, 324> bytes;
  bytes.fill(-1);
  std::int16_t shifted = 256;
  for (std::int16_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    bytes[itself ? byte : shifted++] = byte;
  }
  return bytes;
}

// False when a character is outside the alphabet.
bool alphabet_to_bytes(std::string_view text, std::string& bytes) {
  static const std::array<std::int16_t, 324> inverse = inverse_alphabet();
  bytes.clear();
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = read_valid_utf8(reinterpret_cast<const unsigned char*>(text.data() + at));
    if (c.code >= inverse.size() || inverse[c.code] < 0) return false;
    bytes += static_cast<char>(inverse[c.code]);
    at += c.size;
  }
  return true;
}

Result<TokenId> checked_id(std::int64_t id, const std::string& path) {
  if (id < 0 || id >= BytePairMerger::kMostIds) {
    return bad_format(path + " is " + std::to_string(id) + ", ids run from 0 to " +
                      std::to_string(BytePairMerger::kMostIds - 1));
  }
  return static_cast<TokenId>(id);
}

Result<void> read_added_tokens(dom::object root, TokenizerFile& file) {
  DI_ASSIGN(const dom::array list, member<dom::array>(root, "added_tokens", "", "a list"));
  std::unordered_set<std::string> spellings;
  std::size_t index = 0;
  for (const dom::element element : list) {
    const std::string path = "added_tokens[" + std::to_string(index++) + "]";
    DI_ASSIGN(const auto object, get<dom::object>(element, path, "an object"));
    DI_ASSIGN(const auto content, member<std::string_view>(object, "content", path, "a string"));
    DI_ASSIGN(const auto number, member<std::int64_t>(object, "id", path, "an integer"));
    DI_ASSIGN(const TokenId id, checked_id(number, path + ".id"));
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      DI_ASSIGN(const bool value, member_or<bool>(object, flag, path, "a boolean", false));
      if (value) return unsupported(path + " " + in_quotes(content) + " has " + flag + " = true");
    }
    DI_ASSIGN(const bool normalized, member_or<bool>(object, "normalized", path, "a boolean", false));
    if (content.empty()) return bad_format(path + ".content is empty");
    if (!spellings.emplace(content).second)
      return bad_format(path + " repeats the spelling " + in_quotes(content));
    file.added.push_back({id, std::string(content), normalized});
  }
  std::sort(file.added.begin(), file.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  for (std::size_t i = 1; i < file.added.size(); ++i) {
    if (file.added[i].id == file.added[i - 1].id) {
      return bad_format("added_tokens gives id " + std::to_string(file.added[i].id) + " to both " +
                        in_quotes(file.added[i - 1].spelling) + " and " + in_quotes(file.added[i].spelling));
    }
  }
  return {};
}

const AddedToken* find_added(const TokenizerFile& file, TokenId id) {
  const auto at = std::lower_bound(file.added.begin(), file.added.end(), id,
                                   [](const AddedToken& token, TokenId wanted) { return token.id < wanted; });
  return at != file.added.end() && at->id == id ? &*at : nullptr;
}

Result<void> read_vocabulary(dom::object model, TokenizerFile& file) {
  DI_ASSIGN(const auto vocabulary, member<dom::object>(model, "vocab", "model", "an object"));
  file.entries.reserve(vocabulary.size());
  for (const dom::key_value_pair pair : vocabulary) {
    std::int64_t number = 0;
    if (pair.value.get(number) != simdjson::SUCCESS)
      return bad_format("model.vocab " + in_quotes(pair.key) + " is not an integer");
    TokenizerFile::Entry entry;
    DI_ASSIGN(entry.id, checked_id(number, "model.vocab " + in_quotes(pair.key)));
    const AddedToken* added = find_added(file, entry.id);
    if (added != nullptr && added->spelling != pair.key) {
      return bad_format("id " + std::to_string(entry.id) + " is " + in_quotes(pair.key) +
                        " in model.vocab and " + in_quotes(added->spelling) + " in added_tokens");
    }
    entry.in_alphabet = added == nullptr && alphabet_to_bytes(pair.key, entry.bytes);
    if (!entry.in_alphabet && added == nullptr) {
      return bad_format("model.vocab " + in_quotes(pair.key) + " (id " + std::to_string(entry.id) +
                        ") has a character outside the byte alphabet and is not an added token");
    }
    if (entry.in_alphabet && entry.bytes.empty()) return bad_format("model.vocab has an empty entry");
    if (!entry.in_alphabet) entry.bytes = pair.key;
    file.entries.push_back(std::move(entry));
  }
  std::sort(file.entries.begin(), file.entries.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  for (std::size_t i = 1; i < file.entries.size(); ++i) {
    if (file.entries[i].id == file.entries[i - 1].id) {
      return bad_format("model.vocab gives id " + std::to_string(file.entries[i].id) + " twice");
    }
  }
  return {};
}

Result<void> read_merges(dom::object model, TokenizerFile& file) {
  DI_ASSIGN(const auto merges, member<dom::array>(model, "merges", "model", "a list"));
  const std::size_t count = merges.size();
  file.merges.reserve(count);
  std::size_t index = 0;
  for (const dom::element element : merges) {
    std::string_view left, right, both;
    if (element.get(both) == simdjson::SUCCESS) {
      const std::size_t blank = both.find(' ');
      left = both.substr(0, blank);
      right = blank == std::string_view::npos ? std::string_view() : both.substr(blank + 1);
    } else {
      dom::array pair;
      if (element.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
          (pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS)) {
        left = right = {};
      }
    }
    auto& [left_bytes, right_bytes] = file.merges.emplace_back();
    const bool known = alphabet_to_bytes(left, left_bytes) && alphabet_to_bytes(right, right_bytes);
    if (!known || left_bytes.empty() || right_bytes.empty()) {
      return bad_format("model.merges[" + std::to_string(index) +
                        "] is not a pair of entries: " + in_quotes(simdjson::minify(element)));
    }
    ++index;
  }
  return {};
}

Result<void> read_model(dom::object root, TokenizerFile& file) {
  DI_ASSIGN(const auto model, member<dom::object>(root, "model", "", "an object"));
  DI_ASSIGN(const auto type, member<std::string_view>(model, "type", "model", "a string"));
  if (type != "BPE") return unsupported("model.type is " + in_quotes(type) + ", expected \"BPE\"");
  for (const char* key : {"dropout", "unk_token"}) {
    dom::element element;
    if (model[key].get(element) == simdjson::SUCCESS && !element.is_null()) {
      return unsupported(std::string("model.") + key + " is " + simdjson::minify(element) +
                         ", expected null");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    DI_ASSIGN(const auto text, member_or<std::string_view>(model, key, "model", "a string", ""));
    if (!text.empty())
      return unsupported(std::string("model.") + key + " is " + in_quotes(text) + ", expected none");
  }
  DI_ASSIGN(const bool fallback, member_or<bool>(model, "byte_fallback", "model", "a boolean", false));
  if (fallback) return unsupported("model.byte_fallback is true");
  DI_ASSIGN(file.ignore_merges, member_or<bool>(model, "ignore_merges", "model", "a boolean", false));
  DI_TRY(read_vocabulary(model, file));
  return read_merges(model, file);
}

Result<void> read_split(dom::object step, const std::string& path, TokenizerFile& file) {
  DI_ASSIGN(const auto pattern, member<dom::object>(step, "pattern", path, "an object"));
  DI_ASSIGN(const auto regex, member<std::string_view>(pattern, "Regex", path + ".pattern", "a string"));
  DI_ASSIGN(const auto behavior, member<std::string_view>(step, "behavior", path, "a string"));
  DI_ASSIGN(const bool invert, member_or<bool>(step, "invert", path, "a boolean", false));
  if (behavior != "Isolated" || invert) {
    return unsupported(path + " has behavior " + in_quotes(behavior) + (invert ? ", inverted" : "") +
                       ", expected \"Isolated\"");
  }
  file.split_regexes.emplace_back(regex);
  return {};
}

Result<void> read_byte_level(dom::object step, const std::string& path) {
  DI_ASSIGN(const bool prefix, member_or<bool>(step, "add_prefix_space", path, "a boolean", true));
  DI_ASSIGN(const bool regex, member_or<bool>(step, "use_regex", path, "a boolean", true));
  if (prefix || regex) {
    return unsupported(path + " (ByteLevel) has add_prefix_space = " + (prefix ? "true" : "false") +
                       " and use_regex = " + (regex ? "true" : "false") + ", expected both false");
  }
  return {};
}

Result<void> read_pre_tokenizer(dom::object root, TokenizerFile& file) {
  DI_ASSIGN(const auto sequence, member<dom::object>(root, "pre_tokenizer", "", "an object"));
  DI_ASSIGN(const auto type, member<std::string_view>(sequence, "type", "pre_tokenizer", "a string"));
  if (type != "Sequence")
    return unsupported("pre_tokenizer.type is " + in_quotes(type) + ", expected \"Sequence\"");
  DI_ASSIGN(const auto steps, member<dom::array>(sequence, "pretokenizers", "pre_tokenizer", "a list"));
  const std::size_t count = steps.size();
  std::size_t index = 0;
  bool byte_level = false;
  for (const dom::element element : steps) {
    const std::string path = "pre_tokenizer.pretokenizers[" + std::to_string(index++) + "]";
    DI_ASSIGN(const auto step, get<dom::object>(element, path, "an object"));
    DI_ASSIGN(const auto kind, member<std::string_view>(step, "type", path, "a string"));
    if (kind == "Split") {
      DI_TRY(read_split(step, path, file));
    } else if (kind == "ByteLevel" && index == count) {
      DI_TRY(read_byte_level(step, path));
      byte_level = true;
    } else {
      return unsupported(path + ".type is " + in_quotes(kind) +
                         ", expected Split steps and ByteLevel as the last one");
    }
  }
  if (!byte_level) return unsupported("pre_tokenizer has no ByteLevel step at its end");
  return {};
}

// The post-processor is not read: the prompt encodings own BOS (recipe.md 1.1).
Result<void> check_surroundings(dom::object root) {
  dom::element element;
  if (root["normalizer"].get(element) == simdjson::SUCCESS && !element.is_null()) {
    DI_ASSIGN(const auto normalizer, get<dom::object>(element, "normalizer", "an object"));
    dom::array list;
    if (normalizer["normalizers"].get(list) != simdjson::SUCCESS || list.size() != 0) {
      return unsupported("normalizer is " + in_quotes(simdjson::minify(element)) + ", expected none");
    }
  }
  DI_ASSIGN(const auto decoder, member<dom::object>(root, "decoder", "", "an object"));
  DI_ASSIGN(const auto type, member<std::string_view>(decoder, "type", "decoder", "a string"));
  if (type != "ByteLevel")
    return unsupported("decoder.type is " + in_quotes(type) + ", expected \"ByteLevel\"");
  return {};
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::size_t size = std::min(text.size(), kShown);
  while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80)
    --size;
  return "\"" + std::string(text.substr(0, size)) + (size < text.size() ? "…\"" : "\"");
}

Result<TokenizerFile> read_tokenizer_file(std::string_view json) {
  dom::parser parser;
  dom::element document;
  const simdjson::padded_string padded(json);
  if (const auto error = parser.parse(padded).get(document); error != simdjson::SUCCESS) {
    return bad_format("not a JSON document (" + std::to_string(json.size()) +
                      " bytes): " + simdjson::error_message(error));
  }
  TokenizerFile file;
  DI_ASSIGN(const auto root, get<dom::object>(document, "the top level", "an object"));
  DI_TRY(check_surroundings(root));
  DI_TRY(read_added_tokens(root, file));
  DI_TRY(read_pre_tokenizer(root, file));
  DI_TRY(read_model(root, file));
  return file;
}

}  // namespace deepinfer::text
