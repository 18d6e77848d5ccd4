#include "serve/response_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cstring>

#include "base/log.h"

namespace deepinfer::serve {
namespace {

constexpr int kApplicationId = 0x44496e66;  // "DInf": tells our files from others
constexpr int kFormat = 1;

// One prepared statement, run to its end.
class Statement {
 public:
  Statement(sqlite3* database, const char* text) {
    sqlite3_prepare_v2(database, text, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(const std::string& text) {
    sqlite3_bind_blob64(statement_, ++bound_, text.data(), text.size(), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(std::int64_t number) {
    sqlite3_bind_int64(statement_, ++bound_, number);
    return *this;
  }
  int step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }
  std::string text(int column) const {
    const void* const bytes = sqlite3_column_blob(statement_, column);
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_, column));
    return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), size);
  }
  std::int64_t number(int column) const { return sqlite3_column_int64(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

Error refused(const std::filesystem::path& path, ErrorKind kind, const std::string& why) {
  return make_error(kind, fmt::format("cannot store responses in {}: {}", path.string(), why),
                    "name a file in a folder that the server may write, or leave --store-file out");
}

}  // namespace

ResponseFile::ResponseFile(std::filesystem::path path, sqlite3* database)
    : path_(std::move(path)), database_(database) {}

ResponseFile::~ResponseFile() {
  sqlite3_close(database_);
}

Error ResponseFile::failure() const {
  const bool other = sqlite3_errcode(database_) == SQLITE_NOTADB;
  return refused(path_, other ? ErrorKind::kFormat : ErrorKind::kIo, sqlite3_errmsg(database_));
}

Result<void> ResponseFile::run(const char* statement) {
  if (sqlite3_exec(database_, statement, nullptr, nullptr, nullptr) != SQLITE_OK) return failure();
  return {};
}

Result<std::unique_ptr<ResponseFile>> ResponseFile::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return refused(path, ErrorKind::kIo, std::strerror(errno));
  ::close(descriptor);
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, nullptr);
  std::unique_ptr<ResponseFile> file(new ResponseFile(path, database));
  if (code != SQLITE_OK) return file->failure();
  DI_TRY(file->prepare());
  return file;
}

Result<void> ResponseFile::prepare() {
  // Held as long as the server runs; a transaction is safe from a crash of the server, not from one of the machine.
  for (const char* setting : {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL",
                              "PRAGMA synchronous = NORMAL", "BEGIN EXCLUSIVE"})
    DI_TRY(run(setting));
  std::int64_t owner = 0, format = 0, tables = 0;
  for (const auto& [question, answer] : {std::pair{"PRAGMA application_id", &owner},
                                         {"PRAGMA user_version", &format},
                                         {"SELECT count(*) FROM sqlite_master", &tables}}) {
    Statement asked(database_, question);
    if (asked.step() != SQLITE_ROW) return failure();
    *answer = asked.number(0);
  }
  if (tables > 0 && owner != kApplicationId)
    return refused(path_, ErrorKind::kFormat, "it is a database of another program");
  if (tables > 0 && format != kFormat)
    return refused(path_, ErrorKind::kFormat,
                   fmt::format("it has format {}, this build reads {}", format, kFormat));
  DI_TRY(
      run("CREATE TABLE IF NOT EXISTS responses(tenant BLOB, id BLOB, response BLOB, input BLOB, until_s "
          "INTEGER, "
          "number INTEGER PRIMARY KEY AUTOINCREMENT, UNIQUE(tenant, id))"));
  DI_TRY(run(fmt::format("PRAGMA application_id = {}", kApplicationId).c_str()));
  DI_TRY(run(fmt::format("PRAGMA user_version = {}", kFormat).c_str()));
  return run("COMMIT");
}

Result<void> ResponseFile::read(const Visit& visit) {
  const std::lock_guard lock(mutex_);
  Statement rows(database_, "SELECT tenant, id, response, input, until_s FROM responses ORDER BY number");
  int code = rows.step();
  for (; code == SQLITE_ROW; code = rows.step())
    visit(rows.text(0), rows.text(1), {rows.text(2), rows.text(3)}, rows.number(4));
  if (code != SQLITE_DONE) return failure();
  return {};
}

void ResponseFile::write(const std::string& tenant, const std::string& id, const StoredResponse* response,
                         std::int64_t until_s) {
  const std::lock_guard lock(mutex_);
  const auto done = [&] {
    if (response == nullptr) {
      Statement erase(database_, "DELETE FROM responses WHERE tenant = ? AND id = ?");
      return erase.bind(tenant).bind(id).step() == SQLITE_DONE;
    }
    Statement put(
        database_,
        "INSERT INTO responses(tenant, id, response, input, until_s) VALUES(?, ?, ?, ?, ?) ON "
        "CONFLICT(tenant, id) "
        "DO UPDATE SET response = excluded.response, input = excluded.input, until_s = excluded.until_s");
    return put.bind(tenant).bind(id).bind(response->response).bind(response->input).bind(until_s).step() ==
           SQLITE_DONE;
  }();
  if (!done) log_error(failure().message());
}

}  // namespace deepinfer::serve
