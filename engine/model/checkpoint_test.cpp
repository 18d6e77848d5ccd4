// Checkpoints that must be refused: damaged copies of the golden ones, each with a message that names the tensor or
// file and what was expected.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/model.h"
#include "tensor/safetensors.h"

namespace deepinfer::model {
namespace {

namespace fs = std::filesystem;

struct Tensor {
  tensor::Element element = tensor::Element::kF32;
  tensor::Shape shape;
  std::vector<std::byte> data;
};
using Tensors = std::map<std::string, Tensor>;

// A folder of its own, gone at the end of the test.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "deepinfer_checkpoint_XXXXXX").string();
    DI_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code code;
    fs::remove_all(path_, code);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path golden(const std::string& set) {
  return fs::path(DEEPINFER_SOURCE_DIR "/../shared/golden") / set / "checkpoint";
}

Tensors read_tensors(const std::string& set) {
  Result<tensor::TensorTable> table = tensor::TensorTable::open_folder(golden(set));
  DI_CHECK(table.ok());
  Tensors tensors;
  for (const std::string_view name : table->names()) {
    const tensor::TensorView& view = *table->peek(name);
    tensors[std::string(name)] = {view.element, view.shape, {view.data, view.data + view.bytes}};
  }
  return tensors;
}

void write_folder(const fs::path& path, const std::string& set, const Tensors& tensors) {
  for (const char* file : {"config.json", "engram_token_map.i32"}) {
    if (fs::exists(golden(set) / file))
      fs::copy_file(golden(set) / file, path / file, fs::copy_options::overwrite_existing);
  }
  std::vector<tensor::NamedTensor> named;
  for (const auto& [name, entry] : tensors) {
    named.push_back({name, {entry.element, entry.shape, entry.data.data(), entry.data.size()}});
  }
  const Result<void> written = tensor::write_safetensors(path / "model.safetensors", named);
  ASSERT_TRUE(written.ok()) << written.error().message();
}

// The error of loading `set` after its tensors were edited.
Error fault_of(const std::string& set, const std::function<void(Tensors&)>& edit) {
  Folder folder;
  Tensors tensors = read_tensors(set);
  edit(tensors);
  write_folder(folder.path(), set, tensors);
  Result<Model> model = load(folder.path(), {});
  if (model.ok()) {
    ADD_FAILURE() << "the damaged checkpoint was accepted";
    return {};
  }
  return model.error();
}

void expect_fault(const std::string& set, const std::function<void(Tensors&)>& edit, ErrorKind kind,
                  const std::vector<std::string>& parts) {
  const Error error = fault_of(set, edit);
  EXPECT_EQ(error.kind, kind) << error.message();
  EXPECT_FALSE(error.remedy.empty()) << error.message();
  for (const std::string& part : parts)
    EXPECT_NE(error.message().find(part), std::string::npos) << part << " in\n" << error.message();
}

TEST(Checkpoint, ARewrittenGoldenLoads) {
  for (const char* set : {"tiny41", "tiny4"}) {
    Folder folder;
    write_folder(folder.path(), set, read_tensors(set));
    Result<Model> model = load(folder.path(), {});
    ASSERT_TRUE(model.ok()) << model.error().message();
    Result<Model> original = load(golden(set), {});
    ASSERT_TRUE(original.ok());
    EXPECT_EQ(model->fingerprint, original->fingerprint)
        << "the same content in other files is the same model";
  }
}

TEST(Checkpoint, FingerprintFollowsEveryByte) {
  Folder folder;
  Tensors tensors = read_tensors("tiny4");
  write_folder(folder.path(), "tiny4", tensors);
  const std::string before = load(folder.path(), {})->fingerprint;
  std::byte& byte = tensors["layers.5.ffn.experts.7.w2.weight"].data.back();
  byte ^= std::byte{1};
  write_folder(folder.path(), "tiny4", tensors);
  EXPECT_NE(load(folder.path(), {})->fingerprint, before);
}

TEST(Checkpoint, MissingExtraAndMisshapenTensors) {
  const std::string expert = "layers.7.ffn.experts.3.w2.weight";
  expect_fault("tiny41", [&](Tensors& t) { t.erase(expert); }, ErrorKind::kNotFound, {expert});
  expect_fault("tiny41", [](Tensors& t) { t.erase("layers.0.attn.wq_a.scale"); }, ErrorKind::kNotFound,
               {"layers.0.attn.wq_a.scale"});
  expect_fault("tiny41", [](Tensors& t) { t.erase("layers.2.attn.compressor.wgate.weight"); },
               ErrorKind::kNotFound, {"wgate"});
  expect_fault("tiny41",
               [](Tensors& t) {
                 t["layers.6.attn.compressor.wgate.weight"] = t["layers.2.attn.compressor.wgate.weight"];
               },
               ErrorKind::kFormat, {"layers.6.attn.compressor.wgate.weight", "no place"});
  expect_fault("tiny41", [](Tensors& t) { t["layers.10.attn_norm.weight"] = t["layers.9.attn_norm.weight"]; },
               ErrorKind::kFormat, {"layers.10.attn_norm.weight"});
  expect_fault("tiny41", [](Tensors& t) { t["hc_head_base"] = t["layers.0.hc_attn_scale"]; },
               ErrorKind::kFormat, {"hc_head_base"});
  expect_fault("tiny41",
               [&](Tensors& t) {
                 t[expert].shape = {64, 64};
                 t[expert].data.resize(64 * 64);
               },
               ErrorKind::kShape, {expert, "[64, 64]", "[128, 32]"});
  expect_fault("tiny41",
               [](Tensors& t) {
                 t["layers.0.attn.attn_sink"].shape = {2, 2};
               },
               ErrorKind::kShape, {"layers.0.attn.attn_sink", "[2, 2]", "[4]"});
  expect_fault("tiny41", [](Tensors& t) { t["layers.0.hc_attn_fn"].element = tensor::Element::kI32; },
               ErrorKind::kShape, {"layers.0.hc_attn_fn", "I32", "F32"});
  // Scales of 128 x 128 tiles where the configuration says 32 x 32.
  expect_fault("tiny41",
               [](Tensors& t) {
                 Tensor& scale = t["layers.0.attn.wq_b.scale"];
                 scale.shape = {2, 1};
                 scale.data.resize(2);
               },
               ErrorKind::kShape, {"layers.0.attn.wq_b.scale", "32"});
}

TEST(Checkpoint, NanScalesAreRefusedWithTheirPlace) {
  for (const char* name :
       {"layers.3.attn.wo_b.scale", "layers.3.ffn.experts.5.w1.scale", "layers.4.engram.embed.scale"}) {
    expect_fault("tiny41", [&](Tensors& t) { t[name].data[3] = std::byte{0xff}; }, ErrorKind::kFormat,
                 {name, "NaN"});
  }
}

TEST(Checkpoint, ExpertTableOutOfRange) {
  const auto set_id = [](int64_t id) {
    return [id](Tensors& t) { std::memcpy(t["layers.1.ffn.gate.tid2eid"].data.data() + 5 * 8, &id, 8); };
  };
  expect_fault("tiny4", set_id(8), ErrorKind::kFormat,
               {"layers.1.ffn.gate.tid2eid", "token 2", "expert 8", "0..7"});
  expect_fault("tiny4", set_id(-1), ErrorKind::kFormat, {"expert -1"});
}

TEST(Checkpoint, DraftAndVisionTensorsAreKnown) {
  EXPECT_TRUE(is_known_unused("mtp.0.attn.wq_a.weight"));
  EXPECT_TRUE(is_known_unused("vision.norm.weight"));
  EXPECT_TRUE(is_known_unused("image_start"));
  EXPECT_FALSE(is_known_unused("layers.0.attn.wq_a.weight"));
  EXPECT_FALSE(is_known_unused("model.vision.norm.weight"));
}

TEST(Checkpoint, ShardsThatLie) {
  const auto copy = [](const fs::path& to) {
    fs::copy(golden("tiny4"), to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    for (const auto& entry : fs::directory_iterator(to))
      fs::permissions(entry.path(), fs::perms::owner_all);
  };
  const auto load_error = [](const fs::path& path) {
    Result<Model> model = load(path, {});
    EXPECT_FALSE(model.ok());
    return model.ok() ? Error{} : model.error();
  };
  const std::string shard = "model-00002-of-00003.safetensors";
  {
    Folder folder;
    copy(folder.path());
    fs::remove(folder.path() / shard);
    const Error error = load_error(folder.path());
    EXPECT_EQ(error.kind, ErrorKind::kNotFound);
    EXPECT_NE(error.what.find(shard), std::string::npos) << error.message();
  }
  {
    Folder folder;
    copy(folder.path());
    fs::resize_file(folder.path() / shard, fs::file_size(folder.path() / shard) - 100);
    const Error error = load_error(folder.path());
    EXPECT_EQ(error.kind, ErrorKind::kFormat);
    EXPECT_NE(error.what.find(shard), std::string::npos) << error.message();
  }
  {
    Folder folder;
    copy(folder.path());
    std::ofstream(folder.path() / "config.json") << "{\"model_type\": \"gpt2\"}";
    EXPECT_NE(load_error(folder.path()).what.find("gpt2"), std::string::npos);
  }
  {
    Folder folder;
    EXPECT_EQ(load_error(folder.path()).kind, ErrorKind::kNotFound);
  }
}

TEST(Checkpoint, TokenMaps) {
  Folder folder;
  write_folder(folder.path(), "tiny41", read_tensors("tiny41"));
  const fs::path sidecar = folder.path() / "engram_token_map.i32";
  std::vector<int32_t> good(512);
  for (size_t i = 0; i < good.size(); ++i)
    good[i] = static_cast<int32_t>(i % 400);
  const auto write = [&](const std::vector<int32_t>& map) {
    std::ofstream file(sidecar, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(map.data()), static_cast<std::streamsize>(map.size() * 4));
  };
  const auto expect_refusal = [&](const std::string& part) {
    Result<Model> model = load(folder.path(), {});
    ASSERT_FALSE(model.ok()) << part;
    EXPECT_NE(model.error().message().find(part), std::string::npos) << model.error().message();
  };
  fs::remove(sidecar);
  expect_refusal("engram_token_map.i32");
  // A map that the program has takes the place of an absent sidecar.
  EXPECT_TRUE(load(folder.path(), {}, good).ok());
  std::vector<int32_t> bad = good;
  bad.pop_back();
  EXPECT_FALSE(load(folder.path(), {}, bad).ok());
  write(bad);
  expect_refusal("2044 bytes, expected 2048");
  bad = good;
  bad[7] = 400;
  write(bad);
  expect_refusal("maps id 7 to 400");
  bad = good;
  for (int32_t& id : bad)
    id = id == 399 ? 0 : id;
  write(bad);
  expect_refusal("399 canonical ids");
  // The sidecar wins over the program's map.
  EXPECT_FALSE(load(folder.path(), {}, good).ok());
  write(good);
  EXPECT_TRUE(load(folder.path(), {}).ok());
}

}  // namespace
}  // namespace deepinfer::model
