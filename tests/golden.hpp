// The golden cases: inputs with the outputs and gradients that the published code gives.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "heed/io/npy.hpp"

namespace heed_test {

// The environment's HEED_GOLDEN_DIR, else the cases that ship with the tests.
std::filesystem::path golden_folder();

// One case. Parameters are the key=value lines of its case.txt; tensors lie beside it.
class golden_case {
 public:
  explicit golden_case(std::filesystem::path folder);

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
std::vector<golden_case> golden_cases(std::string_view prefix = "",
                                      const std::filesystem::path& folder = golden_folder());

}  // namespace heed_test
