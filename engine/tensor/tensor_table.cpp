#include "tensor/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tensor/safetensors.h"

namespace deepinfer::tensor {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::size_t kLargestIndexBytes = std::size_t{256} << 20;
constexpr std::size_t kNamesInMessages = 5;

bool aligned(const std::byte* data, Element element) {
  const std::size_t size = static_cast<std::size_t>(std::max(element_bits(element) / 8, 1));
  return reinterpret_cast<std::uintptr_t>(data) % size == 0;
}

std::string elements_text(const std::vector<Element>& elements) {
  std::string text;
  for (const Element element : elements) {
    if (!text.empty()) text += " or ";
    text += element_name(element);
  }
  return text;
}

}  // namespace

Result<TensorTable> TensorTable::open_folder(const std::filesystem::path& folder) {
  const std::filesystem::path index_path = folder / kIndexName;
  std::error_code ignored;
  if (!std::filesystem::exists(index_path, ignored)) {
    if (std::filesystem::exists(folder / kSingleName, ignored)) return open_file(folder / kSingleName);
    return make_error(
        ErrorKind::kNotFound,
        fmt::format("cannot load {}: it has neither {} nor {}", folder.string(), kIndexName, kSingleName),
        "give the folder of a checkpoint in the Hugging Face layout");
  }
  DI_ASSIGN(const std::string json, read_small_file(index_path, kLargestIndexBytes));
  DI_ASSIGN(const auto index, parse_safetensors_index(json, index_path.string()));
  TensorTable table(folder);
  std::set<std::string> shards;
  for (const auto& entry : index)
    shards.insert(entry.second);
  for (const std::string& shard : shards) {
    if (!std::filesystem::exists(folder / shard, ignored)) {
      return make_error(ErrorKind::kNotFound,
                        fmt::format("cannot load {}: shard {}, one of {} that its index names, is absent",
                                    folder.string(), shard, shards.size()),
                        "the download is incomplete: fetch the missing shard");
    }
    DI_TRY(table.add_shard(folder / shard));
  }
  DI_TRY(table.check_against_index(index));
  return table;
}

Result<TensorTable> TensorTable::open_file(const std::filesystem::path& path) {
  TensorTable table(path);
  DI_TRY(table.add_shard(path));
  return table;
}

Result<void> TensorTable::add_shard(const std::filesystem::path& path) {
  DI_ASSIGN(MappedFile file, MappedFile::open(path));
  DI_ASSIGN(SafetensorsHeader header, parse_safetensors(file.bytes(), path.string()));
  const std::size_t shard = shards_.size();
  for (TensorRecord& record : header.tensors) {
    TensorView view{record.element, std::move(record.shape), file.bytes().data() + record.begin,
                    record.end - record.begin};
    data_bytes_ += view.bytes;
    const auto [entry, added] =
        entries_.try_emplace(std::move(record.name), Entry{std::move(view), shard, false});
    if (!added) {
      return make_error(
          ErrorKind::kFormat,
          fmt::format("cannot load {}: tensor {} is in two shards, {} and {}", path_.string(), entry->first,
                      shards_[entry->second.shard].path().filename().string(), path.filename().string()),
          "the folder mixes two checkpoints: keep the shards of one release");
    }
  }
  metadata_.merge(header.metadata);
  shards_.push_back(std::move(file));
  return {};
}

Result<void> TensorTable::check_against_index(
    const std::vector<std::pair<std::string, std::string>>& index) const {
  for (const auto& [name, shard] : index) {
    const auto found = entries_.find(name);
    if (found != entries_.end() && shards_[found->second.shard].path().filename() == shard) continue;
    return make_error(ErrorKind::kFormat,
                      fmt::format("cannot load {}: its index says that tensor {} is in {}, but it is {}",
                                  path_.string(), name, shard,
                                  found == entries_.end()
                                      ? std::string("in no shard")
                                      : "in " + shards_[found->second.shard].path().filename().string()),
                      "index and shards disagree: check that both come from the same release");
  }
  if (index.size() == entries_.size()) return {};
  std::set<std::string_view> named;
  for (const auto& entry : index)
    named.insert(entry.first);
  for (const auto& [name, entry] : entries_) {
    if (named.contains(name)) continue;
    return make_error(ErrorKind::kFormat,
                      fmt::format("cannot load {}: tensor {} of {} is not in the index, which names {} "
                                  "tensors where the shards hold {}",
                                  path_.string(), name, shards_[entry.shard].path().filename().string(),
                                  index.size(), entries_.size()),
                      "index and shards disagree: check that both come from the same release");
  }
  return {};
}

std::vector<std::string_view> TensorTable::names() const {
  std::vector<std::string_view> names;
  for (const auto& entry : entries_)
    names.push_back(entry.first);
  return names;
}

const TensorView* TensorTable::peek(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second.view;
}

Result<TensorTable::Entry*> TensorTable::find_untaken(std::string_view name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return make_error(ErrorKind::kNotFound,
                      fmt::format("cannot load {}: tensor {} is missing", path_.string(), name),
                      "the config asks for it: check that config and shards come from the same release");
  }
  if (found->second.taken) {
    return make_error(ErrorKind::kInternal,
                      fmt::format("cannot load {}: tensor {} was taken twice", path_.string(), name));
  }
  return &found->second;
}

Result<TensorView> TensorTable::take(std::string_view name, const Expected& expected) {
  DI_ASSIGN(Entry * entry, find_untaken(name));
  const TensorView& view = entry->view;
  const bool element_fits =
      std::find(expected.elements.begin(), expected.elements.end(), view.element) != expected.elements.end();
  if (!element_fits || view.shape != expected.shape) {
    const std::string why = expected.why.empty() ? "" : fmt::format(" ({})", expected.why);
    return make_error(ErrorKind::kShape,
                      element_fits
                          ? fmt::format("cannot load {}: {} has shape {}, expected {}{}", path_.string(),
                                        name, shape_text(view.shape), shape_text(expected.shape), why)
                          : fmt::format("cannot load {}: {} is {} {}, expected {} {}{}", path_.string(), name,
                                        element_name(view.element), shape_text(view.shape),
                                        elements_text(expected.elements), shape_text(expected.shape), why),
                      "the config and the shards disagree: check that both come from the same release");
  }
  return take(name);
}

Result<TensorView> TensorTable::take(std::string_view name) {
  DI_ASSIGN(Entry * entry, find_untaken(name));
  if (!aligned(entry->view.data, entry->view.element)) {
    DI_ASSIGN(HostTensor copy, HostTensor::create(entry->view.element, entry->view.shape));
    if (entry->view.bytes > 0) std::memcpy(copy.data(), entry->view.data, entry->view.bytes);
    entry->view = realigned_.emplace_back(std::move(copy)).view();
  }
  entry->taken = true;
  return entry->view;
}

std::vector<std::string> TensorTable::unconsumed() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (!entry.taken) names.push_back(name);
  }
  return names;
}

Result<void> TensorTable::refuse_unconsumed() const {
  const std::vector<std::string> left = unconsumed();
  if (left.empty()) return {};
  std::string list;
  for (std::size_t i = 0; i < std::min(left.size(), kNamesInMessages); ++i)
    list += (i == 0 ? "" : ", ") + left[i];
  return make_error(
      ErrorKind::kFormat,
      fmt::format(
          "cannot load {}: the model that its config describes has no place for {} of its {} tensors: {}{}",
          path_.string(), left.size(), entries_.size(), list, left.size() > kNamesInMessages ? ", ..." : ""),
      "the config and the shards disagree: check that both come from the same release");
}

}  // namespace deepinfer::tensor
