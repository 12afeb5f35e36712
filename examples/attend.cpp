// heed-attend: runs attention on tensors in files, and says how right and how fast it was.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <filesystem>
#include <iostream>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "attend/print.hpp"
#include "attend/run.hpp"

namespace fs = std::filesystem;
using namespace attend_program;

namespace {

constexpr std::string_view usage =
    "usage: heed-attend CASE_DIR [--out DIR] [options]\n"
    "       heed-attend --all DIR [options]\n"
    "\n"
    "Reads CASE_DIR/case.txt and the .npy tensors beside it, runs the attention that it\n"
    "describes and prints shape, time and, where CASE_DIR/out.npy is, the errors against it.\n"
    "\n"
    "  --out DIR        write out.npy and lse.npy to DIR, and with --grad every d_NAME.npy\n"
    "  --grad           read dout.npy, too; the gradients of sum(out * dout), with errors\n"
    "                   against CASE_DIR/d_NAME.npy\n"
    "  --decode P       through a cache: the first P tokens at once, the others one by one; P is\n"
    "                   1 to T-1, or half; causal cases only\n"
    "  --all DIR        run every case below DIR and print a table; with --decode those that can\n"
    "                   be decoded\n"
    "  --dtype f32|f64  element type (default f32: reads NAME_f32.npy, writes <f4)\n"
    "  --threads N      threads, 1 to 1024 (default 1); results do not depend on it\n"
    "  --tolerance X    largest relative error (default: by mechanism, dtype, out or gradient)\n"
    "\n"
    "Exit status: 0 done; 1 error over the tolerance; 2 input or command line not usable,\n"
    "nothing written; 3 mechanism or its gradients not built yet.\n";

enum status { done = 0, over_tolerance = 1, unusable = 2, mechanism_not_built = 3 };

struct command {
  fs::path cases;
  bool all = false;
  bool help = false;
  std::optional<fs::path> out;
  settings how;
};

template <class Number>
Number number(std::string_view flag, std::string_view text, Number least, Number most,
              const char* expected) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(value >= least && value <= most)) {
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
      const std::string_view first = value();
      const heed::index most = std::numeric_limits<heed::index>::max();
      c.how.decode = first == "half"
                         ? 0
                         : number<heed::index>(word, first, 1, most, "an integer from 1, or half");
    } else if (word == "--out") {
      c.out = value();
    } else if (word == "--dtype") {
      const std::string_view type = value();
      if (type != "f32" && type != "f64") {
        throw case_error("--dtype " + std::string(type) + ": expected f32 or f64");
      }
      c.how.type = type == "f32" ? heed::io::dtype::f32 : heed::io::dtype::f64;
    } else if (word == "--threads") {
      c.how.threads = number<heed::index>(word, value(), 1, 1024, "an integer from 1 to 1024");
    } else if (word == "--tolerance") {
      c.how.tolerance = number<double>(word, value(), 0, 1e300, "a number from 0");
    } else if (word.starts_with("-")) {
      throw case_error(std::string(word) + ": no such option (heed-attend --help lists them)");
    } else {
      take_cases(word);
    }
  }
  if (c.cases.empty() && !c.help) throw case_error("no case folder (heed-attend --help)");
  if (c.how.decode && c.how.grad) {
    throw case_error("--decode goes without --grad: a cache has no gradients");
  }
  if (c.all && c.out) throw case_error("--out goes with one case, not with --all");
  return c;
}

template <class T>
void write_as(const fs::path& path, const heed::io::npy_array& array) {
  using heed::io::write_npy;
  switch (array.rank()) {
    case 1:
      return write_npy(path, array.view<T, 1>());
    case 2:
      return write_npy(path, array.view<T, 2>());
    case 3:
      return write_npy(path, array.view<T, 3>());
    default:
      return write_npy(path, array.view<T, 4>());
  }
}

// What a case's result is written to, in a folder.
std::vector<const heed::io::npy_array*> files_of(const outcome& o) {
  std::vector<const heed::io::npy_array*> files = {&o.out, &o.lse};
  for (const gradient& g : o.gradients) files.push_back(&g.values);
  return files;
}

// All files or none: what was written goes again when another cannot be.
void write(const fs::path& folder, const outcome& o) {
  const bool created = fs::create_directories(folder);
  std::vector<fs::path> written;
  try {
    for (const heed::io::npy_array* array : files_of(o)) {
      const fs::path path = folder / array->name();
      array->type() == heed::io::dtype::f32 ? write_as<float>(path, *array)
                                            : write_as<double>(path, *array);
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
  } catch (const not_built& e) {
    throw not_built(where + e.what());
  } catch (const heed::shape_error& e) {
    throw case_error(where + e.what());
  }
}

int run_one(const command& c) {
  const attend_case input(c.cases);
  std::error_code none;
  const bool in_place = c.out && fs::equivalent(*c.out, c.cases, none);
  const auto refuse_to_overwrite = [&](const std::string& name) {
    if (!in_place || !fs::exists(c.cases / name)) return;
    throw case_error(c.out->string() + ": --out would overwrite the case's expected " + name);
  };
  refuse_to_overwrite("out.npy");
  const outcome result = run_named(input, c.how);
  for (const gradient& g : result.gradients) refuse_to_overwrite(g.values.name());
  if (c.out) write(*c.out, result);
  print_case(std::cout, input, c.how, result);
  if (c.out) {
    const char* between = "wrote   ";
    for (const heed::io::npy_array* array : files_of(result)) {
      std::cout << between << (*c.out / array->name()).string();
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

row run_row(const fs::path& folder, const settings& how) {
  row r{.name = folder.filename().string()};
  try {
    const attend_case input(folder);
    r.name = input.name();
    r.result = run_case(input, how);
    r.what = !r.result->compared()          ? verdict::unchecked
             : r.result->within_tolerance() ? verdict::within
                                            : verdict::over;
  } catch (const not_built& e) {
    r.what = verdict::not_built;
    r.problem = e.what();
  } catch (const std::exception& e) {
    r.what = verdict::broken;
    r.problem = e.what();
  }
  return r;
}

// False where the case can be read and cannot be decoded.
bool decodable(const fs::path& folder, heed::index first) {
  try {
    return decode_from(attend_case(folder), first).has_value();
  } catch (const std::exception&) {
    return true;  // run_row says what is wrong
  }
}

int run_all(const command& c) {
  const std::vector<fs::path> folders = folders_below(c.cases);
  std::size_t width = 0;
  for (const fs::path& folder : folders) {
    width = std::max(width, folder.filename().string().size());
  }
  table rows(std::cout, width, c.how.grad);
  for (const fs::path& folder : folders) {
    if (c.how.decode && !decodable(folder, *c.how.decode)) continue;
    rows.print(run_row(folder, c.how));
  }
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
  } catch (const not_built& e) {
    std::cerr << "heed-attend: " << e.what() << "\n";
    return mechanism_not_built;
  } catch (const std::bad_alloc&) {
    std::cerr << "heed-attend: not enough memory for this case\n";
  } catch (const std::exception& e) {
    std::cerr << "heed-attend: " << e.what() << "\n";
  }
  return unusable;
}
