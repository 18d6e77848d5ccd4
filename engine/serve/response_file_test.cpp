// Stored responses in a file: what comes back, and which files are refused.
#include "serve/response_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "serve/answer.h"

namespace deepinfer::serve {
namespace {

namespace fs = std::filesystem;

class ResponseFileTest : public testing::Test {
 protected:
  ResponseFileTest() { fs::create_directory(folder_); }
  ~ResponseFileTest() override { fs::remove_all(folder_); }
  static std::string all(ResponseFile& file) {
    std::string text;
    const auto read = file.read([&](const std::string& tenant, const std::string& id,
                                    const StoredResponse& response, std::int64_t until_s) {
      text += tenant + "/" + id + "=" + response.response + "," + response.input + "@" +
              std::to_string(until_s) + " ";
    });
    EXPECT_TRUE(read.ok());
    return text;
  }
  std::unique_ptr<ResponseFile> opened() {
    auto file = ResponseFile::open(path_);
    EXPECT_TRUE(file.ok()) << file.error().message();
    return file.ok() ? std::move(*file) : nullptr;
  }
  Error refused(const fs::path& path) {
    const auto file = ResponseFile::open(path);
    EXPECT_FALSE(file.ok());
    return file.ok() ? Error{} : file.error();
  }

  fs::path folder_ = fs::temp_directory_path() / ("deepinfer_store_" + random_id());
  fs::path path_ = folder_ / "responses";
};

TEST_F(ResponseFileTest, HoldsWhatWasWritten) {
  {
    const auto file = opened();
    const StoredResponse one{"a'\n", ""}, two{"b", "in"};
    file->write("t", "1", &one, 10);
    file->write("u", "1", &two, 11);
    file->write("t", "2", &two, 12);
    file->write("t", "1", &two, 13);
    file->write("u", "1", nullptr, 0);
    file->write("u", "none", nullptr, 0);
  }
  EXPECT_EQ(all(*opened()), "t/1=b,in@13 t/2=b,in@12 ");
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST_F(ResponseFileTest, MirrorsAStore) {
  std::int64_t now = 100;
  {
    const auto file = opened();
    ResponseStore store({.entries = 2, .bytes = 1000, .life_s = 10}, [&] { return now; });
    store.set_mirror([&](const std::string& tenant, const std::string& id, const StoredResponse* response,
                         std::int64_t until_s) { file->write(tenant, id, response, until_s); });
    for (const char* id : {"1", "2", "3"})
      store.put("t", id, {id, ""});
    store.change("t", "3", [](StoredResponse& stored) { stored.response = "three"; });
    EXPECT_EQ(all(*file), "t/2=2,@110 t/3=three,@110 ");
    now = 120;
    store.put("u", "4", {"four", ""});
    EXPECT_EQ(all(*file), "u/4=four,@130 ");
    store.erase("u", "4");
    EXPECT_EQ(all(*file), "");
  }
}

TEST_F(ResponseFileTest, RefusesWhatItCannotUse) {
  EXPECT_EQ(refused(folder_ / "none" / "responses").kind, ErrorKind::kIo);
  EXPECT_EQ(refused(folder_).kind, ErrorKind::kIo);
  std::ofstream(folder_ / "text") << std::string(5000, 'x');
  const Error text = refused(folder_ / "text");
  EXPECT_EQ(text.kind, ErrorKind::kFormat);
  EXPECT_NE(text.what.find("text"), std::string::npos);
  const auto holder = opened();
  EXPECT_EQ(refused(path_).kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace deepinfer::serve
