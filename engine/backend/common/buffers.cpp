#include "backend/common/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace deepinfer::backend {

ArenaPlan plan_arena(std::span<const Lifetime> lifetimes) {
  struct Placed {
    int64_t offset = 0;
    int64_t bytes = 0;
    int last = 0;
  };
  std::vector<size_t> order;
  for (size_t i = 0; i < lifetimes.size(); ++i)
    if (lifetimes[i].first >= 0 && lifetimes[i].bytes > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].first < lifetimes[b].first; });

  ArenaPlan plan;
  plan.offsets.assign(lifetimes.size(), -1);
  std::vector<Placed> live;  // ascending offsets
  for (const size_t index : order) {
    const Lifetime& value = lifetimes[index];
    DI_CHECK(value.last >= value.first);
    std::erase_if(live, [&](const Placed& placed) { return placed.last < value.first; });
    const int64_t bytes = (value.bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    int64_t offset = 0;
    auto place = live.begin();
    while (place != live.end() && place->offset < offset + bytes) {
      offset = std::max(offset, place->offset + place->bytes);
      ++place;
    }
    live.insert(place, {offset, bytes, value.last});
    plan.offsets[index] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
  }
  return plan;
}

void Arena::Free::operator()(std::byte* address) const {
  std::free(address);
}

Result<Arena> Arena::allocate(int64_t bytes) {
  Arena arena;
  arena.bytes_ =
      std::max(kBufferAlignment, (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment);
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(static_cast<size_t>(kBufferAlignment), static_cast<size_t>(arena.bytes_)));
  if (memory == nullptr)
    return make_error(ErrorKind::kOutOfMemory,
                      fmt::format("cannot take {} bytes for the values of a step", arena.bytes_),
                      "compile for fewer tokens a step");
  std::memset(memory, 0, static_cast<size_t>(arena.bytes_));
  arena.memory_.reset(memory);
  return arena;
}

}  // namespace deepinfer::backend
