#include "bench/serve_sim/trace.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace deepinfer::serve_sim {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kOneOffAnswer = 200;

// An id from what it stands for: SplitMix64's finaliser over a counter.
std::int32_t token(std::uint64_t source, std::uint64_t position) {
  std::uint64_t x = source * 0x9e3779b97f4a7c15U + position;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return static_cast<std::int32_t>((x ^ (x >> 31)) % 129280);
}

std::uint64_t scope_of(std::size_t conversation) {
  return static_cast<std::uint64_t>(conversation + 1) << 40;
}

void add_requests(const Json& list, Conversation& conversation) {
  for (const Json& entry : list) {
    if (entry.contains("hash_ids")) {
      TraceRequest& request = conversation.requests.emplace_back();
      request.at = entry.at("t").get<double>();
      const auto duration = entry.find("api_time");
      if (duration != entry.end() && duration->is_number()) request.duration = duration->get<double>();
      request.tokens = entry.at("in").get<std::int64_t>();
      const auto answer = entry.find("out");
      if (answer != entry.end() && answer->is_number())
        request.answer = std::max<std::int64_t>(1, answer->get<std::int64_t>());
      request.pieces = entry.at("hash_ids").get<std::vector<std::int32_t>>();
      request.tokens =
          std::max(request.tokens, static_cast<std::int64_t>(request.pieces.size()) * kPieceTokens);
    }
    if (entry.contains("requests")) add_requests(entry.at("requests"), conversation);
  }
}

Result<Conversation> read_trace(const std::filesystem::path& path) {
  try {
    const Json json = Json::parse(std::ifstream(path));
    if (json.at("block_size") != kPieceTokens || json.at("hash_id_scope") != "local") {
      return make_error(ErrorKind::kFormat,
                        "cannot read " + path.string() + ": only local hashes of 64 tokens are understood");
    }
    Conversation conversation;
    conversation.id = json.at("id").get<std::string>();
    add_requests(json.at("requests"), conversation);
    std::erase_if(conversation.requests, [](const TraceRequest& request) { return request.tokens < 1; });
    std::stable_sort(conversation.requests.begin(), conversation.requests.end(),
                     [](const TraceRequest& a, const TraceRequest& b) { return a.at < b.at; });
    return conversation;
  } catch (const Json::exception& fault) {
    return make_error(ErrorKind::kFormat, "cannot read " + path.string() + ": " + fault.what());
  }
}

}  // namespace

Result<std::vector<Conversation>> read_traces(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  if (paths.empty()) {
    return make_error(ErrorKind::kNotFound, "no trace files (*.json) in " + folder.string(),
                      "unpack the archive of traces and name the folder");
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Conversation> conversations;
  for (const auto& path : paths) {
    DI_ASSIGN(Conversation conversation, read_trace(path));
    conversations.push_back(std::move(conversation));
  }
  return conversations;
}

std::vector<Conversation> one_offs(int count, std::int64_t tokens) {
  Conversation once;
  once.one_off = true;
  once.requests.push_back({0, 10, tokens, kOneOffAnswer, {}});
  return std::vector<Conversation>(static_cast<std::size_t>(count), once);
}

std::vector<std::int32_t> tokens_of(std::size_t conversation, std::size_t request, const TraceRequest& data) {
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(data.tokens));
  const std::uint64_t scope = scope_of(conversation);
  for (const std::int32_t piece : data.pieces) {
    for (std::uint64_t i = 0; i < kPieceTokens; ++i)
      ids.push_back(token(scope + static_cast<std::uint64_t>(piece), i));
  }
  const std::uint64_t own = scope + (std::uint64_t{1} << 32) + request;
  for (std::uint64_t i = 0; static_cast<std::int64_t>(ids.size()) < data.tokens; ++i)
    ids.push_back(token(own, i));
  return ids;
}

std::int32_t answer_token(std::size_t conversation, std::size_t request, std::int64_t number) {
  return token(scope_of(conversation) + (std::uint64_t{2} << 32) + request,
               static_cast<std::uint64_t>(number));
}

}  // namespace deepinfer::serve_sim
