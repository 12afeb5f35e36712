// The golden cases: inputs with the outputs and gradients that the published code gives.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "heed/io/npy.hpp"

namespace heed_test {

// The environment's HEED_GOLDEN_DIR, else the cases that ship with the tests.
inline std::filesystem::path golden_folder() {
  if (const char* folder = std::getenv("HEED_GOLDEN_DIR")) return folder;
#ifdef HEED_TEST_GOLDEN_DIR
  return HEED_TEST_GOLDEN_DIR;
#else
  throw std::runtime_error("set HEED_GOLDEN_DIR to the folder of the golden cases");
#endif
}

// One case. Parameters are the key=value lines of its case.txt; tensors lie beside it.
class golden_case {
 public:
  explicit golden_case(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::ifstream file(folder_ / "case.txt");
    if (!file) throw std::runtime_error((folder_ / "case.txt").string() + ": cannot be read");
    for (std::string line; std::getline(file, line);) {
      const std::size_t equals = line.find('=');
      if (equals != std::string::npos) values_[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }

  std::string name() const { return folder_.filename().string(); }
  const std::filesystem::path& folder() const noexcept { return folder_; }
  bool name_contains(std::string_view part) const { return name().find(part) != std::string::npos; }

  // True when the key is there and is not "none".
  bool has(const std::string& key) const {
    const auto found = values_.find(key);
    return found != values_.end() && found->second != "none";
  }
  // The functions below throw std::out_of_range for a key that is not there.
  std::string text(const std::string& key) const { return values_.at(key); }
  heed::index integer(const std::string& key) const { return std::stoll(values_.at(key)); }
  double real(const std::string& key) const { return std::stod(values_.at(key)); }
  // A boolean parameter; absent and none read as false.
  bool flag(const std::string& key) const { return has(key) && values_.at(key) != "0"; }

  bool has_tensor(const std::string& tensor) const {
    return std::filesystem::exists(folder_ / (tensor + ".npy"));
  }
  // TENSOR.npy, stored in float64, as T. Inputs hold values that float32 represents exactly.
  template <class T>
  heed::io::npy_array tensor(const std::string& tensor) const {
    return heed::io::read_npy(folder_ / (tensor + ".npy")).as<T>();
  }

 private:
  std::filesystem::path folder_;
  std::map<std::string, std::string> values_;
};

// Every case whose name begins with prefix, sorted by name. Throws std::runtime_error when there
// is none, so that a test over golden cases cannot pass on an empty folder.
inline std::vector<golden_case> golden_cases(
    std::string_view prefix = "", const std::filesystem::path& folder = golden_folder()) {
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
