#include "dialects/image_size.h"

namespace deepinfer::dialects {
Result<ImageSize> prepared_size(ImageSize source, bool) { return source; }
std::uint32_t image_tokens(ImageSize) { return 0; }
}  // namespace deepinfer::dialects
