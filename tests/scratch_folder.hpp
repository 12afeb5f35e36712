// A folder for files, which goes with the test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace heed_test {

struct scratch_folder {
  std::filesystem::path path;

  explicit scratch_folder(const std::string& name)
      : path(std::filesystem::temp_directory_path() /
             ("heed-" + name + "-test-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() { std::filesystem::remove_all(path); }
};

// The bytes of a file.
inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace heed_test
