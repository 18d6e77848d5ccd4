// What an answer said, in one form for whole and streamed answers of every dialect, so that two can be compared as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "http_agreement/connection.h"

namespace deepinfer::http_agreement {

enum class Dialect : std::uint8_t { kChat, kCompletions, kResponses, kMessages };
inline constexpr Dialect kDialects[] = {Dialect::kChat, Dialect::kCompletions, Dialect::kResponses,
                                        Dialect::kMessages};
const char* path_of(Dialect dialect);

// A token with its log-probability as decimal text.
struct Logprob {
  std::string token;
  std::string number;
  std::string rest;  // bytes, alternatives, offset: as the dialect has them
};

struct Call {
  std::string name;
  std::string arguments;
};

struct Choice {
  std::string reasoning;
  std::string text;
  std::vector<Call> calls;
  std::string finish;  // in the words of the dialect
  std::vector<Logprob> logprobs, reasoning_logprobs;
};

struct Answer {
  std::string fault;  // what is wrong with its form; empty if nothing
  std::string id;
  std::vector<Choice> choices;
  std::int64_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::string output;  // Responses: the list of output items, as JSON

  // Everything but `id`, `output` and what was cached; lines that people can read.
  std::string said() const;
};

Answer read_whole(Dialect dialect, const RawAnswer& raw);
// Puts the pieces together, and checks their order and the mark of the end.
Answer read_stream(Dialect dialect, const RawAnswer& raw);

}  // namespace deepinfer::http_agreement
