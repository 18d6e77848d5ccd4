#include "text/prompt_constants.h"

#include "base/check.h"
#include "text/embedded_data.h"

namespace deepinfer::text {
namespace {

struct Loaded {
  FormatConstants v4, v41;
  ControlSpellings control;
  SharedConstants shared;
};

const JsonValue& member(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  DI_CHECK(value != nullptr);
  return *value;
}

std::string text_of(const JsonValue& object, std::string_view key) {
  return member(member(object, key), "text").text();
}

// Cuts template text at the control spellings in it. Only ever used on embedded text.
std::vector<PromptPiece> with_controls(std::string_view text, const ControlSpellings& control) {
  const std::string* const spellings[] = {&control.dsml, &control.think, &control.end_think};
  std::vector<PromptPiece> pieces;
  while (!text.empty()) {
    std::size_t at = std::string_view::npos, size = 0;
    for (const std::string* spelling : spellings) {
      if (const std::size_t found = text.find(*spelling); found < at) {
        at = found;
        size = spelling->size();
      }
    }
    const std::string_view plain = text.substr(0, at);
    if (!plain.empty()) pieces.push_back({false, std::string(plain)});
    if (at == std::string_view::npos) break;
    pieces.push_back({true, std::string(text.substr(at, size))});
    text.remove_prefix(at + size);
  }
  return pieces;
}

// What stands between two marks of the calls example.
std::string between(const std::string& text, std::string_view left, std::string_view right) {
  const std::size_t begin = text.find(left);
  DI_CHECK(begin != std::string::npos);
  const std::size_t end = text.find(right, begin + left.size());
  DI_CHECK(end != std::string::npos);
  return text.substr(begin + left.size(), end - begin - left.size());
}

FormatConstants load_format(const JsonValue& data, const ControlSpellings& control) {
  FormatConstants format;
  format.tools_before = with_controls(text_of(data, "tools_pre"), control);
  format.tools_after = text_of(data, "tools_post");
  format.json_object = text_of(data, "json_object_block");
  format.json_schema_lead = text_of(data, "json_schema_lead");
  const std::string calls = text_of(data, "calls_example");
  const std::string open = "<" + control.dsml;
  format.tag_calls = between(calls, open, ">\n");
  const std::string tail = calls.substr(calls.find(">\n") + 2);
  format.tag_invoke = between(tail, open, " name=");
  format.empty_arguments = between(tail, "\"NAME\">", "</" + control.dsml);
  format.tag_parameter = between(tail.substr(tail.find("NAME2")), open, " name=");
  return format;
}

Loaded load() {
  const auto parsed = read_json(embedded_prompt_constants());
  DI_CHECK(parsed.ok());
  const JsonValue& root = *parsed;
  Loaded loaded;

  const JsonValue& tokens = member(root, "special_tokens");
  const auto spelling = [&](std::string_view key) { return member(tokens, key).text(); };
  ControlSpellings& control = loaded.control;
  control.begin_of_sentence = spelling("Bos");
  control.end_of_sentence = spelling("Eos");
  control.think = spelling("ThinkingStart");
  control.end_think = spelling("ThinkingEnd");
  control.system = spelling("System");
  control.user = spelling("User");
  control.assistant = spelling("Assistant");
  control.latest_reminder = spelling("LatestReminder");
  control.dsml = spelling("Dsml");
  control.image = spelling("Image");
  for (const char* name : {"Ref", "RefEnd", "Box", "BoxEnd", "Point", "PointEnd", "Polygon", "PolygonEnd"})
    control.grounding.push_back(spelling(name));

  const JsonValue& v41 = member(root, "v4.1");
  loaded.v41 = load_format(v41, control);
  loaded.v41.effort_prefix = text_of(v41, "effort_prefix");
  loaded.v41.effort_suffix = text_of(v41, "effort_suffix");
  loaded.v41.updated_tools = text_of(v41, "updated_tools_lead");

  const JsonValue& v4 = member(root, "v4");
  loaded.v4 = load_format(v4, control);
  loaded.v4.effort_high = text_of(member(v4, "effort_by_tier"), "high");
  loaded.v4.effort_max = text_of(member(v4, "effort_by_tier"), "max");

  const JsonValue& texts = member(root, "shared");
  const auto text = [&](std::string_view key) { return member(texts, key).text(); };
  loaded.shared = {text("tool_result_open"),
                   text("tool_result_close"),
                   text("part_join"),
                   text("system_reminder_open"),
                   text("system_reminder_close"),
                   text("unsupported_image_v4"),
                   text("unsupported_document_responses"),
                   text("unsupported_document_messages")};
  return loaded;
}

const Loaded& loaded() {
  static const Loaded constants = load();
  return constants;
}

}  // namespace

const FormatConstants& format_constants(ModelVersion version) {
  return version == ModelVersion::kV4 ? loaded().v4 : loaded().v41;
}
const ControlSpellings& control_spellings() {
  return loaded().control;
}
const SharedConstants& shared_constants() {
  return loaded().shared;
}

}  // namespace deepinfer::text
