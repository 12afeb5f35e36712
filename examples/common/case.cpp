#include "case.hpp"

#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

namespace cases {
namespace {

using heed::io::printable;

// Keys that say where a case comes from or how it was made, and do not change its result.
bool describes_only(const std::string& key) {
  static const std::set<std::string> names = {"name",       "via",        "decode_prefill",
                                              "block_size", "chunk_size", "class"};
  return names.contains(key) || key.starts_with("file.") || key.starts_with("param.") ||
         key.starts_with("buffer.");
}

std::string joined(const std::vector<heed::index>& extents) {
  std::string text;
  for (const heed::index e : extents) text.append(" ").append(std::to_string(e));
  return text;
}

}  // namespace

case_folder::case_folder(std::filesystem::path folder) : folder_(std::move(folder)) {
  if (!std::filesystem::is_directory(folder_)) {
    throw case_error(folder_.string() + ": no such folder");
  }
  const std::filesystem::path path = folder_ / "case.txt";
  if (!std::filesystem::is_regular_file(path)) throw case_error(path.string() + ": no such file");
  std::ifstream file(path);
  if (!file) throw case_error(path.string() + ": cannot be opened");
  int number = 0;
  for (std::string line; std::getline(file, line);) read_line(line, ++number);
  if (file.bad()) throw case_error(path.string() + ": cannot be read");
}

void case_folder::fail(const std::string& problem) const {
  throw case_error((folder_ / "case.txt").string() + ": " + problem);
}

void case_folder::read_line(const std::string& line, int number) {
  const std::string_view content(line.data(), line.size() - (line.ends_with('\r') ? 1 : 0));
  if (content.empty()) return;
  const std::size_t equals = content.find('=');
  if (equals == 0 || equals == std::string_view::npos) {
    fail("line " + std::to_string(number) + " is not key=value: " + printable(content));
  }
  const std::string key(content.substr(0, equals));
  if (!values_.emplace(key, entry{std::string(content.substr(equals + 1))}).second) {
    fail("line " + std::to_string(number) + " gives " + printable(key) + " a second time");
  }
}

std::string case_folder::name() const {
  if (has("name")) return printable(text("name"));
  const std::filesystem::path last = folder_.filename();
  return (last.empty() ? folder_.parent_path().filename() : last).string();
}

std::string case_folder::mechanism() const {
  return printable(text("mechanism"));
}

heed::problem case_folder::problem() const {
  heed::problem p;
  const std::pair<const char*, heed::index*> extents[] = {
      {"B", &p.B},     {"T", &p.T}, {"S", &p.S},  {"Hq", &p.Hq},
      {"Hkv", &p.Hkv}, {"D", &p.D}, {"Dv", &p.Dv}};
  for (const auto& [key, value] : extents) *value = extent(key);
  if (p.D < 1) fail("D=0, expected at least 1");
  p.scale = has("scale") ? real("scale") : 1 / std::sqrt(static_cast<double>(p.D));
  return p;
}

heed::mask case_folder::mask() const {
  heed::mask m;
  static_cast<void>(text("causal"));  // must be there: absent is too easily taken for either
  m.is_causal = flag("causal");
  const heed::index keys = has("window_size") ? extent("window_size") : 0;
  if (keys == 0) return m;
  return m.window(keys - 1, m.is_causal ? 0 : heed::mask::unlimited);
}

bool case_folder::has(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  found->second.read = true;
  return found->second.text != "none";
}

std::string case_folder::text(const std::string& key) const {
  if (!has(key)) fail(key + " is missing");
  return values_.at(key).text;
}

std::string case_folder::choice(const std::string& key,
                                std::initializer_list<const char*> of) const {
  const std::string value = text(key);
  std::string words;
  for (const char* word : of) {
    if (value == word) return value;
    words += (words.empty() ? "" : " or ") + std::string(word);
  }
  fail(key + "=" + printable(value) + " is not " + words);
}

heed::index case_folder::integer(const std::string& key) const {
  const std::string digits = text(key);
  heed::index result = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    fail(key + "=" + printable(digits) + " is not an integer");
  }
  return result;
}

heed::index case_folder::extent(const std::string& key) const {
  const heed::index value = integer(key);
  if (value < 0) fail(key + "=" + std::to_string(value) + " is negative");
  return value;
}

double case_folder::real(const std::string& key) const {
  const std::string digits = text(key);
  double result = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(result)) {
    fail(key + "=" + printable(digits) + " is not a finite number");
  }
  return result;
}

bool case_folder::flag(const std::string& key) const {
  if (!has(key)) return false;
  const std::string digit = text(key);
  if (digit != "0" && digit != "1") fail(key + "=" + printable(digit) + " is not 0 or 1");
  return digit == "1";
}

void case_folder::check_all_read() const {
  const std::string kind =
      values_.contains("layer") ? "layer " + printable(text("layer")) : "mechanism " + mechanism();
  for (const auto& [key, v] : values_) {
    if (!v.read && !describes_only(key) && v.text != "0" && v.text != "none") {
      fail("unknown key for " + kind + ": " + printable(key) + "=" + printable(v.text));
    }
  }
}

void case_folder::check_shape(const heed::io::npy_array& array, const std::string& name,
                              const std::vector<heed::index>& expected) const {
  const std::vector<heed::index>& found = array.extents();
  bool same = found.size() == expected.size();
  for (std::size_t axis = 0; same && axis < found.size(); ++axis) {
    same = expected[axis] == any || expected[axis] == found[axis];
  }
  if (!same) {
    std::string wanted = "(";
    for (std::size_t axis = 0; axis < expected.size(); ++axis) {
      wanted += (axis > 0 ? ", " : "") +
                (expected[axis] == any ? std::string("any") : std::to_string(expected[axis]));
    }
    throw case_error(array.name() + ": shape is " + heed::io::shape_text(found) + ", expected " +
                     wanted + (expected.size() == 1 ? ",)" : ")"));
  }
  const std::string key = "file." + name;
  const bool single = array.type() == heed::io::dtype::f32;
  const std::string stored = (single ? "float32" : "float64") + joined(found);
  if (has(key) && text(key) != stored) {
    throw case_error(array.name() + ": is " + stored + ", case.txt says " + printable(text(key)));
  }
}

template <class T>
heed::io::npy_array case_folder::tensor(const std::string& name,
                                        const std::vector<heed::index>& expected) const {
  const std::string stored = std::is_same_v<T, float> ? name + "_f32" : name;
  heed::io::npy_array array = heed::io::read_npy(folder_ / (stored + ".npy"));
  static_cast<void>(array.values<T>());  // refuses another type before the shape is looked at
  check_shape(array, stored, expected);
  return array;
}
template heed::io::npy_array case_folder::tensor<float>(const std::string&,
                                                        const std::vector<heed::index>&) const;
template heed::io::npy_array case_folder::tensor<double>(const std::string&,
                                                         const std::vector<heed::index>&) const;

std::optional<heed::io::npy_array> case_folder::expected(
    const std::string& name, const std::vector<heed::index>& extents) const {
  const std::filesystem::path path = folder_ / (name + ".npy");
  if (!std::filesystem::exists(path)) return std::nullopt;
  const heed::io::npy_array array = heed::io::read_npy(path);
  check_shape(array, name, extents);
  return array.as<double>();
}

std::optional<heed::io::npy_array> case_folder::expected_out() const {
  const heed::problem p = problem();
  return expected("out", {p.B, p.T, p.Hq, p.Dv});
}

}  // namespace cases
