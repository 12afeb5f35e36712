#include "golden.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace heed_test {

std::filesystem::path golden_folder() {
  if (const char* folder = std::getenv("HEED_GOLDEN_DIR")) return folder;
#ifdef HEED_TEST_GOLDEN_DIR
  return HEED_TEST_GOLDEN_DIR;
#else
  throw std::runtime_error("set HEED_GOLDEN_DIR to the folder of the golden cases");
#endif
}

golden_case::golden_case(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::ifstream file(folder_ / "case.txt");
  if (!file) throw std::runtime_error((folder_ / "case.txt").string() + ": cannot be read");
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) values_[line.substr(0, equals)] = line.substr(equals + 1);
  }
}

std::vector<golden_case> golden_cases(std::string_view prefix,
                                      const std::filesystem::path& folder) {
  std::vector<golden_case> cases;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(prefix) &&
        std::filesystem::exists(entry.path() / "case.txt")) {
      cases.emplace_back(entry.path());
    }
  }
  if (cases.empty()) {
    throw std::runtime_error("no golden case " + std::string(prefix) + "* in " + folder.string());
  }
  std::sort(cases.begin(), cases.end(),
            [](const golden_case& a, const golden_case& b) { return a.name() < b.name(); });
  return cases;
}

}  // namespace heed_test
