// A case folder: case.txt, flat key=value lines that describe one call, and its tensors beside it.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "heed/io/npy.hpp"
#include "heed/mask.hpp"
#include "heed/problem.hpp"

namespace cases {

// What is wrong with a case or a command line, in one sentence that says where.
class case_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The case asks for a mechanism that this program knows of but is built without.
class not_built : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The parameters of a case. Every key that is read is remembered, so that check_all_read() can
// refuse a case that asks for something nobody looked at.
class case_folder {
 public:
  // Reads FOLDER/case.txt: throws case_error when it is missing or malformed.
  explicit case_folder(std::filesystem::path folder);

  const std::filesystem::path& folder() const noexcept { return folder_; }
  std::string name() const;       // the key name, else the folder's name
  std::string mechanism() const;  // the key mechanism

  // B, T, S, Hq, Hkv, D, Dv and scale. Absent scale: 1 / sqrt(D).
  heed::problem problem() const;
  // From causal and window_size.
  heed::mask mask() const;

  // True when the key is there with a value other than none.
  bool has(const std::string& key) const;
  // Values. Throw case_error when the key is absent, none, or of another type.
  std::string text(const std::string& key) const;
  std::string choice(const std::string& key, std::initializer_list<const char*> of) const;
  heed::index integer(const std::string& key) const;
  heed::index extent(const std::string& key) const;  // an integer, not negative
  double real(const std::string& key) const;
  // Absent and none read as false.
  bool flag(const std::string& key) const;

  // Throws case_error naming a key that nobody has read and whose value is not 0 or none. Keys
  // that describe the case without changing its result are exempt.
  void check_all_read() const;

  static constexpr heed::index any = -1;
  // NAME_f32.npy (T = float) or NAME.npy (T = double). Throws npy_error for a broken file and
  // case_error when its shape is not the expected one or not what case.txt says.
  template <class T>
  heed::io::npy_array tensor(const std::string& name,
                             const std::vector<heed::index>& expected) const;

  // NAME.npy in double precision, when the folder has one. Throws like tensor().
  std::optional<heed::io::npy_array> expected(const std::string& name,
                                              const std::vector<heed::index>& extents) const;
  std::optional<heed::io::npy_array> expected_out() const;

 private:
  [[noreturn]] void fail(const std::string& problem) const;
  void read_line(const std::string& line, int number);
  void check_shape(const heed::io::npy_array& array, const std::string& name,
                   const std::vector<heed::index>& expected) const;

  std::filesystem::path folder_;
  struct entry {
    std::string text;
    mutable bool read = false;
  };
  std::map<std::string, entry> values_;
};

}  // namespace cases
