// What the request readers of the three dialects share. Private to the dialects.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dialects/fields.h"
#include "dialects/request.h"

namespace deepinfer::dialects {

inline bool follows_package(const RequestContext& context) {
  return context.profile == text::Profile::kPackage;
}

// The body as a JSON object with a served model: fills request.model and request.version. A body that can't be read any
// further gives an empty object and a finding.
JsonValue read_body(std::string_view body, const RequestContext& context, Findings& findings,
                    Request& request);

// temperature, top_p, top_k, min_p and the other extensions that all dialects take.
void read_sampling(const JsonValue& body, const RequestContext& context, Findings& findings,
                   Request& request);
// What Chat and Completions share: frequency_penalty and presence_penalty; seed; stop_token_ids and logit_bias; stream and
// stream_options; stop, a string or a list; `user`, if it is a string.
void read_penalties(const JsonValue& body, Findings& findings, Request& request);
void read_seed(const JsonValue& body, Findings& findings, Request& request);
void read_token_rules(const JsonValue& body, Findings& findings, Request& request);
void read_stream(const JsonValue& body, Findings& findings, Request& request);
void read_stops(const JsonValue& body, Findings& findings, Request& request);
std::string read_caller(const JsonValue& body);
// A token id written as a whole number that is not negative.
std::optional<std::int32_t> token_id(std::string_view text);
// The limit on new tokens, behind read_sampling: min_tokens above it is a fault. Messages lowers a larger value to the
// bound, the others refuse it.
void read_max_tokens(const JsonValue& body, std::string_view key, const RequestContext& context,
                     Findings& findings, Request& request);
// What the package makes of the sampling values once thinking and tools are known (recipe.md 7.1, 7.3).
void settle_sampling(const RequestContext& context, bool top_p_given, Request& request);

// An effort word, or in ours a number from 1 to 100. `off` is set for "none".
struct EffortChoice {
  bool given = false;
  bool off = false;
  text::Effort effort;
};
EffortChoice read_effort(const JsonValue& object, std::string_view key, std::string_view path,
                         const RequestContext& context, Findings& findings);
// `thinking: {type, budget_tokens}`: whether thinking is on, if the request says so.
std::optional<bool> read_thinking(const JsonValue& body, Findings& findings, Request& request);
// Explicit type, then effort, then the server's default. recipe.md 3.7
void settle_thinking(std::optional<bool> explicit_type, const EffortChoice& effort,
                     const RequestContext& context, Request& request);

void check_stops(const std::vector<std::string>& stops, std::string_view path, Findings& findings);

inline constexpr std::uint64_t kMostChoices = 128;  // answers to one request
inline constexpr std::size_t kMostMessages = 100'000;
inline constexpr std::size_t kMostTools = 4'096;
// Refuses longer lists. recipe.md 4.5
void check_size(const JsonValue& list, std::size_t most, std::string_view path, Findings& findings);

// A message without content reads as one empty text.
void never_empty(std::vector<text::Part>& parts);
bool is_blank(const std::vector<text::Part>& parts);
bool has_image(const std::vector<text::Part>& parts);

// Last steps of every dialect: the word json, spellings of the image placeholder, calls in the package's order, reasoning
// dropped when thinking is off, the constraint.
void finish_request(const RequestContext& context, Findings& findings, Request& request);

// http(s) or data:image/ URLs.
bool is_image_url(std::string_view url);
std::optional<text::ImageDetail> read_detail(const JsonValue& object, std::string_view path,
                                             Findings& findings);
// "image/png" of "data:image/png;base64,..." if it is a base64 data URL.
std::optional<std::string_view> base64_media_type(std::string_view url);
bool is_image_type(std::string_view media_type);
bool is_base64(std::string_view text);

}  // namespace deepinfer::dialects
