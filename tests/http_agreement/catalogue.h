// What is asked: questions of every dialect and kind, and conversations that go on from stored responses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "http_agreement/answer.h"
#include "text/json_value.h"

namespace deepinfer::http_agreement {

struct Question {
  std::string name;
  Dialect dialect = Dialect::kChat;
  text::JsonValue body;     // without `stream`
  std::string talk;         // those of one talk have the same prompt and must go on alike; empty: it is alone
  bool whole_only = false;  // what the dialect does not stream
};

// Responses that stand on each other. A step without input has the result of the call before it.
struct Chain {
  std::string name;
  std::vector<text::JsonValue> steps;
};

struct Catalogue {
  std::vector<Question> questions;
  std::vector<Chain> chains;
};

// `port`: a server that tells ids of texts.
Catalogue make_catalogue(std::uint16_t port, const std::string& key);

}  // namespace deepinfer::http_agreement
