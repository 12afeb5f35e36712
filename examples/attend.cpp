// heed-attend: runs attention on tensors in files, and says how right and how fast it was.
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "attend/print.hpp"
#include "attend/run.hpp"
#include "common/program.hpp"

namespace attend_program {
namespace {

struct program {
  using settings = attend_program::settings;
  using outcome = attend_program::outcome;
  using table = attend_program::table;

  static constexpr std::string_view name = "heed-attend";
  static constexpr std::string_view usage =
      "usage: heed-attend CASE_DIR [--out DIR] [options]\n"
      "       heed-attend --all DIR [options]\n"
      "\n"
      "Reads CASE_DIR/case.txt and the .npy tensors beside it, runs the attention that it\n"
      "describes and prints shape, time and, where CASE_DIR/out.npy is, the errors against it.\n"
      "\n"
      "  --out DIR        write out.npy and lse.npy to DIR, and with --grad every d_NAME.npy\n"
      "  --grad           read dout.npy, too; the gradients of sum(out * dout), with errors\n"
      "                   against CASE_DIR/d_NAME.npy\n"
      "  --decode P       through a cache: the first P tokens at once, the others one by one; P\n"
      "                   is 1 to T-1, or half; causal cases only\n"
      "  --all DIR        run every case below DIR and print a table; with --decode those\n"
      "                   that can be decoded\n"
      "  --dtype f32|f64  element type (default f32: reads NAME_f32.npy, writes <f4)\n"
      "  --threads N      threads, 1 to 1024 (default 1); results do not depend on it\n"
      "  --tolerance X    largest relative error (default: by mechanism, dtype, out or gradient)\n"
      "\n"
      "Exit status: 0 done; 1 error over the tolerance; 2 input or command line not usable,\n"
      "nothing written; 3 mechanism or its gradients not built yet.\n";

  static bool take_option(cases::command_words& words, settings& s) {
    if (words.word == "--decode") {
      s.decode = first_tokens(words);
    } else if (words.word == "--threads") {
      s.threads = words.number<heed::index>(1, 1024, "an integer from 1 to 1024");
    } else {
      return false;
    }
    return true;
  }
  static void check(const settings& s) {
    if (s.decode && s.grad) {
      throw case_error("--decode goes without --grad: a cache has no gradients");
    }
  }

  static outcome run(const case_folder& c, const settings& s) { return run_case(c, s); }
  static std::vector<cases::result_file> files(const outcome& o) {
    std::vector<const heed::io::npy_array*> arrays = {&o.out, &o.lse};
    for (const gradient& g : o.gradients) arrays.push_back(&g.values);
    std::vector<cases::result_file> files;
    for (const heed::io::npy_array* array : arrays) {
      files.push_back(cases::file_of(*array));
    }
    return files;
  }
  static void print(std::ostream& stream, const case_folder& c, const settings& s,
                    const outcome& o) {
    print_case(stream, c, s, o);
  }
  // With --decode, what cannot be decoded is left out.
  static std::optional<settings> settings_for(const case_folder& c, const settings& s) {
    if (s.decode && !decode_from(c, *s.decode)) return std::nullopt;
    return s;
  }

 private:
  // 0: half of them.
  static heed::index first_tokens(cases::command_words& words) {
    if (words.take("half")) return 0;
    return words.number<heed::index>(1, std::numeric_limits<heed::index>::max(),
                                     "an integer from 1, or half");
  }
};

}  // namespace
}  // namespace attend_program

int main(int argc, char** argv) {
  return cases::case_program<attend_program::program>::run(argc, argv);
}
