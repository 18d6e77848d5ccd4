#include "dialects/image_size.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace deepinfer::dialects {
namespace {

constexpr std::uint32_t kPatch = 14;            // pixels a side
constexpr std::uint32_t kCell = 3 * kPatch;     // merged patches: one token
constexpr double kLeastPixels = 544.0 * 544.0;  // smaller images are enlarged
constexpr std::uint32_t kMostTokens = 1024;     // an image, with start, line ends and end
constexpr std::uint32_t kLowDetailSide = 512;
constexpr std::uint32_t kLongestSide = 16384 / kPatch * kPatch;
constexpr int kMostRounds = 30;  // of enlarging; each gains at least a patch or nothing

std::uint32_t patches_up(double pixels) {
  return static_cast<std::uint32_t>(std::ceil(pixels / kPatch)) * kPatch;
}
std::uint32_t patches_down(double pixels) {
  return static_cast<std::uint32_t>(std::floor(pixels / kPatch)) * kPatch;
}

std::uint32_t tokens_of(ImageSize size) {
  const std::uint32_t columns = (size.width + kCell - 1) / kCell;
  const std::uint32_t rows = (size.height + kCell - 1) / kCell;
  return rows * (columns + 1) + 2;
}

double area(ImageSize size) {
  return static_cast<double>(size.width) * size.height;
}

// Whole patches of at least kLeastPixels, by scaling until the rounding no longer falls short.
ImageSize enlarge(ImageSize size) {
  if (area(size) >= kLeastPixels) return {patches_up(size.width), patches_up(size.height)};
  for (int round = 0; round < kMostRounds && area(size) < kLeastPixels; ++round) {
    const double scale = std::sqrt(kLeastPixels / area(size));
    const ImageSize next = {patches_up(std::floor(size.width * scale)),
                            patches_up(std::floor(size.height * scale))};
    if (next == size) break;
    size = next;
  }
  return size;
}

// The largest box of whole cells with the image's shape and at most kMostTokens; inside it, whole patches.
ImageSize shrink(ImageSize size) {
  const double ratio = static_cast<double>(size.width) / size.height;
  const double cells = kMostTokens - 2;
  const double height = (-1 + std::sqrt(1 + 4 * ratio * cells)) / (2 * ratio);
  double rows = std::floor(height);
  double columns = std::floor(ratio * height);
  if (columns < 1) {
    columns = 1;
    rows = std::floor(cells / 2);
  } else if (rows < 1) {
    rows = 1;
    columns = cells - 1;
  }
  const double scale = std::min(kCell * columns / size.width, kCell * rows / size.height);
  return {std::max(patches_down(size.width * scale), columns == 1 ? kCell : kPatch),
          std::max(patches_down(size.height * scale), kPatch)};
}

ImageSize fit(ImageSize size) {
  const ImageSize whole = enlarge(size);
  return tokens_of(whole) > kMostTokens ? shrink(size) : whole;
}

ImageSize within_side(ImageSize size, std::uint32_t side) {
  const std::uint32_t longest = std::max(size.width, size.height);
  if (longest <= side) return size;
  const auto scaled = [&](std::uint32_t length) {
    const double value = std::round(static_cast<double>(length) * side / longest);
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(value));
  };
  return {scaled(size.width), scaled(size.height)};
}

}  // namespace

Result<ImageSize> prepared_size(ImageSize source, bool low_detail) {
  if (source.width == 0 || source.height == 0 || source.width > kMaxImageSide ||
      source.height > kMaxImageSide) {
    return make_error(ErrorKind::kInvalidArgument,
                      fmt::format("cannot use an image of {} x {} pixels: sides may be 1 to {}", source.width,
                                  source.height, kMaxImageSide),
                      "scale the image down");
  }
  ImageSize size = fit(low_detail ? within_side(source, kLowDetailSide) : source);
  // A side that had to be cut is made up for by the other one.
  const std::uint32_t other = patches_up(kLeastPixels / kLongestSide);
  if (size.width > kLongestSide) size = {kLongestSide, std::max(size.height, other)};
  if (size.height > kLongestSide) size = {std::max(size.width, other), kLongestSide};
  return size;
}

std::uint32_t image_tokens(ImageSize prepared) {
  return tokens_of(fit(prepared));
}

}  // namespace deepinfer::dialects
