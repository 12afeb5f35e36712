// heed-layer: runs whole attention layers on weights and hidden states in files, and says how right
// they were.
#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "layer/print.hpp"
#include "layer/run.hpp"

namespace fs = std::filesystem;
using namespace layer_program;

namespace {

constexpr std::string_view usage =
    "usage: heed-layer CASE_DIR [--grad] [--decode P] [--out DIR] [options]\n"
    "       heed-layer --all DIR [options]\n"
    "\n"
    "Reads CASE_DIR/case.txt, the weights params.safetensors under the names of the published\n"
    "layer, and x.npy; runs the layer and prints shape, times and, where CASE_DIR/y.npy is, the\n"
    "errors against it.\n"
    "\n"
    "  --grad           read dy.npy, too; the gradients of sum(y * dy), with errors against\n"
    "                   d_x.npy and grads.safetensors\n"
    "  --decode P       y from a cache: P tokens at once, then one at a time\n"
    "  --out DIR        write y.npy to DIR, and with --grad d_x.npy and grads.safetensors\n"
    "  --all DIR        run every case below DIR, gradients and decoding included, and print a\n"
    "                   table; decoding begins behind half of the tokens or what case.txt says\n"
    "  --dtype f32|f64  element type (default f32: x_f32.npy, params_f32.safetensors; where a\n"
    "                   file is missing the other type's is converted)\n"
    "  --tolerance X    largest relative error (default 5e-6 in f32 and 1e-12 in f64; of\n"
    "                   gradients, over the largest of the case, 5e-5 and 1e-10)\n"
    "\n"
    "Exit status: 0 done; 1 error over the tolerance; 2 input or command line not usable,\n"
    "nothing written; 3 layer not built.\n";

enum status { done = 0, over_tolerance = 1, unusable = 2, layer_not_built = 3 };

struct command {
  fs::path cases;
  bool all = false, help = false;
  std::optional<fs::path> out;
  settings how;
};

template <class Number>
Number number(std::string_view flag, std::string_view text, Number least, const char* expected) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least)) {
    throw case_error(std::string(flag) + " " + std::string(text) + ": expected " + expected);
  }
  return value;
}

command parse(const std::vector<std::string_view>& words) {
  command c;
  for (std::size_t n = 0; n < words.size(); ++n) {
    const std::string_view word = words[n];
    const auto value = [&] {
      if (n + 1 == words.size()) throw case_error(std::string(word) + ": a value is missing");
      return words[++n];
    };
    const auto take_cases = [&](std::string_view path) {
      if (!c.cases.empty()) throw case_error(std::string(path) + ": one folder only");
      if (path.empty()) throw case_error("the folder's name is empty");
      c.cases = path;
    };
    if (word == "--help" || word == "-h") {
      c.help = true;
    } else if (word == "--all") {
      c.all = true;
      take_cases(value());
    } else if (word == "--grad") {
      c.how.grad = true;
    } else if (word == "--decode") {
      c.how.prefill = number<heed::index>(word, value(), 1, "a number of tokens from 1");
    } else if (word == "--out") {
      c.out = value();
    } else if (word == "--dtype") {
      const std::string_view type = value();
      if (type != "f32" && type != "f64") {
        throw case_error("--dtype " + std::string(type) + ": expected f32 or f64");
      }
      c.how.type = type == "f32" ? heed::io::dtype::f32 : heed::io::dtype::f64;
    } else if (word == "--tolerance") {
      c.how.tolerance = number<double>(word, value(), 0, "a number from 0");
    } else if (word.starts_with("-")) {
      throw case_error(std::string(word) + ": no such option (heed-layer --help lists them)");
    } else {
      take_cases(word);
    }
  }
  if (c.cases.empty() && !c.help) throw case_error("no case folder (heed-layer --help)");
  if (c.all && c.out) throw case_error("--out goes with one case, not with --all");
  return c;
}

void write_array(const fs::path& path, const heed::io::npy_array& array) {
  array.type() == heed::io::dtype::f32 ? heed::io::write_npy(path, array.view<float, 3>())
                                       : heed::io::write_npy(path, array.view<double, 3>());
}
std::vector<std::string> files_of(const settings& s) {
  if (!s.grad) return {"y.npy"};
  return {"y.npy", "d_x.npy", "grads.safetensors"};
}

// All files or none: what was written goes again when another cannot be.
void write(const fs::path& folder, const settings& s, const outcome& o) {
  const bool created = fs::create_directories(folder);
  std::vector<fs::path> written;
  try {
    for (const std::string& name : files_of(s)) {
      const fs::path path = folder / name;
      if (name == "y.npy") write_array(path, o.y);
      if (name == "d_x.npy") write_array(path, o.d_x);
      if (name == "grads.safetensors") write_gradients(path, o);
      written.push_back(path);
    }
  } catch (...) {
    std::error_code ignored;
    for (const fs::path& path : written) fs::remove(path, ignored);
    if (created) fs::remove(folder, ignored);
    throw;
  }
}

// run_case, with the folder's name before messages that lack one.
outcome run_named(const attend_case& input, const settings& how) {
  const std::string where = input.folder().string() + ": ";
  try {
    return run_case(input, how);
  } catch (const attend_program::not_built& e) {
    throw attend_program::not_built(where + e.what());
  } catch (const heed::shape_error& e) {
    throw case_error(where + e.what());
  }
}

int run_one(const command& c) {
  const attend_case input(c.cases);
  std::error_code none;
  if (c.out && fs::equivalent(*c.out, c.cases, none)) {
    for (const std::string& name : files_of(c.how)) {
      if (!fs::exists(c.cases / name)) continue;
      throw case_error(c.out->string() + ": --out would overwrite the case's expected " + name);
    }
  }
  const outcome result = run_named(input, c.how);
  if (c.out) write(*c.out, c.how, result);
  print_case(std::cout, input, c.how, result);
  if (c.out) {
    const char* between = "wrote    ";
    for (const std::string& name : files_of(c.how)) {
      std::cout << between << (*c.out / name).string();
      between = ", ";
    }
    std::cout << "\n";
  }
  return result.within_tolerance() ? done : over_tolerance;
}

std::vector<fs::path> folders_below(const fs::path& top) {
  if (!fs::is_directory(top)) throw case_error(top.string() + ": no such folder");
  std::vector<fs::path> folders;
  if (fs::exists(top / "case.txt")) folders.push_back(top);
  for (const auto& entry : fs::recursive_directory_iterator(top)) {
    if (entry.is_directory() && fs::exists(entry.path() / "case.txt")) {
      folders.push_back(entry.path());
    }
  }
  if (folders.empty()) throw case_error(top.string() + ": no case.txt in or below it");
  std::sort(folders.begin(), folders.end());
  return folders;
}

// Everything that the case allows.
settings settings_for(const attend_case& input, settings how) {
  how.grad = how.grad || fs::exists(input.folder() / "dy.npy");
  const heed::index T = input.extent("T");
  if (T < 2) {
    how.prefill = std::nullopt;
  } else if (!how.prefill) {
    how.prefill = input.has("decode_prefill") ? input.extent("decode_prefill") : T / 2;
  }
  return how;
}

row run_row(const fs::path& folder, const settings& how) {
  row r{.name = folder.filename().string()};
  try {
    const attend_case input(folder);
    r.name = input.name();
    r.result = run_case(input, settings_for(input, how));
    r.what = !r.result->compared()          ? verdict::unchecked
             : r.result->within_tolerance() ? verdict::within
                                            : verdict::over;
  } catch (const attend_program::not_built& e) {
    r.what = verdict::not_built;
    r.problem = e.what();
  } catch (const std::exception& e) {
    r.what = verdict::broken;
    r.problem = e.what();
  }
  return r;
}

int run_all(const command& c) {
  const std::vector<fs::path> folders = folders_below(c.cases);
  std::size_t width = 0;
  for (const fs::path& folder : folders) {
    width = std::max(width, folder.filename().string().size());
  }
  table rows(std::cout, width);
  for (const fs::path& folder : folders) rows.print(run_row(folder, c.how));
  rows.print_summary(c.how);
  if (rows.count(verdict::broken) > 0) return unusable;
  return rows.count(verdict::over) > 0 ? over_tolerance : done;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const command c = parse({argv + 1, argv + argc});
    if (c.help) {
      std::cout << usage;
      return done;
    }
    return c.all ? run_all(c) : run_one(c);
  } catch (const attend_program::not_built& e) {
    std::cerr << "heed-layer: " << e.what() << "\n";
    return layer_not_built;
  } catch (const std::bad_alloc&) {
    std::cerr << "heed-layer: not enough memory for this case\n";
  } catch (const std::exception& e) {
    std::cerr << "heed-layer: " << e.what() << "\n";
  }
  return unusable;
}
