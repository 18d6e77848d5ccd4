// A copy within the memory that steps run in: how state is kept beside a sequence while its steps go on.
#pragma once

#include <cstddef>

namespace deepinfer::state {

struct StateCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

}  // namespace deepinfer::state
