// libFuzzer target: no bytes make the configuration parser crash, and an accepted configuration has a registry.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/config.h"
#include "model/records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = deepinfer::model::parse_config({reinterpret_cast<const char*>(data), size});
  if (config.ok()) {
    DI_CHECK(config->layer.size() == static_cast<size_t>(config->layers));
    DI_CHECK(deepinfer::model::build_registry(*config, {}).ok());
  } else {
    DI_CHECK(!config.error().what.empty());
  }
  return 0;
}
