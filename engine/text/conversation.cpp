#include "text/conversation.h"

namespace deepinfer::text {

std::string_view model_version_name(ModelVersion version) {
  return version == ModelVersion::kV4 ? "v4" : "v4.1";
}

std::optional<ModelVersion> model_version_from_name(std::string_view name) {
  if (name == "v4") return ModelVersion::kV4;
  if (name == "v4.1" || name == "v41") return ModelVersion::kV41;
  return std::nullopt;
}

std::string_view image_detail_name(ImageDetail detail) {
  switch (detail) {
    case ImageDetail::kLow: return "low";
    case ImageDetail::kHigh: return "high";
    case ImageDetail::kOriginal: return "original";
    case ImageDetail::kAuto: return "auto";
  }
  return "";
}

Message Message::of_text(Role role, std::string text) {
  Message message;
  message.role = role;
  message.parts.push_back(Part::of_text(std::move(text)));
  return message;
}

std::string Message::text() const {
  std::string joined;
  bool first = true;
  for (const Part& part : parts) {
    if (part.image) continue;
    if (!first) joined += "\n\n";
    joined += part.text;
    first = false;
  }
  return joined;
}

Effort Effort::of_number(int number) {
  const Tier tier = number <= 50 ? Tier::kLow : number <= 75 ? Tier::kHigh : Tier::kMax;
  return Effort{tier, number};
}

int Effort::value() const {
  if (number) return *number;
  switch (tier) {
    case Tier::kLow: return 50;
    case Tier::kHigh:
    case Tier::kXhigh: return 75;
    case Tier::kMax: return 100;
  }
  return 75;
}

std::string Effort::name() const {
  if (number) return std::to_string(*number);
  switch (tier) {
    case Tier::kLow: return "low";
    case Tier::kHigh: return "high";
    case Tier::kXhigh: return "xhigh";
    case Tier::kMax: return "max";
  }
  return "";
}

}  // namespace deepinfer::text
