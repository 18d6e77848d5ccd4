// Recorded agent conversations: when each request came, how long its prompt was, and which 64-token pieces it had in
// common with others of the conversation. Format: one JSON file a conversation,
//   {"id", "block_size": 64, "hash_id_scope": "local", "requests": [{"t" s, "in" tokens, "out" tokens, "api_time" s,
//    "hash_ids": [...], "requests": [...] of sub-agents}]}
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer::serve_sim {

inline constexpr std::int64_t kPieceTokens = 64;

struct TraceRequest {
  double at = 0;        // s after the conversation's start
  double duration = 0;  // s that the answer took; 0: not recorded
  std::int64_t tokens = 0;
  std::int64_t answer = 1;  // tokens, at least 1
  std::vector<std::int32_t>
      pieces;  // one a whole 64 tokens; equal numbers are equal tokens, in one conversation
};

struct Conversation {
  std::string id;
  std::vector<TraceRequest> requests;  // in order of time
  bool one_off = false;                // a prompt that nothing else shares
};

// `count` prompts of so many tokens that come once each.
std::vector<Conversation> one_offs(int count, std::int64_t tokens);

// All *.json of a folder, by name. kNotFound without any; kFormat names the file.
Result<std::vector<Conversation>> read_traces(const std::filesystem::path& folder);

// The prompt's tokens: 64 for each piece, a function of conversation and piece alone; what is past the last whole piece is
// the request's own.
std::vector<std::int32_t> tokens_of(std::size_t conversation, std::size_t request, const TraceRequest& data);
// A token of its answer. The recordings do not say which tokens an answer had, so it is the request's own: nothing later
// has it in its prompt.
std::int32_t answer_token(std::size_t conversation, std::size_t request, std::int64_t number);

}  // namespace deepinfer::serve_sim
