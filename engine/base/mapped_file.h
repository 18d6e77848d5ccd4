// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

class MappedFile {
 public:
  // kNotFound for an absent file, kIo when it cannot be opened or mapped (a directory, no permission). An empty file
  // maps to an empty span. The file must not shrink while it is mapped.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the kernel that these bytes will be read soon (`sequential`), or here and there (not sequential).
  void advise(std::size_t offset, std::size_t size, bool sequential) const;

 private:
  MappedFile() = default;
  static Result<MappedFile> map_open_file(const std::filesystem::path& path, int descriptor);

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole of a small file (configuration, index, text); refuses (kFormat) more than `limit` bytes.
Result<std::string> read_small_file(const std::filesystem::path& path,
                                    std::size_t limit = std::size_t{64} << 20);

// A file that appears whole or not at all: bytes go to a temporary file beside `path`, commit() flushes it to the disk and
// renames it. Without commit() nothing is left behind.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::filesystem::path& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  Result<void> append(std::span<const std::byte> bytes);
  Result<void> append(std::string_view text);
  Result<void> commit();

 private:
  AtomicFile() = default;

  std::filesystem::path path_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace deepinfer
