// What the chunks of Chat and of Completions have in common. recipe.md 6.1, section 9.
#pragma once

#include <string_view>
#include <utility>

#include "dialects/events.h"

namespace deepinfer::dialects {

// A chunk's body around its choices; `object` says of which dialect it is.
inline text::JsonValue chunk_body(const AnswerIdentity& identity, std::string_view object,
                                  text::JsonValue choices) {
  return text::JsonValue::object({{"id", identity.id},
                                  {"object", object},
                                  {"created", identity.created},
                                  {"model", identity.model},
                                  {"system_fingerprint", identity.system_fingerprint},
                                  {"choices", std::move(choices)}});
}

// A chunk of one choice; where the request asks for usage, all but the last say that theirs comes later.
inline SseFrame chunk_frame(const AnswerIdentity& identity, std::string_view object, text::JsonValue choice,
                            bool include_usage) {
  text::JsonValue body = chunk_body(identity, object, text::JsonValue::array({std::move(choice)}));
  if (include_usage) body.set("usage", nullptr);
  return {"", write_json(body)};
}

}  // namespace deepinfer::dialects
