#include "tensor/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/mapped_file.h"

namespace deepinfer::tensor {
namespace {

constexpr std::string_view kDamaged = "the file is damaged or incomplete: fetch it again";
constexpr std::size_t kLengthBytes = 8;

Error malformed(std::string_view file, std::string problem) {
  return make_error(ErrorKind::kFormat, fmt::format("cannot read {}: {}", file, problem),
                    std::string(kDamaged));
}

std::uint64_t read_little_endian_u64(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;)
    value = (value << 8) | static_cast<std::uint64_t>(bytes[i]);
  return value;
}

// Receives the header's JSON as events. The shape it accepts is fixed: an object of tensors, each an object of dtype,
// shape and data_offsets; and one object of strings, "__metadata__". nlohmann's parser keeps no stack of calls, so depth
// is bounded by what is accepted here.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string_view file) : file_(file) {}

  SafetensorsHeader header;
  std::optional<Error> error;

  bool start_object(std::size_t) override {
    if (depth_ == 0) {
      depth_ = 1;
      return true;
    }
    if (depth_ != 1 || list_ != nullptr) return refuse_value("an object");
    depth_ = 2;
    record_ = {};
    record_.name = name_;
    offsets_.clear();
    dtype_.clear();
    seen_.clear();
    return true;
  }

  bool key(std::string& text) override {
    if (depth_ == 1) {
      name_ = text;
      if (!names_.insert(text).second) return refuse(fmt::format("its header names tensor {} twice", text));
      return true;
    }
    field_ = text;
    if (!seen_.insert(text).second) return refuse(fmt::format("{}: field \"{}\" appears twice", name_, text));
    return true;
  }

  bool string(std::string& text) override {
    if (depth_ == 2 && list_ == nullptr) {
      if (in_metadata()) {
        header.metadata[field_] = text;
        return true;
      }
      if (field_ == "dtype") {
        dtype_ = text;
        return true;
      }
    }
    return refuse_value("a string");
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || list_ != nullptr || in_metadata()) return refuse_value("a list");
    if (field_ == "shape") list_ = &record_.shape;
    if (field_ == "data_offsets") list_ = &offsets_;
    return list_ != nullptr || refuse_value("a list");
  }

  bool number_unsigned(std::uint64_t value) override {
    if (list_ == nullptr || list_->size() == kLargestRank || value >= std::uint64_t{1} << 62) {
      return refuse_value(fmt::format("the number {}", value));
    }
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool end_array() override {
    list_ = nullptr;
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata() && !finish_record()) return false;
    --depth_;
    return true;
  }

  bool null() override { return refuse_value("null"); }
  bool boolean(bool) override { return refuse_value("a truth value"); }
  bool number_integer(std::int64_t value) override {
    return refuse_value(fmt::format("the number {}", value));
  }
  bool number_float(double, const std::string& text) override {
    return refuse_value(fmt::format("the number {}", text));
  }
  bool binary(nlohmann::json::binary_t&) override { return refuse_value("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return refuse(fmt::format("its header is not JSON from byte {} on", position));
  }

 private:
  bool in_metadata() const { return name_ == "__metadata__"; }

  bool refuse(std::string problem) {
    error = malformed(file_, std::move(problem));
    return false;
  }

  bool refuse_value(std::string_view found) {
    return refuse(fmt::format(
        "its header has {} at {}{}{}, where only dtype (a word), shape (up to {} sizes) and data_offsets "
        "(begin, end) of a tensor may stand",
        found, name_.empty() ? "its start" : name_, depth_ == 2 ? "." : "", depth_ == 2 ? field_ : "",
        kLargestRank));
  }

  // Checks the entry that just ended; its offsets are still relative to the data.
  bool finish_record() {
    if (seen_ != std::set<std::string>{"data_offsets", "dtype", "shape"} || offsets_.size() != 2) {
      return refuse(fmt::format(
          "tensor {}: its entry must be dtype, shape and data_offsets [begin, end], and nothing else",
          name_));
    }
    const auto type = element_of_safetensors_dtype(dtype_);
    if (!type) {
      error = make_error(ErrorKind::kUnsupported,
                         fmt::format("cannot read {}: tensor {} has element type {}", file_, name_, dtype_),
                         "known are F32, BF16, F8_E4M3, F8_E8M0, I8, U8, I32 and I64: convert the checkpoint "
                         "to the release layout");
      return false;
    }
    record_.element = *type;
    const auto bytes = byte_count(record_.element, record_.shape);
    if (!bytes) return refuse(fmt::format("tensor {}: shape {} overflows", name_, shape_text(record_.shape)));
    if (offsets_[1] < offsets_[0] || static_cast<std::size_t>(offsets_[1] - offsets_[0]) != *bytes) {
      return refuse(fmt::format("tensor {}: shape {} of {} takes {} bytes, but its data_offsets are [{}, {}]",
                                name_, shape_text(record_.shape), dtype_, *bytes, offsets_[0], offsets_[1]));
    }
    record_.begin = static_cast<std::size_t>(offsets_[0]);
    record_.end = static_cast<std::size_t>(offsets_[1]);
    header.tensors.push_back(std::move(record_));
    return true;
  }

  std::string_view file_;
  int depth_ = 0;
  std::string name_;   // of the entry at depth 1
  std::string field_;  // of the entry at depth 2
  std::string dtype_;
  TensorRecord record_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t>* list_ = nullptr;  // the array being read
  std::set<std::string> seen_;
  std::unordered_set<std::string> names_;
};

// Receives the index's JSON as events and keeps the strings of its top-level "weight_map"; the rest is skipped.
class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexReader(std::string_view file) : file_(file) {}

  std::vector<std::pair<std::string, std::string>> entries;
  bool found = false;
  std::optional<Error> error;

  bool start_object(std::size_t) override {
    if (depth_ == 1 && top_ == "weight_map") {
      if (std::exchange(found, true)) return refuse("it has two objects \"weight_map\"");
      in_map_ = true;
    } else if (in_map_) {
      return refuse_shard();
    }
    return deeper();
  }
  bool end_object() override {
    in_map_ = false;
    --depth_;
    return true;
  }
  bool key(std::string& text) override {
    (depth_ == 1 ? top_ : name_) = text;
    if (in_map_ && !names_.insert(text).second) return refuse(fmt::format("it names tensor {} twice", text));
    return true;
  }
  bool string(std::string& shard) override {
    if (!in_map_) return value();
    if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos ||
        shard.find('\0') != std::string::npos) {
      return refuse_shard();
    }
    entries.emplace_back(name_, shard);
    return true;
  }
  bool start_array(std::size_t) override { return in_map_ ? refuse_shard() : deeper(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(std::int64_t) override { return value(); }
  bool number_unsigned(std::uint64_t) override { return value(); }
  bool number_float(double, const std::string&) override { return value(); }
  bool binary(nlohmann::json::binary_t&) override { return value(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return refuse(fmt::format("it is not JSON from byte {} on", position));
  }

 private:
  bool refuse(std::string problem) {
    error = malformed(file_, std::move(problem));
    return false;
  }
  bool refuse_shard() {
    return refuse(fmt::format("the shard of tensor {} is not the name of a file in its folder", name_));
  }
  bool value() {
    if (in_map_) return refuse_shard();
    return depth_ > 0 || refuse("it is not an object");
  }
  bool deeper() {
    if (depth_ == kDeepestIndex)
      return refuse(fmt::format("it is nested deeper than {} levels", kDeepestIndex));
    ++depth_;
    return true;
  }

  static constexpr int kDeepestIndex = 64;
  std::string_view file_;
  int depth_ = 0;
  bool in_map_ = false;
  std::string top_;
  std::string name_;
  std::unordered_set<std::string> names_;
};

// Orders the tensors by their bytes and checks that together they are exactly the data.
Result<void> check_layout(std::vector<TensorRecord>& tensors, std::size_t data_bytes, std::string_view file) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorRecord& a, const TensorRecord& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::size_t end = 0;
  std::string_view before = "the header";
  for (const TensorRecord& tensor : tensors) {
    if (tensor.begin != end) {
      return malformed(
          file, fmt::format("tensor {} starts at byte {} of the data, but {} ends at byte {}: {}",
                            tensor.name, tensor.begin, before, end,
                            tensor.begin < end ? "they overlap" : "the bytes between belong to no tensor"));
    }
    end = tensor.end;
    before = tensor.name;
  }
  if (end != data_bytes) {
    return malformed(
        file,
        fmt::format("its tensors end at byte {} of the data, but the file holds {} bytes of data: it is {}",
                    end, data_bytes, end > data_bytes ? "truncated" : "longer than its header says"));
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  if (bytes.size() < kLengthBytes) {
    return malformed(
        file, fmt::format("it has {} bytes, a safetensors file has at least {}", bytes.size(), kLengthBytes));
  }
  const std::uint64_t length = read_little_endian_u64(bytes);
  if (length > kLargestHeaderBytes) {
    return malformed(
        file, fmt::format("its header claims {} bytes, at most {} are allowed", length, kLargestHeaderBytes));
  }
  if (length > bytes.size() - kLengthBytes) {
    return malformed(
        file,
        fmt::format("its header claims {} bytes, but the file has only {} after the length: it is truncated",
                    length, bytes.size() - kLengthBytes));
  }
  const std::size_t data_start = kLengthBytes + static_cast<std::size_t>(length);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  HeaderReader reader(file);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) return *std::move(reader.error);
  SafetensorsHeader header = std::move(reader.header);
  DI_TRY(check_layout(header.tensors, bytes.size() - data_start, file));
  for (TensorRecord& tensor : header.tensors) {
    tensor.begin += data_start;
    tensor.end += data_start;
  }
  return header;
}

Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::string_view json,
                                                                                 std::string_view file) {
  IndexReader reader(file);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) return *std::move(reader.error);
  if (!reader.found) return malformed(file, "it has no object \"weight_map\" (tensor name to shard)");
  return std::move(reader.entries);
}

Result<void> write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const int a_bits = element_bits(a.tensor.element);
    const int b_bits = element_bits(b.tensor.element);
    return a_bits != b_bits ? a_bits > b_bits : a.name < b.name;
  });
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t end = 0;
  for (const NamedTensor& named : tensors) {
    if (header.contains(named.name)) {
      return make_error(ErrorKind::kInvalidArgument,
                        fmt::format("cannot write {}: two tensors are called {}", path.string(), named.name));
    }
    Shape shape = named.tensor.shape;
    if (named.tensor.element == Element::kE2m1) shape.back() /= 2;
    header[named.name] = {{"dtype", safetensors_dtype(named.tensor.element)},
                          {"shape", shape},
                          {"data_offsets", {end, end + named.tensor.bytes}}};
    end += named.tensor.bytes;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::byte length[kLengthBytes];
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<std::byte>(text.size() >> (8 * i));

  DI_ASSIGN(AtomicFile file, AtomicFile::create(path));
  DI_TRY(file.append(length));
  DI_TRY(file.append(text));
  for (const NamedTensor& named : tensors)
    DI_TRY(file.append(std::span(named.tensor.data, named.tensor.bytes)));
  return file.commit();
}

}  // namespace deepinfer::tensor
