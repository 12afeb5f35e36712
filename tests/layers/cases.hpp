// The golden cases of whole layers.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "golden.hpp"

namespace heed_test {

// The environment's HEED_GOLDEN_LAYERS_DIR, else the cases that ship with the tests.
inline std::filesystem::path golden_layers_folder() {
  if (const char* folder = std::getenv("HEED_GOLDEN_LAYERS_DIR")) return folder;
  return HEED_TEST_GOLDEN_LAYERS_DIR;
}
inline std::vector<golden_case> golden_layers(std::string_view prefix) {
  return golden_cases(prefix, golden_layers_folder());
}

}  // namespace heed_test
