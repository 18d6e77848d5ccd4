// How many prompt tokens an image takes. recipe.md 3.8.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace deepinfer::dialects {

struct ImageSize {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  bool operator==(const ImageSize&) const = default;
};

inline constexpr std::uint32_t kMaxImageSide = 8192;
inline constexpr std::uint32_t kMaxImages = 600;  // a request

// The size to which an image of `source` size is brought before it is cut into patches: whole patches, not too few and
// not too many; at low detail first no side above 512. Errors: kInvalidArgument (a side of 0 or above kMaxImageSide).
Result<ImageSize> prepared_size(ImageSize source, bool low_detail);

// Tokens of an image of a prepared size: a start, rows of merged patches each with a line end, and an end.
std::uint32_t image_tokens(ImageSize prepared);

}  // namespace deepinfer::dialects
