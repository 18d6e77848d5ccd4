// API keys for tests, from the text of a key file.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include "serve/answer.h"
#include "serve/keys.h"

namespace deepinfer::serve {

inline std::unique_ptr<ApiKeys> keys_from(const std::string& text) {
  const auto file = std::filesystem::temp_directory_path() / ("deepinfer_keys_" + random_id());
  std::ofstream(file) << text;
  auto read = ApiKeys::read(file);
  std::filesystem::remove(file);
  if (!read.ok()) throw std::runtime_error(read.error().message());
  return std::move(*read);
}

}  // namespace deepinfer::serve
