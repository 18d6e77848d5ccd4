#include "text/recipe_cases.h"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "text/detokenizer.h"

namespace deepinfer::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<std::string_view, FinishReason>, 5> kFinishNames = {
    {{"stop", FinishReason::kStop},
     {"length", FinishReason::kLength},
     {"tool_calls", FinishReason::kToolCalls},
     {"content_filter", FinishReason::kContentFilter},
     {"aborted", FinishReason::kAborted}}};

FinishReason finish_of(const Json& name) {
  for (const auto& [text, reason] : kFinishNames) {
    if (name.is_string() && name.get<std::string>() == text) return reason;
  }
  return FinishReason::kNone;
}

std::string_view finish_name(FinishReason reason) {
  for (const auto& [text, value] : kFinishNames) {
    if (value == reason) return text;
  }
  return "stop";
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kHex[static_cast<unsigned char>(c) >> 4];
    text += kHex[c & 15];
  }
  return text;
}

std::string unhex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

Json run_lengths(const std::vector<TokenId>& ids) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < ids.size();) {
    std::size_t end = i;
    while (end < ids.size() && ids[end] == ids[i])
      ++end;
    runs.push_back({ids[i], end - i});
    i = end;
  }
  return runs;
}

void run_tokenizer(Json& row, const CaseTokenizers& tokenizers) {
  if (row.contains("repeat")) {
    const auto unit = row["repeat"].at(0).get<std::string>();
    std::string text;
    for (std::size_t i = row["repeat"].at(1).get<std::size_t>(); i > 0; --i)
      text += unit;
    row["ids_rle"] = run_lengths(tokenizers.v41->encode(text));
    return;
  }
  const bool raw = row.contains("bytes_hex");
  const std::string bytes =
      raw ? unhex(row["bytes_hex"].get<std::string>()) : row.at("text").get<std::string>();
  if (raw) row["text"] = to_valid_utf8(bytes);
  // Each list is written only when it differs from the one before.
  const auto ids = tokenizers.v41->encode(bytes);
  const auto special = tokenizers.v41->encode_with_specials(bytes);
  const auto special_v4 = tokenizers.v4->encode_with_specials(bytes);
  row["ids"] = ids;
  const auto set = [&](const char* key, const std::vector<TokenId>& value, bool differs) {
    if (differs) {
      row[key] = value;
    } else {
      row.erase(key);
    }
  };
  set("ids_special", special, special != ids);
  set("ids_special_v4", special_v4, special_v4 != special);
}

void run_decode(Json& row, const CaseTokenizers& tokenizers) {
  const auto ids = row.at("ids").get<std::vector<TokenId>>();
  Json bytes = Json::array();
  for (const TokenId id : ids)
    bytes.push_back(hex(tokenizers.v41->token_bytes(id)));
  row["token_bytes_hex"] = std::move(bytes);
  row["text"] = decode(*tokenizers.v41, ids);
}

ParserOptions options_of(const Json& row, ParserProfile profile) {
  const Json& given = row.at("options");
  ParserOptions options;
  options.profile = profile;
  options.tools_enabled = given.value("tools", false);
  options.json_mode = given.value("json", false);
  options.stops = given.value("stops", std::vector<std::string>());
  const std::string stage =
      given.contains("stage") && given["stage"].is_string() ? given["stage"].get<std::string>() : "";
  if (stage == "reasoning_start") options.start = ParserStart::kReasoning;
  if (stage == "reasoning_continuation") options.start = ParserStart::kReasoningContinuation;
  if (stage == "content_continuation") options.start = ParserStart::kContentContinuation;
  if (given.value("in_calls", false)) options.start = ParserStart::kCalls;
  return options;
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json expectation(const ParsedOutput& output) {
  Json calls = Json::array();
  for (const ParsedCall& call : output.calls)
    calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  return {{"reasoning", text_or_null(output.reasoning)},
          {"content", text_or_null(output.content)},
          {"tool_calls", std::move(calls)},
          {"finish", finish_name(output.outcome.finish)}};
}

void run_parse(Json& row, const CaseTokenizers& tokenizers, ParserProfile profile) {
  const auto ids = row.at("ids").get<std::vector<TokenId>>();
  const ParserOptions options = options_of(row, profile);
  const ParsedOutput output = parse_output(*tokenizers.v41, options, ids, finish_of(row.at("finish")));
  row["expect"] = expectation(output);
  for (const char* key : {"expect_if_one_chunk", "expect_text_mode", "expect_text_mode_by_char"})
    row.erase(key);
  row["usage"] = {
      {"completion_tokens", output.outcome.completion_tokens},
      {"reasoning_tokens", output.outcome.reasoning_tokens == 0 && options.start != ParserStart::kReasoning
                               ? Json()
                               : Json(output.outcome.reasoning_tokens)}};
}

// Neighbouring deltas of one kind and call as one, in the form of the data: ["c", text], ["t", call, name], ["a", call, text].
Json joined(const std::vector<ParserEvent>& events) {
  Json list = Json::array();
  for (const ParserEvent& event : events) {
    const char* kind = event.kind == ParserEvent::Kind::kReasoning   ? "r"
                       : event.kind == ParserEvent::Kind::kContent   ? "c"
                       : event.kind == ParserEvent::Kind::kCallStart ? "t"
                                                                     : "a";
    Json entry = event.call < 0 ? Json::array({kind}) : Json::array({kind, event.call});
    const bool joins = event.kind != ParserEvent::Kind::kCallStart && !list.empty() &&
                       list.back().at(0) == kind && (event.call < 0 || list.back().at(1) == event.call);
    if (joins) {
      list.back().back() = list.back().back().get<std::string>() + event.text;
    } else {
      entry.push_back(event.text);
      list.push_back(std::move(entry));
    }
  }
  return list;
}

// Feeds pieces one by one; `push(i, events)` feeds piece i.
template <class Push>
Json stream(const Tokenizer& tokenizer, const ParserOptions& options, FinishReason reason, std::size_t pieces,
            const Push& push) {
  std::vector<ParserEvent> events;
  OutputParser parser(tokenizer, options);
  for (std::size_t i = 0; i < pieces; ++i)
    push(parser, i, events);
  parser.finish(reason, events);
  return joined(events);
}

void run_stream(Json& row, const CaseTokenizers& tokenizers, ParserProfile profile) {
  const auto ids = row.at("ids").get<std::vector<TokenId>>();
  const ParserOptions options = options_of(row, profile);
  const FinishReason reason = finish_of(row.at("finish"));
  const Tokenizer& tokenizer = *tokenizers.v41;
  const std::span<const TokenId> all(ids);
  row["joined"] = stream(tokenizer, options, reason, 1,
                         [&](OutputParser& parser, std::size_t, auto& events) { parser.push(all, events); });
  bool agrees = true;
  for (std::size_t cut = 0; cut <= ids.size() && agrees; ++cut) {
    agrees = row["joined"] ==
             stream(tokenizer, options, reason, 2, [&](OutputParser& parser, std::size_t i, auto& events) {
               parser.push(i == 0 ? all.first(cut) : all.subspan(cut), events);
             });
  }
  row["every_id_split_agrees"] = agrees;
  if (row.at("text").is_string()) {
    const auto text = row["text"].get<std::string>();
    const auto whole =
        stream(tokenizer, options, reason, 1,
               [&](OutputParser& parser, std::size_t, auto& events) { parser.push_text(text, 1, events); });
    agrees = true;
    for (std::size_t cut = 0; cut <= text.size() && agrees; ++cut) {
      agrees = whole ==
               stream(tokenizer, options, reason, 2, [&](OutputParser& parser, std::size_t i, auto& events) {
                 parser.push_text(
                     i == 0 ? std::string_view(text).substr(0, cut) : std::string_view(text).substr(cut), 1,
                     events);
               });
    }
    row["every_char_split_agrees"] = agrees;
  }
  // The package's own deltas; ours are the same text in other pieces.
  row.erase("by_id");
  row.erase("by_char");
}

// null and "" are the same in the data.
void unify_empty(Json& expect) {
  for (const char* key : {"reasoning", "content"}) {
    if (expect.contains(key) && expect[key].is_string() && expect[key].get<std::string>().empty())
      expect[key] = nullptr;
  }
}

}  // namespace

Result<std::string> run_text_case(std::string_view kind, std::string_view line,
                                  const CaseTokenizers& tokenizers, ParserProfile profile) {
  try {
    Json row = Json::parse(line);
    if (kind == "tokenizer") {
      run_tokenizer(row, tokenizers);
    } else if (kind == "decode") {
      run_decode(row, tokenizers);
    } else if (kind == "parse") {
      run_parse(row, tokenizers, profile);
    } else if (kind == "stream") {
      run_stream(row, tokenizers, profile);
    } else {
      return make_error(ErrorKind::kInvalidArgument, "unknown kind of case: " + std::string(kind),
                        "tokenizer, decode, parse or stream");
    }
    return row.dump();
  } catch (const std::exception& failure) {
    return make_error(ErrorKind::kFormat, "not a case of kind " + std::string(kind) + ": " + failure.what(),
                      "the README of the recipe data has the fields of each kind");
  }
}

std::string compare_text_case(std::string_view kind, std::string_view expected, std::string_view ours) {
  const Json want = Json::parse(expected, nullptr, false), have = Json::parse(ours, nullptr, false);
  if (!want.is_object() || !have.is_object()) return "not two JSON objects";
  std::vector<std::string_view> keys;
  if (kind == "tokenizer") keys = {"text", "ids", "ids_special", "ids_special_v4", "ids_rle"};
  if (kind == "decode") keys = {"token_bytes_hex", "text"};
  if (kind == "parse") keys = {"expect"};
  if (kind == "stream") keys = {"joined", "every_id_split_agrees", "every_char_split_agrees"};
  std::string differences;
  for (const std::string_view key : keys) {
    const std::string name(key);
    Json left = want.contains(name) ? want[name] : Json();
    Json right = have.contains(name) ? have[name] : Json();
    if (kind == "parse") {
      unify_empty(left);
      unify_empty(right);
    }
    if (left == right) continue;
    differences +=
        (differences.empty() ? "" : "\n") + name + " is " + right.dump() + ", expected " + left.dump();
  }
  return differences;
}

}  // namespace deepinfer::text
