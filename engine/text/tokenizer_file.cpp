#include "text/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kRemedy = "take tokenizer.json from the same release as the weights";

Error bad_format(std::string what) {
  return make_error(ErrorKind::kFormat, std::move(what), std::string(kRemedy));
}
Error unsupported(std::string what) {
  return make_error(ErrorKind::kUnsupported, std::move(what),
                    "this build reads the byte-level BPE tokenizers of the DeepSeek-V4 family");
}

// A value of the file and where it stands, for messages.
struct Field {
  const Json* value;
  std::string path;
};

Result<Field> member(const Field& parent, const char* key) {
  const std::string path = parent.path.empty() ? key : parent.path + "." + key;
  const auto at = parent.value->find(key);
  if (at == parent.value->end()) return bad_format(path + " is missing");
  return Field{&*at, path};
}

Result<Field> object_member(const Field& parent, const char* key) {
  DI_ASSIGN(Field field, member(parent, key));
  if (!field.value->is_object()) return bad_format(field.path + " is not an object");
  return field;
}

Result<Field> list_member(const Field& parent, const char* key) {
  DI_ASSIGN(Field field, member(parent, key));
  if (!field.value->is_array()) return bad_format(field.path + " is not a list");
  return field;
}

Result<std::string> text_member(const Field& parent, const char* key) {
  DI_ASSIGN(const Field field, member(parent, key));
  if (!field.value->is_string()) return bad_format(field.path + " is not a string");
  return field.value->get<std::string>();
}

bool is_absent(const Field& parent, const char* key) {
  const auto at = parent.value->find(key);
  return at == parent.value->end() || at->is_null();
}

// A member that may be missing or null.
Result<bool> flag_member(const Field& parent, const char* key, bool otherwise) {
  if (is_absent(parent, key)) return otherwise;
  DI_ASSIGN(const Field field, member(parent, key));
  if (!field.value->is_boolean()) return bad_format(field.path + " is not a boolean");
  return field.value->get<bool>();
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

Result<void> read_added_tokens(const Field& root, TokenizerFile& file) {
  DI_ASSIGN(const Field list, list_member(root, "added_tokens"));
  std::unordered_set<std::string> spellings;
  for (std::size_t index = 0; index < list.value->size(); ++index) {
    const Field token{&(*list.value)[index], "added_tokens[" + std::to_string(index) + "]"};
    if (!token.value->is_object()) return bad_format(token.path + " is not an object");
    DI_ASSIGN(const std::string content, text_member(token, "content"));
    DI_ASSIGN(const Field number, member(token, "id"));
    if (!number.value->is_number_integer()) return bad_format(number.path + " is not an integer");
    DI_ASSIGN(const TokenId id, checked_id(number.value->get<std::int64_t>(), number.path));
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      DI_ASSIGN(const bool value, flag_member(token, flag, false));
      if (value) return unsupported(token.path + " " + in_quotes(content) + " has " + flag + " = true");
    }
    DI_ASSIGN(const bool normalized, flag_member(token, "normalized", false));
    if (content.empty()) return bad_format(token.path + ".content is empty");
    if (!spellings.insert(content).second) {
      return bad_format(token.path + " repeats the spelling " + in_quotes(content));
    }
    file.added.push_back({id, content, normalized});
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

// Reads the file's events. The two big parts, model.vocab and model.merges, go straight into the TokenizerFile; the rest
// becomes a small document.
class FileReader : public nlohmann::json_sax<Json> {
 public:
  explicit FileReader(TokenizerFile& file) : file_(file) {}

  Json document;
  std::optional<Error> error;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override {
    return part() == Part::kVocabulary ? entry(value) : add(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    return part() == Part::kVocabulary && fits ? entry(static_cast<std::int64_t>(value)) : add(value);
  }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override {
    if (part() == Part::kMerges) return merge(value);
    if (part() == Part::kMergePair) return pair_.push_back(std::move(value)), true;
    return add(std::move(value));
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    if (stack_.size() == 1) top_ = key_;
    if (stack_.size() == 2) second_ = key_;
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override {
    pair_.clear();
    return open(Json::array());
  }
  bool end_array() override {
    const bool is_pair = part() == Part::kMergePair;
    return close() && (!is_pair || (pair_.size() == 2 ? merge(pair_[0], pair_[1]) : bad_merge("a list")));
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& failure) override {
    error = bad_format(std::string("not a JSON document: ") + failure.what());
    return false;
  }

 private:
  enum class Part { kOther, kVocabulary, kMerges, kMergePair };

  Part part() const {
    if (stack_.size() < 3 || top_ != "model") return Part::kOther;
    if (second_ == "vocab") return stack_.size() == 3 ? Part::kVocabulary : Part::kOther;
    if (second_ != "merges") return Part::kOther;
    return stack_.size() == 3 ? Part::kMerges : stack_.size() == 4 ? Part::kMergePair : Part::kOther;
  }

  Json* place(Json value) {
    if (stack_.empty()) return &(document = std::move(value));
    Json& parent = *stack_.back();
    if (!parent.is_array()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool add(Json value) {
    if (part() == Part::kVocabulary) {
      error = bad_format("model.vocab " + in_quotes(key_) + " is not an integer");
      return false;
    }
    if (part() == Part::kMerges || part() == Part::kMergePair) return bad_merge(value.dump());
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (part() == Part::kVocabulary || part() == Part::kMergePair) return add(std::move(value));
    if (part() == Part::kMerges && value.is_object()) return bad_merge("an object");
    // An element of merges is on the stack, but not in the document.
    Json* at = part() == Part::kMerges ? &scratch_ : place(std::move(value));
    stack_.push_back(at);
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  bool entry(std::int64_t number) {
    TokenizerFile::Entry entry;
    auto id = checked_id(number, "model.vocab " + in_quotes(key_));
    if (!id) return error = std::move(id).error(), false;
    entry.id = *id;
    entry.in_alphabet = alphabet_to_bytes(key_, entry.bytes);
    if (!entry.in_alphabet) entry.bytes = std::move(key_);
    file_.entries.push_back(std::move(entry));
    return true;
  }
  // "left right", as the shipped files write it.
  bool merge(std::string_view both) {
    const std::size_t blank = both.find(' ');
    if (blank == std::string_view::npos) return bad_merge(in_quotes(both));
    return merge(both.substr(0, blank), both.substr(blank + 1));
  }
  bool merge(std::string_view left, std::string_view right) {
    std::string left_bytes, right_bytes;
    const bool known = alphabet_to_bytes(left, left_bytes) && alphabet_to_bytes(right, right_bytes);
    if (!known || left_bytes.empty() || right_bytes.empty())
      return bad_merge(in_quotes(left) + " and " + in_quotes(right));
    file_.merges.emplace_back(std::move(left_bytes), std::move(right_bytes));
    return true;
  }
  bool bad_merge(const std::string& found) {
    error = bad_format("model.merges[" + std::to_string(file_.merges.size()) +
                       "] is not a pair of entries: " + found);
    return false;
  }

  TokenizerFile& file_;
  std::vector<Json*>
      stack_;  // open objects and lists; nodes of a std::map or a list's last element stay in place
  std::string key_, top_, second_;
  std::vector<std::string> pair_;
  Json scratch_;
};

const AddedToken* find_added(const TokenizerFile& file, TokenId id) {
  const auto at = std::lower_bound(file.added.begin(), file.added.end(), id,
                                   [](const AddedToken& token, TokenId wanted) { return token.id < wanted; });
  return at != file.added.end() && at->id == id ? &*at : nullptr;
}

// The entries that are added tokens as well must have their spelling; the others must be in the byte alphabet.
Result<void> check_vocabulary(TokenizerFile& file) {
  std::sort(file.entries.begin(), file.entries.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  const TokenizerFile::Entry* previous = nullptr;
  for (TokenizerFile::Entry& entry : file.entries) {
    if (previous != nullptr && entry.id == previous->id) {
      return bad_format("model.vocab gives id " + std::to_string(entry.id) + " twice");
    }
    previous = &entry;
    if (entry.bytes.empty()) return bad_format("model.vocab has an empty entry");
    const AddedToken* added = find_added(file, entry.id);
    const std::string shown = in_quotes(to_valid_utf8(entry.bytes));
    if (added == nullptr && !entry.in_alphabet) {
      return bad_format("model.vocab " + shown + " (id " + std::to_string(entry.id) +
                        ") has a character outside the byte alphabet and is not an added token");
    }
    if (added == nullptr) continue;
    std::string spelling;
    if (!entry.in_alphabet || !alphabet_to_bytes(added->spelling, spelling)) spelling = added->spelling;
    if (spelling != entry.bytes) {
      return bad_format("id " + std::to_string(entry.id) + " is " + shown + " in model.vocab and " +
                        in_quotes(added->spelling) + " in added_tokens");
    }
    entry.in_alphabet = false;
    entry.bytes = added->spelling;
  }
  return {};
}

Result<void> read_model(const Field& root, TokenizerFile& file) {
  DI_ASSIGN(const Field model, object_member(root, "model"));
  DI_ASSIGN(const std::string type, text_member(model, "type"));
  if (type != "BPE") return unsupported("model.type is " + in_quotes(type) + ", expected \"BPE\"");
  for (const char* key : {"dropout", "unk_token"}) {
    if (!is_absent(model, key)) {
      return unsupported(std::string("model.") + key + " is " + model.value->at(key).dump() +
                         ", expected null");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (is_absent(model, key)) continue;
    DI_ASSIGN(const std::string text, text_member(model, key));
    if (!text.empty())
      return unsupported(std::string("model.") + key + " is " + in_quotes(text) + ", expected none");
  }
  DI_ASSIGN(const bool fallback, flag_member(model, "byte_fallback", false));
  if (fallback) return unsupported("model.byte_fallback is true");
  DI_ASSIGN(file.ignore_merges, flag_member(model, "ignore_merges", false));
  DI_TRY(object_member(model, "vocab"));
  DI_TRY(list_member(model, "merges"));
  return check_vocabulary(file);
}

Result<void> read_split(const Field& step, TokenizerFile& file) {
  DI_ASSIGN(const Field pattern, object_member(step, "pattern"));
  DI_ASSIGN(std::string regex, text_member(pattern, "Regex"));
  DI_ASSIGN(const std::string behavior, text_member(step, "behavior"));
  DI_ASSIGN(const bool invert, flag_member(step, "invert", false));
  if (behavior != "Isolated" || invert) {
    return unsupported(step.path + " has behavior " + in_quotes(behavior) + (invert ? ", inverted" : "") +
                       ", expected \"Isolated\"");
  }
  file.split_regexes.push_back(std::move(regex));
  return {};
}

Result<void> read_byte_level(const Field& step) {
  DI_ASSIGN(const bool prefix, flag_member(step, "add_prefix_space", true));
  DI_ASSIGN(const bool regex, flag_member(step, "use_regex", true));
  if (prefix || regex) {
    return unsupported(step.path + " (ByteLevel) has add_prefix_space = " + (prefix ? "true" : "false") +
                       " and use_regex = " + (regex ? "true" : "false") + ", expected both false");
  }
  return {};
}

Result<void> read_pre_tokenizer(const Field& root, TokenizerFile& file) {
  DI_ASSIGN(const Field sequence, object_member(root, "pre_tokenizer"));
  DI_ASSIGN(const std::string type, text_member(sequence, "type"));
  if (type != "Sequence") {
    return unsupported("pre_tokenizer.type is " + in_quotes(type) + ", expected \"Sequence\"");
  }
  DI_ASSIGN(const Field steps, list_member(sequence, "pretokenizers"));
  const std::size_t count = steps.value->size();
  bool byte_level = false;
  for (std::size_t index = 0; index < count; ++index) {
    const Field step{&(*steps.value)[index], steps.path + "[" + std::to_string(index) + "]"};
    if (!step.value->is_object()) return bad_format(step.path + " is not an object");
    DI_ASSIGN(const std::string kind, text_member(step, "type"));
    if (kind == "Split") {
      DI_TRY(read_split(step, file));
    } else if (kind == "ByteLevel" && index + 1 == count) {
      DI_TRY(read_byte_level(step));
      byte_level = true;
    } else {
      return unsupported(step.path + ".type is " + in_quotes(kind) +
                         ", expected Split steps and ByteLevel as the last one");
    }
  }
  if (!byte_level) return unsupported("pre_tokenizer has no ByteLevel step at its end");
  return {};
}

// The post-processor is not read: the prompt encodings own BOS (recipe.md 1.1).
Result<void> check_surroundings(const Field& root) {
  if (!is_absent(root, "normalizer")) {
    DI_ASSIGN(const Field normalizer, object_member(root, "normalizer"));
    const auto list = normalizer.value->find("normalizers");
    if (list == normalizer.value->end() || !list->is_array() || !list->empty()) {
      return unsupported("normalizer is " + in_quotes(normalizer.value->dump()) + ", expected none");
    }
  }
  DI_ASSIGN(const Field decoder, object_member(root, "decoder"));
  DI_ASSIGN(const std::string type, text_member(decoder, "type"));
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
  TokenizerFile file;
  FileReader reader(file);
  if (!Json::sax_parse(json, &reader)) {
    return reader.error ? *std::move(reader.error) : bad_format("not a JSON document");
  }
  if (!reader.document.is_object()) return bad_format("the top level is not an object");
  const Field root{&reader.document, ""};
  DI_TRY(check_surroundings(root));
  DI_TRY(read_added_tokens(root, file));
  DI_TRY(read_pre_tokenizer(root, file));
  DI_TRY(read_model(root, file));
  return file;
}

}  // namespace deepinfer::text
