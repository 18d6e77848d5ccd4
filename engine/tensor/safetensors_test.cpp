#include "tensor/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/mapped_file.h"
#include "tensor/tensor_table.h"

namespace deepinfer::tensor {
namespace {

std::string file_bytes(std::string_view header, std::size_t data_bytes) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + std::string(header) + std::string(data_bytes, '\1');
}

Result<SafetensorsHeader> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "x.safetensors");
}

// The header is refused as kFormat with a message that holds `part`.
void expect_refused(std::string_view header, std::size_t data_bytes, std::string_view part) {
  const auto result = parse(file_bytes(header, data_bytes));
  ASSERT_FALSE(result.ok()) << header;
  EXPECT_EQ(result.error().kind, ErrorKind::kFormat) << header;
  EXPECT_NE(result.error().what.find(part), std::string::npos) << header << "\n" << result.error().what;
  EXPECT_NE(result.error().what.find("x.safetensors"), std::string::npos);
  EXPECT_FALSE(result.error().remedy.empty());
}

TEST(Safetensors, ReadsAHeader) {
  const auto header = parse(file_bytes(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}  )",
      16));
  ASSERT_TRUE(header.ok()) << header.error().message();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].element, Element::kBf16);
  EXPECT_EQ(header->tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(header->tensors[1].end - header->tensors[1].begin, 12u);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_TRUE(parse(file_bytes("{}", 0)).ok());
}

TEST(Safetensors, RefusesWrongLengths) {
  EXPECT_FALSE(parse("").ok());
  EXPECT_FALSE(parse("1234567").ok());
  std::string bytes = file_bytes("{}", 0);
  bytes[0] = 100;
  EXPECT_NE(parse(bytes).error().what.find("claims 100 bytes, but the file has only 2"), std::string::npos);
  bytes[7] = '\x7f';
  EXPECT_NE(parse(bytes).error().what.find("at most 100000000"), std::string::npos);
}

TEST(Safetensors, RefusesWhatIsNoHeader) {
  expect_refused("", 0, "not JSON");
  expect_refused("[]", 0, "a list");
  expect_refused("7", 0, "the number 7");
  expect_refused("{", 0, "not JSON");
  expect_refused("{} x", 0, "not JSON");
  expect_refused(R"({"a":1})", 0, "the number 1");
  expect_refused(R"({"a":{"dtype":"U8"}})", 0, "must be dtype, shape and data_offsets");
  expect_refused(R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,1]}})", 1, "the number 3");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":"x"}})", 1, "a string");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"U8"}})", 1, "twice");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "must be dtype");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "must be dtype");
  expect_refused(R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "a list");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "1.5");
  expect_refused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "-1");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
                 "the number 1");
  expect_refused(R"({"a":{"dtype":"U8","shape":{"n":1},"data_offsets":[0,1]}})", 1, "an object");
  expect_refused(R"({"__metadata__":{"a":1}})", 0, "the number 1");
  expect_refused("{\"a\xff\":1}", 0, "not JSON");
}

TEST(Safetensors, RefusesLies) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  expect_refused("{" + a + "}", 7, "truncated");
  expect_refused("{" + a + "}", 9, "longer than its header says");
  expect_refused("{" + a + "," + a + "}", 8, "names tensor a twice");
  expect_refused("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "they overlap");
  expect_refused("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16,
                 "belong to no tensor");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "takes 8 bytes");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "data_offsets are [8, 0]");
  expect_refused(R"({"a":{"dtype":"F32","shape":[4611686018427387903,2],"data_offsets":[0,8]}})", 8,
                 "overflows");
  expect_refused(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8,
                 "18446744073709551615");
  expect_refused(R"({"a":{"dtype":"F32","shape":[1e30],"data_offsets":[0,8]}})", 8, "1e30");
  const auto unknown = parse(file_bytes(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2));
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(unknown.error().what.find("tensor a has element type F16"), std::string::npos);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string whole = file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(parse(whole).ok());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(parse(whole.substr(0, size)).ok()) << size;
}

TEST(SafetensorsIndex, ReadsAndRefuses) {
  const auto index = parse_safetensors_index(
      R"({"metadata":{"total_size":12,"more":[1,{"a":[2]}]},"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})",
      "i.json");
  ASSERT_TRUE(index.ok()) << index.error().message();
  EXPECT_EQ(index->size(), 2u);
  EXPECT_EQ((*index)[1].second, "m2.safetensors");
  for (const char* bad :
       {"", "[]", "3", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":null}})", R"({"weight_map":{"a":["x"]}})", R"({"weight_map":{"a":{"b":"x"}}})",
        R"({"weight_map":{"a":""}})", R"({"weight_map":{"a":"../x"}})", R"({"weight_map":{"a":"/etc/x"}})",
        R"({"weight_map":{"a":".."}})", R"({"weight_map":{"a":"x\u0000y"}})",
        R"({"weight_map":{"a":"x","a":"y"}})", R"({"weight_map":{},"weight_map":{}})",
        R"({"weight_map":{"a":"x")", R"({"metadata":{"weight_map":{"a":"x"}}})"}) {
    const auto refused = parse_safetensors_index(bad, "i.json");
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.error().kind, ErrorKind::kFormat) << bad;
    EXPECT_NE(refused.error().what.find("i.json"), std::string::npos);
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_FALSE(parse_safetensors_index("{\"x\":" + deep + "}", "i.json").ok());
}

class TableTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) /
        ("deepinfer_table_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    auto file = AtomicFile::create(folder_ / name);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append(std::string_view(text)).ok());
    ASSERT_TRUE(file->commit().ok());
  }
  void write_shard(const std::string& name, const std::vector<std::string>& tensors) {
    const HostTensor value = HostTensor::from_f32({2}, std::vector<float>{1, 2}).value();
    std::vector<NamedTensor> named;
    for (const auto& tensor : tensors)
      named.push_back({tensor, value.view()});
    ASSERT_TRUE(write_safetensors(folder_ / name, named).ok());
  }
  std::string refusal(ErrorKind kind) {
    const auto table = TensorTable::open_folder(folder_);
    if (table.ok()) return "not refused";
    EXPECT_EQ(table.error().kind, kind) << table.error().message();
    return table.error().what;
  }

  std::filesystem::path folder_;
};

TEST_F(TableTest, HandsEveryTensorOutOnce) {
  write_shard("m1.safetensors", {"a", "b"});
  write_shard("m2.safetensors", {"c"});
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"m1.safetensors","b":"m1.safetensors","c":"m2.safetensors"}})");
  auto opened = TensorTable::open_folder(folder_);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  TensorTable table = std::move(opened).value();
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.data_bytes(), 24u);
  EXPECT_EQ(table.unconsumed(), (std::vector<std::string>{"a", "b", "c"}));
  ASSERT_TRUE(table.take("b", {.elements = {Element::kF32}, .shape = {2}, .why = ""}).ok());
  EXPECT_EQ(table.take("b").error().kind, ErrorKind::kInternal);
  const auto wrong = table.take("a", {.elements = {Element::kF32}, .shape = {3}, .why = "hidden 3"});
  EXPECT_EQ(wrong.error().kind, ErrorKind::kShape);
  EXPECT_NE(wrong.error().what.find("a has shape [2], expected [3] (hidden 3)"), std::string::npos);
  EXPECT_EQ(table.take("d").error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(table.take("c").value().as<float>()[1], 2.0f);
  EXPECT_EQ(table.unconsumed(), (std::vector<std::string>{"a"}));
  const auto left = table.refuse_unconsumed();
  ASSERT_FALSE(left.ok());
  EXPECT_NE(left.error().what.find("no place for 1 of its 3 tensors: a"), std::string::npos)
      << left.error().what;
  ASSERT_TRUE(table.take("a").ok());
  EXPECT_TRUE(table.refuse_unconsumed().ok());
}

TEST_F(TableTest, FallsBackToASingleFile) {
  EXPECT_NE(refusal(ErrorKind::kNotFound).find("neither"), std::string::npos);
  write_shard("model.safetensors", {"a"});
  EXPECT_TRUE(TensorTable::open_folder(folder_).ok());
}

TEST_F(TableTest, RefusesDisagreement) {
  write_shard("m1.safetensors", {"a", "b"});
  write("model.safetensors.index.json", R"({"weight_map":{"a":"m1.safetensors","b":"m9.safetensors"}})");
  EXPECT_NE(refusal(ErrorKind::kNotFound).find("shard m9.safetensors"), std::string::npos);
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"m1.safetensors","b":"m1.safetensors","c":"m1.safetensors"}})");
  EXPECT_NE(refusal(ErrorKind::kFormat).find("tensor c is in m1.safetensors, but it is in no shard"),
            std::string::npos);
  write("model.safetensors.index.json", R"({"weight_map":{"a":"m1.safetensors"}})");
  EXPECT_NE(refusal(ErrorKind::kFormat).find("tensor b of m1.safetensors is not in the index"),
            std::string::npos);
  write_shard("m2.safetensors", {"b"});
  write("model.safetensors.index.json", R"({"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})");
  EXPECT_NE(refusal(ErrorKind::kFormat).find("tensor b is in two shards"), std::string::npos);
  std::filesystem::create_directories(folder_ / "m3.safetensors");
  write("model.safetensors.index.json", R"({"weight_map":{"a":"m1.safetensors","b":"m3.safetensors"}})");
  EXPECT_NE(refusal(ErrorKind::kIo).find("not a regular file"), std::string::npos);
}

TEST_F(TableTest, TensorsAtOddAddressesAreReadable) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  std::string bytes = file_bytes(header, 1);
  const float values[] = {1.5f, -2.0f};
  bytes.append(reinterpret_cast<const char*>(values), sizeof(values));
  write("model.safetensors", bytes);
  auto table = TensorTable::open_folder(folder_);
  ASSERT_TRUE(table.ok()) << table.error().message();
  const auto view = table->take("b");
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view->data) % 4, 0u);
  EXPECT_EQ(view->as<float>()[1], -2.0f);
}

TEST_F(TableTest, WritesWhatItReads) {
  HostTensor wide = HostTensor::create(Element::kI64, {3}).value();
  wide.as<std::int64_t>()[2] = -7;
  HostTensor narrow = HostTensor::create(Element::kBf16, {2, 5}).value();
  narrow.as<Bf16>()[9] = f32_to_bf16(0.5f);
  HostTensor empty = HostTensor::create(Element::kF32, {0, 4}).value();
  const std::vector<NamedTensor> tensors = {
      {"z \"quoted\"", narrow.view()}, {"a", wide.view()}, {"none", empty.view()}};
  ASSERT_TRUE(write_safetensors(folder_ / "model.safetensors", tensors, {{"kind", "test"}}).ok());
  auto table = TensorTable::open_folder(folder_);
  ASSERT_TRUE(table.ok()) << table.error().message();
  EXPECT_EQ(table->metadata().at("kind"), "test");
  EXPECT_EQ(table->take("a")->as<std::int64_t>()[2], -7);
  EXPECT_EQ(bf16_to_f32(table->take("z \"quoted\"")->as<Bf16>()[9]), 0.5f);
  EXPECT_EQ(table->take("none")->shape, (Shape{0, 4}));
  EXPECT_FALSE(write_safetensors(folder_ / "x", {{"a", wide.view()}, {"a", wide.view()}}).ok());
  EXPECT_FALSE(write_safetensors(folder_ / "absent" / "x", tensors).ok());
  EXPECT_EQ(
      std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()), 1);
}

}  // namespace
}  // namespace deepinfer::tensor
