// Stored responses in a file, so that they outlive the server: an SQLite database that one server holds at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"
#include "serve/tenant_store.h"

struct sqlite3;

namespace deepinfer::serve {

// Any thread.
class ResponseFile {
 public:
  // Opens it, or makes it with access for its owner alone: it holds what was said. kIo when it cannot be written or
  // another process holds it, kFormat when it is something else.
  static Result<std::unique_ptr<ResponseFile>> open(const std::filesystem::path& path);
  ~ResponseFile();
  ResponseFile(const ResponseFile&) = delete;
  ResponseFile& operator=(const ResponseFile&) = delete;

  // What it holds, oldest first.
  using Visit = std::function<void(const std::string& tenant, const std::string& id, StoredResponse,
                                   std::int64_t until_s)>;
  Result<void> read(const Visit& visit);
  // `response` unset: it is no longer stored. A failure is logged; the server goes on with what it has in memory.
  void write(const std::string& tenant, const std::string& id, const StoredResponse* response,
             std::int64_t until_s);

 private:
  ResponseFile(std::filesystem::path path, sqlite3* database);
  Result<void> run(const char* statement);
  Result<void> prepare();
  Error failure() const;

  std::filesystem::path path_;
  sqlite3* database_;
  std::mutex mutex_;
};

}  // namespace deepinfer::serve
