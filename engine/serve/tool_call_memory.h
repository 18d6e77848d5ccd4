// What the model wrote for each tool call, by the id that the client got: when the call comes back in a history, it is
// rendered to the very bytes it was, whatever way the client's JSON library writes the same arguments. What follows it in the
// prefix cache is then still found. recipe.md 10.3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/tenant_store.h"
#include "text/conversation.h"
#include "text/parser.h"

namespace deepinfer::serve {

class ToolCallMemory {
 public:
  ToolCallMemory() : calls_({.entries = 100'000, .bytes = std::size_t{64} << 20}) {}

  // Nothing to do for a call that was cut off or not well formed.
  void remember(const std::string& tenant, const std::string& id, const text::ParsedCall& call);

  struct Recalled {
    std::uint64_t replays = 0;
    std::uint64_t misses =
        0;  // calls that are rendered anew: their id is not known, or they are not what it stands for
  };
  // Sets ToolCall::written of the calls of a tenant's conversation that are remembered, if name and arguments (as JSON
  // values: the order of members and the spelling of numbers do not count) are the same.
  Recalled recall(const std::string& tenant, text::Conversation& conversation);

 private:
  struct Call {
    std::string name, arguments;
    std::vector<text::PromptPiece> written;
    std::size_t bytes() const;
  };
  TenantStore<Call> calls_;
};

// Whether two JSON texts have the same value.
bool same_json(const std::string& a, const std::string& b);

}  // namespace deepinfer::serve
