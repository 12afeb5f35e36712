// A program that runs cases from folders: its command line, one case or all below a folder, the
// files that it writes.
#pragma once

#include <algorithm>
#include <charconv>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "case.hpp"
#include "report.hpp"

namespace cases {

namespace fs = std::filesystem;

// Exit statuses.
enum status { done = 0, over_tolerance = 1, unusable = 2, kind_not_built = 3 };

// The words of a command line, one option after the other.
class command_words {
 public:
  explicit command_words(std::vector<std::string_view> words) : words_(std::move(words)) {}

  // Moves on to the next word; false behind the last.
  bool next() {
    if (at_ == words_.size()) return false;
    word = words_[at_++];
    return true;
  }
  // What follows the option `word`. Throws case_error.
  std::string_view value() {
    if (at_ == words_.size()) throw case_error(std::string(word) + ": a value is missing");
    return words_[at_++];
  }
  // Whether this is what follows; then it is taken.
  bool take(std::string_view expected) {
    if (at_ == words_.size() || words_[at_] != expected) return false;
    ++at_;
    return true;
  }
  template <class Number>
  Number number(Number least, Number most, const char* expected) {
    const std::string_view text = value();
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() ||
        !(value >= least && value <= most)) {
      throw case_error(std::string(word) + " " + std::string(text) + ": expected " + expected);
    }
    return value;
  }
  heed::io::dtype type() {
    const std::string_view type = value();
    if (type != "f32" && type != "f64") {
      throw case_error(std::string(word) + " " + std::string(type) + ": expected f32 or f64");
    }
    return type == "f32" ? heed::io::dtype::f32 : heed::io::dtype::f64;
  }

  std::string_view word;

 private:
  std::vector<std::string_view> words_;
  std::size_t at_ = 0;
};

// A file of a result, and how it is written.
struct result_file {
  std::string name;
  std::function<void(const fs::path&)> write;
};

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
// The file of an array that outlives it, under the array's name.
inline result_file file_of(const heed::io::npy_array& array) {
  return {array.name(), [&array](const fs::path& path) {
            array.type() == heed::io::dtype::f32 ? write_as<float>(path, array)
                                                 : write_as<double>(path, array);
          }};
}

// All files or none: what was written goes again when another cannot be.
inline void write_files(const fs::path& folder, const std::vector<result_file>& files) {
  const bool created = fs::create_directories(folder);
  std::vector<fs::path> written;
  try {
    for (const result_file& file : files) {
      const fs::path path = folder / file.name;
      file.write(path);
      written.push_back(path);
    }
  } catch (...) {
    std::error_code ignored;
    for (const fs::path& path : written) fs::remove(path, ignored);
    if (created) fs::remove(folder, ignored);
    throw;
  }
}

// The folders that hold a case.txt, `top` or below it, by name. Throws case_error for none.
inline std::vector<fs::path> folders_below(const fs::path& top) {
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

// Program is a struct of static members:
//
//   name, usage                    of the program
//   settings, outcome, table      types: settings has type, grad and tolerance; outcome has
//                                  compared() and within_tolerance(); table(stream, name_width,
//                                  settings) has print(row), print_summary(settings),
//                                  count(verdict)
//   take_option(words, settings)   takes an option of its own; false: there is no such
//   check(settings)                throws case_error for options that do not go together
//   run(case_folder, settings)     throws what run_case of the program does
//   files(outcome)                 what it is written to
//   print(stream, case_folder, settings, outcome)
//   settings_for(case_folder, settings)   those with which --all runs it; none: it is left out
template <class Program>
class case_program {
  using settings = typename Program::settings;
  using outcome = typename Program::outcome;

 public:
  static int run(int argc, char** argv) {
    try {
      const command c = parse(command_words({argv + 1, argv + argc}));
      if (c.help) {
        std::cout << Program::usage;
        return done;
      }
      return c.all ? run_all(c) : run_one(c);
    } catch (const not_built& e) {
      std::cerr << Program::name << ": " << e.what() << "\n";
      return kind_not_built;
    } catch (const std::bad_alloc&) {
      std::cerr << Program::name << ": not enough memory for this case\n";
    } catch (const std::exception& e) {
      std::cerr << Program::name << ": " << e.what() << "\n";
    }
    return unusable;
  }

 private:
  struct command {
    fs::path cases;
    bool all = false, help = false;
    std::optional<fs::path> out;
    settings how;

    void take_cases(std::string_view path) {
      if (!cases.empty()) throw case_error(std::string(path) + ": one folder only");
      if (path.empty()) throw case_error("the folder's name is empty");
      cases = path;
    }
  };

  static std::string see_help() {
    return std::string(" (") + std::string(Program::name) + " --help";
  }
  static command parse(command_words words) {
    command c;
    while (words.next()) {
      if (words.word == "--help" || words.word == "-h") {
        c.help = true;
      } else if (words.word == "--all") {
        c.all = true;
        c.take_cases(words.value());
      } else if (words.word == "--out") {
        c.out = words.value();
      } else if (words.word == "--grad") {
        c.how.grad = true;
      } else if (words.word == "--dtype") {
        c.how.type = words.type();
      } else if (words.word == "--tolerance") {
        c.how.tolerance = words.number<double>(0, 1e300, "a number from 0");
      } else if (!words.word.starts_with("-")) {
        c.take_cases(words.word);
      } else if (!Program::take_option(words, c.how)) {
        throw case_error(std::string(words.word) + ": no such option" + see_help() +
                         " lists them)");
      }
    }
    if (c.cases.empty() && !c.help) throw case_error("no case folder" + see_help() + ")");
    Program::check(c.how);
    if (c.all && c.out) throw case_error("--out goes with one case, not with --all");
    return c;
  }

  // Program::run, with the folder's name before messages that lack one.
  static outcome run_named(const case_folder& input, const settings& how) {
    const std::string where = input.folder().string() + ": ";
    try {
      return Program::run(input, how);
    } catch (const not_built& e) {
      throw not_built(where + e.what());
    } catch (const heed::shape_error& e) {
      throw case_error(where + e.what());
    }
  }

  static int run_one(const command& c) {
    const case_folder input(c.cases);
    const outcome result = run_named(input, c.how);
    const std::vector<result_file> files = Program::files(result);
    if (c.out) {
      refuse_to_overwrite(c, files);
      write_files(*c.out, files);
    }
    Program::print(std::cout, input, c.how, result);
    const char* between = "wrote    ";
    for (std::size_t n = 0; c.out && n < files.size(); ++n) {
      std::cout << between << (*c.out / files[n].name).string();
      between = ", ";
    }
    if (c.out) std::cout << "\n";
    return result.within_tolerance() ? done : over_tolerance;
  }
  static void refuse_to_overwrite(const command& c, const std::vector<result_file>& files) {
    std::error_code none;
    if (!fs::equivalent(*c.out, c.cases, none)) return;
    for (const result_file& file : files) {
      if (!fs::exists(c.cases / file.name)) continue;
      throw case_error(c.out->string() + ": --out would overwrite the case's expected " +
                       file.name);
    }
  }

  // None: the case is left out.
  static std::optional<row<outcome>> run_row(const fs::path& folder, const settings& how) {
    row<outcome> r{.name = folder.filename().string()};
    try {
      const case_folder input(folder);
      r.name = input.name();
      const std::optional<settings> its = Program::settings_for(input, how);
      if (!its) return std::nullopt;
      r.result = Program::run(input, *its);
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
  static int run_all(const command& c) {
    const std::vector<fs::path> folders = folders_below(c.cases);
    std::size_t width = 0;
    for (const fs::path& folder : folders) {
      width = std::max(width, folder.filename().string().size());
    }
    typename Program::table rows(std::cout, width, c.how);
    for (const fs::path& folder : folders) {
      if (const auto row = run_row(folder, c.how)) rows.print(*row);
    }
    rows.print_summary(c.how);
    if (rows.count(verdict::broken) > 0) return unusable;
    return rows.count(verdict::over) > 0 ? over_tolerance : done;
  }
};

}  // namespace cases
