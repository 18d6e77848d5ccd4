// API keys: who may use the server, as which tenant. One key a line:
//
//   sk-3f9c...  tenant=search weight=4 max_waiting=50     # comment
//
// `tenant` names whose turn and whose cached prefixes a request uses (default: a name made from the key's digest), `weight`
// its share (1 to 1024), `max_waiting` how many of its requests may be under way at a time (0: no limit of its own),
// `priority` what its requests have among themselves (0 to 7). A '#' begins a comment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"

namespace deepinfer::serve {

struct KeyOwner {
  std::string tenant;
  int weight = 1;
  int max_waiting = 0;
  int priority = 0;
};

class ApiKeys {
 public:
  // No keys: everybody may use the server, as the tenant "".
  ApiKeys() = default;
  // kNotFound or kIo for the file; kFormat names the line and what is wrong with it.
  static Result<std::unique_ptr<ApiKeys>> read(const std::filesystem::path& file);
  // Reads the file again; on an error the keys stay what they were.
  Result<void> reread();

  bool required() const;
  // Constant time in the keys' contents: digests are compared. nullopt: no such key.
  std::optional<KeyOwner> find(std::string_view key) const;
  std::vector<KeyOwner> owners() const;

 private:
  struct Entry {
    Sha256Digest digest{};
    KeyOwner owner;
  };
  static Result<std::vector<Entry>> parse(const std::filesystem::path& file, std::string_view text);

  std::filesystem::path file_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

// "Bearer KEY" of authorization, or x-api-key.
std::string_view key_of(std::string_view authorization, std::string_view x_api_key);

}  // namespace deepinfer::serve
