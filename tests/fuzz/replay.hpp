// Replays the files that a fuzzer starts from, and those that it found worth keeping.
#pragma once

#include <filesystem>

#include "catch.hpp"
#include "guarded.hpp"
#include "scratch_folder.hpp"

namespace heed_test {

struct replayed {
  int accepted = 0, refused = 0;
};

template <class Target>
replayed replay_corpus(const char* format, Target target) {
  const guarded_bytes guarded;
  replayed result;
  const auto folder = std::filesystem::path(HEED_TEST_FUZZ_CORPUS_DIR) / format;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    INFO(file.path().string());
    bool accepted = false;
    REQUIRE_NOTHROW(accepted = target(guarded(slurp(file.path()))));
    ++(accepted ? result.accepted : result.refused);
  }
  return result;
}

}  // namespace heed_test
