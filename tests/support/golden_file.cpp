#include "support/golden_file.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace deepinfer::test {

std::filesystem::path golden_folder(const std::string& set) {
  return std::filesystem::path(DEEPINFER_SOURCE_DIR "/../shared/golden") / set;
}

GoldenFile::GoldenFile(const std::filesystem::path& path) : path_(path.string()) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) throw std::runtime_error("cannot read " + path_);
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  data_ = bytes.substr(sizeof header_bytes + header_bytes);
  const auto header = nlohmann::json::parse(bytes.substr(sizeof header_bytes, header_bytes));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    Entry entry;
    entry.type = value.at("dtype").get<std::string>();
    entry.shape = value.at("shape").get<std::vector<int64_t>>();
    entry.begin = value.at("data_offsets").at(0).get<size_t>();
    entry.end = value.at("data_offsets").at(1).get<size_t>();
    if (entry.end > data_.size()) throw std::runtime_error(path_ + " is truncated");
    entries_[name] = std::move(entry);
  }
}

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> result;
  for (const auto& [name, entry] : entries_)
    result.push_back(name);
  return result;
}

const GoldenFile::Entry& GoldenFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw std::runtime_error(path_ + " has no " + name);
  return found->second;
}

template <class T, class Out>
std::vector<Out> GoldenFile::read(const Entry& entry) const {
  const size_t count = (entry.end - entry.begin) / sizeof(T);
  std::vector<T> values(count);
  std::memcpy(values.data(), data_.data() + entry.begin, count * sizeof(T));
  return {values.begin(), values.end()};
}

std::vector<float> GoldenFile::floats(const std::string& name) const {
  const Entry& found = entry(name);
  if (found.type == "F32") return read<float, float>(found);
  if (found.type != "BF16") throw std::runtime_error(name + " is not a float tensor");
  std::vector<float> values;
  for (const uint32_t bits : read<uint16_t, uint32_t>(found)) {
    const uint32_t shifted = bits << 16;
    float value = 0;
    std::memcpy(&value, &shifted, sizeof value);
    values.push_back(value);
  }
  return values;
}

std::vector<int32_t> GoldenFile::ints(const std::string& name) const {
  const Entry& found = entry(name);
  if (found.type == "I32") return read<int32_t, int32_t>(found);
  if (found.type == "I16") return read<int16_t, int32_t>(found);
  if (found.type == "U8") return read<uint8_t, int32_t>(found);
  throw std::runtime_error(name + " is not an integer tensor");
}

std::vector<int64_t> GoldenFile::longs(const std::string& name) const {
  const Entry& found = entry(name);
  if (found.type != "I64") throw std::runtime_error(name + " is not I64");
  return read<int64_t, int64_t>(found);
}

}  // namespace deepinfer::test
