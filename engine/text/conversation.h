// The narrow waist of the text layer: every dialect becomes a Conversation, both prompt encodings read only that.
// recipe.md section 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_value.h"
#include "text/parser.h"

namespace deepinfer::text {

// The prompt format of a checkpoint. It comes from the model directory, never from a model's name alone.
enum class ModelVersion : std::uint8_t { kV4, kV41 };
std::string_view model_version_name(ModelVersion version);  // "v4", "v4.1"
std::optional<ModelVersion> model_version_from_name(std::string_view name);

// Our own behaviour, or that of deepseek-recipe 0.2.0 wherever recipe.md says OURS differs (its faults apart).
using Profile = ParserProfile;

enum class ImageDetail : std::uint8_t { kLow, kHigh, kOriginal, kAuto };
std::string_view image_detail_name(ImageDetail detail);

struct ImageSource {
  enum class Kind : std::uint8_t { kDataUrl, kUrl };
  Kind kind = Kind::kUrl;
  std::string location;  // the data: URL, or the http(s) URL
  ImageDetail detail = ImageDetail::kHigh;
  std::string path;  // where in the request it stood, for messages
};

// A piece of a message: text, or an image. Pieces are joined by two line feeds.
struct Part {
  std::string text;
  std::optional<ImageSource> image;

  static Part of_text(std::string value) { return Part{std::move(value), std::nullopt}; }
  static Part of_image(ImageSource source) { return Part{{}, std::move(source)}; }
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // as the client sent it; should be the JSON text of an object
  // ParsedCall::written, when it is known that the model wrote this very call: rendered in place of name and arguments.
  std::vector<PromptPiece> written;
};

struct ToolDefinition {
  std::string name;
  std::optional<std::string> description;
  JsonValue parameters = JsonValue::object();  // JSON Schema, already normalised when strict
  std::optional<bool> strict;
  bool defer_loading = false;  // V4.1: its schema is shown only when a later turn refers to it
};

enum class Role : std::uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder };

struct Message {
  Role role = Role::kUser;
  std::vector<Part> parts;               // never empty for a message that has content; {""} is empty text
  std::optional<std::string> reasoning;  // assistant
  std::vector<ToolCall> tool_calls;      // assistant
  std::string tool_call_id;              // tool
  bool prefix = false;                   // assistant, last: the answer goes on from here
  std::vector<ToolDefinition> tools;     // system: late tool schemas (V4.1)

  static Message of_text(Role role, std::string text);
  // The texts joined by two line feeds; images leave nothing.
  std::string text() const;
};

// 1..100. The names are kept because V4 has tiers instead of numbers and the options report them.
struct Effort {
  enum class Tier : std::uint8_t { kLow, kHigh, kXhigh, kMax };
  Tier tier = Tier::kHigh;
  std::optional<int> number;  // given as a number; the tier is then its bucket: 1-50, 51-75, 76-100

  static Effort of(Tier tier) { return Effort{tier, std::nullopt}; }
  static Effort of_number(int number);
  int value() const;         // the number of V4.1: low 50, high and xhigh 75, max 100 (recipe.md 3.7)
  std::string name() const;  // the tier's name, or the number
  bool operator==(const Effort&) const = default;
};

enum class ToolChoice : std::uint8_t { kNone, kAuto, kRequired };

struct ResponseFormat {
  enum class Kind : std::uint8_t { kText, kJsonObject, kJsonSchema, kRegex };
  Kind kind = Kind::kText;
  JsonValue schema;   // kJsonSchema: as sent
  std::string regex;  // kRegex
};

struct Conversation {
  std::vector<Message> messages;
  bool thinking = true;
  std::optional<Effort> effort;  // unset: high
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;  // with kRequired: only this one may be called; empty = any
  ResponseFormat response_format;
};

// Whether the prompt shows tools at all.
inline bool shows_tools(const Conversation& conversation) {
  return !conversation.tools.empty() && conversation.tool_choice != ToolChoice::kNone;
}

}  // namespace deepinfer::text
