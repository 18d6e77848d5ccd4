#include "base/settings.h"

#include <gtest/gtest.h>

#include <set>

#include "base/mapped_file.h"

namespace deepinfer {
namespace {

Settings::Environment environment_of(std::map<std::string, std::string> words) {
  return [words](std::string_view name) -> std::optional<std::string> {
    const auto found = words.find(std::string(name));
    if (found == words.end()) return std::nullopt;
    return found->second;
  };
}

std::string refusal(const std::map<std::string, std::string>& flags,
                    std::map<std::string, std::string> words) {
  const auto settings = Settings::read(flags, environment_of(std::move(words)));
  if (settings.ok()) return "not refused";
  EXPECT_EQ(settings.error().kind, ErrorKind::kInvalidArgument);
  return settings.error().message();
}

TEST(Settings, Defaults) {
  const auto settings = Settings::read({}, environment_of({}));
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->text("precision"), "bf16");
  EXPECT_EQ(settings->text("backend"), "");
  EXPECT_FALSE(settings->given("backend"));
  EXPECT_EQ(settings->integer("decoder_tokens"), 128);
  EXPECT_TRUE(settings->enabled("kv_quant"));
  EXPECT_TRUE(settings->enabled("prefix_cache"));
  EXPECT_FALSE(settings->given("prefix_snapshots"));
  EXPECT_FALSE(settings->enabled("prefix_shared"));
}

TEST(Settings, PublishedEnvironmentNames) {
  const auto settings =
      Settings::read({}, environment_of({{"DEEPINFER_ACCELERATOR", "nvidia"},
                                         {"DEEPINFER_HF_MODEL_DIR", "/models/v41"},
                                         {"DEEPINFER_ENABLE_MTP_VARLEN", "0"},
                                         {"DEEPINFER_USE_NEXTN_DECODE", "5"},
                                         {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact"},
                                         {"DEEPINFER_YOCO_PREFILL_TRUNCATION_KEEP_TOKENS", "140"}}));
  ASSERT_TRUE(settings.ok()) << settings.error().message();
  EXPECT_EQ(settings->text("backend"), "cuda");
  EXPECT_EQ(settings->source("backend"), Settings::Source::kEnvironment);
  EXPECT_EQ(settings->text("model"), "/models/v41");
  EXPECT_FALSE(settings->enabled("verify_lengths"));
  EXPECT_EQ(settings->integer("drafts"), 5);
  EXPECT_EQ(settings->text("mode"), "replay");
  EXPECT_EQ(settings->integer("decoder_tokens"), 140);
  EXPECT_EQ(Settings::read({}, environment_of({{"DEEPINFER_ACCELERATOR", "cuda"}}))->text("backend"), "cuda");
  EXPECT_EQ(
      Settings::read({}, environment_of({{"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "off"}}))->text("mode"),
      "exact");
}

TEST(Settings, AFlagBeatsTheEnvironment) {
  const auto settings =
      Settings::read({{"backend", "cpu"}}, environment_of({{"DEEPINFER_ACCELERATOR", "nvidia"}}));
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->text("backend"), "cpu");
  EXPECT_EQ(settings->source("backend"), Settings::Source::kFlag);
}

TEST(Settings, UnknownValuesAreRefusedWithTheKnown) {
  EXPECT_EQ(refusal({}, {{"DEEPINFER_ACCELERATOR", "tpu"}}),
            "cannot set DEEPINFER_ACCELERATOR to \"tpu\"\n  known values: cpu, nvidia, cuda, ascend");
  EXPECT_EQ(refusal({{"backend", "nvidia"}}, {}),
            "cannot set --backend to \"nvidia\"\n  known values: reference, cpu, cuda, ascend");
  EXPECT_EQ(refusal({{"mode", "compact"}}, {}),
            "cannot set --mode to \"compact\"\n  known values: exact, replay");
  EXPECT_EQ(refusal({}, {{"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "exact"}}),
            "cannot set DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE to \"exact\"\n  known values: off, compact");
  EXPECT_EQ(refusal({}, {{"DEEPINFER_USE_NEXTN_DECODE", "9"}}),
            "cannot set DEEPINFER_USE_NEXTN_DECODE to \"9\"\n  give a whole number from 0 to 8 (drafts)");
  for (const char* word : {"", "x", "1.5", "-1", "99999999999999999999", " 1", "1 "}) {
    EXPECT_NE(refusal({{"threads", word}}, {}), "not refused") << word;
  }
  EXPECT_EQ(refusal({{"kv_quant", "maybe"}}, {}),
            "cannot set --kv-quant to \"maybe\"\n  known values: on (1, true), off (0, false)");
  EXPECT_EQ(refusal({{"prefix_snapshots", "-1"}}, {}),
            "cannot set --prefix-snapshots to \"-1\"\n  give a whole number from 0 to 1048576 (snapshots)");
  EXPECT_NE(refusal({{"model", ""}}, {}), "not refused");
  // A wrong word in the environment is an error even where a flag would win.
  EXPECT_NE(refusal({{"backend", "cpu"}}, {{"DEEPINFER_ACCELERATOR", "tpu"}}), "not refused");
}

TEST(Settings, TheTableIsSound) {
  std::set<std::string_view> names;
  std::set<std::string_view> outer_names;
  for (const SettingRow& row : setting_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.flag.empty() && row.environment.empty()) << row.name;
    for (const auto outer : {row.flag, row.environment}) {
      if (!outer.empty()) EXPECT_TRUE(outer_names.insert(outer).second) << outer;
    }
    EXPECT_FALSE(row.documentation.empty()) << row.name;
    EXPECT_EQ(row.type == SettingType::kChoice, !row.choices.empty()) << row.name;
    if (!row.default_value.empty())
      EXPECT_TRUE(parse_setting(row, row.default_value, false).ok()) << row.name;
    EXPECT_NE(settings_markdown().find(row.documentation), std::string::npos);
  }
}

TEST(Settings, ThePageIsTheTable) {
  const auto page = read_small_file(DEEPINFER_SOURCE_DIR "/docs/settings.md");
  ASSERT_TRUE(page.ok()) << page.error().message();
  EXPECT_TRUE(page->ends_with("\n\n" + settings_markdown())) << settings_markdown();
}

}  // namespace
}  // namespace deepinfer
