#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace deepinfer {
namespace {

Error io_error(std::string_view attempt, const std::filesystem::path& path, int code) {
  const ErrorKind kind = code == ENOENT || code == ENOTDIR ? ErrorKind::kNotFound : ErrorKind::kIo;
  return make_error(kind, fmt::format("cannot {} {}: {}", attempt, path.string(), std::strerror(code)),
                    kind == ErrorKind::kNotFound
                        ? "check the path"
                        : "check the permissions, the disk and the kind of the file");
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return io_error("open", path, errno);
  auto mapped = map_open_file(path, descriptor);
  ::close(descriptor);
  return mapped;
}

Result<MappedFile> MappedFile::map_open_file(const std::filesystem::path& path, int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return io_error("read the size of", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return make_error(ErrorKind::kIo, fmt::format("cannot map {}: it is not a regular file", path.string()),
                      "give the path of a file");
  }
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = static_cast<std::size_t>(status.st_size);
  if (mapped.size_ == 0) return mapped;
  void* address = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) {
    mapped.size_ = 0;
    return io_error("map", path, errno);
  }
  mapped.data_ = static_cast<const std::byte*>(address);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise(std::size_t offset, std::size_t size, bool sequential) const {
  if (data_ == nullptr || offset >= size_) return;
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = offset / page * page;
  const std::size_t last = std::min(size_, offset + size);
  ::madvise(const_cast<std::byte*>(data_) + first, last - first, sequential ? MADV_WILLNEED : MADV_RANDOM);
}

Result<std::string> read_small_file(const std::filesystem::path& path, std::size_t limit) {
  DI_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > limit) {
    return make_error(
        ErrorKind::kFormat,
        fmt::format("cannot read {}: it has {} bytes, more than the {} that such a file may have",
                    path.string(), bytes.size(), limit),
        "check that it is the file you meant");
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  AtomicFile file;
  file.path_ = path;
  file.temporary_ = path.string() + ".XXXXXX";
  file.descriptor_ = ::mkostemp(file.temporary_.data(), O_CLOEXEC);
  if (file.descriptor_ < 0) return io_error("create a temporary file beside", path, errno);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

Result<void> AtomicFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return io_error("write", path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> AtomicFile::append(std::string_view text) {
  return append(std::as_bytes(std::span(text)));
}

Result<void> AtomicFile::commit() {
  if (::fchmod(descriptor_, 0644) != 0 || ::fsync(descriptor_) != 0) return io_error("flush", path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return io_error("put into place", path_, errno);
  ::close(std::exchange(descriptor_, -1));
  return {};
}

}  // namespace deepinfer
