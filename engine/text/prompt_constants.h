// Texts and control spellings of the two prompt formats, from the embedded data (recipe.md 3.2).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/conversation.h"
#include "text/prompt_piece.h"

namespace deepinfer::text {

struct FormatConstants {
  std::vector<PromptPiece> tools_before;  // from "## Tools" to the schemas, its control spellings special
  std::string tools_after;
  std::string json_object;                   // whole block, with its leading line feeds
  std::string json_schema_lead;              // the same up to the schema
  std::string updated_tools;                 // V4.1: heading of late schemas
  std::string effort_prefix, effort_suffix;  // V4.1, around the number
  std::string effort_high, effort_max;       // V4; low has no text
  std::string tag_calls, tag_invoke,
      tag_parameter;            // what follows the DSML token in an opening tag, blank included
  std::string empty_arguments;  // between the invoke tags of a call without arguments
};

struct ControlSpellings {
  std::string begin_of_sentence, end_of_sentence, think, end_think, system, user, assistant, latest_reminder,
      dsml, image;
  std::vector<std::string> grounding;  // eight, recipe.md 1.2
};

struct SharedConstants {
  std::string tool_result_open, tool_result_close, part_join, reminder_open, reminder_close,
      unsupported_image, unsupported_document;
  std::string unsupported_document_type;  // holds MEDIA_TYPE
};

// All are loaded once; broken embedded data aborts, since nothing can be rendered without it.
const FormatConstants& format_constants(ModelVersion version);
const ControlSpellings& control_spellings();
const SharedConstants& shared_constants();

}  // namespace deepinfer::text
