// Reading golden values: safetensors files beside the project. Read by code of its own, so that a fault of the
// engine's reader cannot hide in both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace deepinfer::test {

// "<project>/../shared/golden/<set>".
std::filesystem::path golden_folder(const std::string& set);

// Whatever is missing or malformed throws std::runtime_error, which fails the test: nothing is skipped.
class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path);

  bool has(const std::string& name) const { return entries_.contains(name); }
  std::vector<std::string> names() const;
  const std::vector<int64_t>& shape(const std::string& name) const { return entry(name).shape; }
  std::vector<float> floats(const std::string& name) const;   // F32, BF16
  std::vector<int32_t> ints(const std::string& name) const;   // U8, I16, I32
  std::vector<int64_t> longs(const std::string& name) const;  // I64

 private:
  struct Entry {
    std::string type;
    std::vector<int64_t> shape;
    size_t begin = 0;
    size_t end = 0;
  };
  const Entry& entry(const std::string& name) const;
  template <class T, class Out>
  std::vector<Out> read(const Entry& entry) const;

  std::string path_;
  std::string data_;
  std::map<std::string, Entry> entries_;
};

}  // namespace deepinfer::test
