// heed-layer: runs whole attention layers on weights and hidden states in files, and says how right
// they were.
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "common/program.hpp"
#include "layer/print.hpp"
#include "layer/run.hpp"

namespace layer_program {
namespace {

struct program {
  using settings = layer_program::settings;
  using outcome = layer_program::outcome;
  using table = layer_program::table;

  static constexpr std::string_view name = "heed-layer";
  static constexpr std::string_view usage =
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

  static bool take_option(cases::command_words& words, settings& s) {
    if (words.word != "--decode") return false;
    s.prefill = words.number<heed::index>(1, std::numeric_limits<heed::index>::max(),
                                          "a number of tokens from 1");
    return true;
  }
  static void check(const settings&) {}

  static outcome run(const case_folder& c, const settings& s) { return run_case(c, s); }
  static std::vector<cases::result_file> files(const outcome& o) {
    std::vector<cases::result_file> files;
    files.push_back(cases::file_of(o.y));
    if (!o.gradients.empty()) {
      files.push_back(cases::file_of(o.d_x));
      files.push_back({"grads.safetensors", [&o](const auto& to) { write_gradients(to, o); }});
    }
    return files;
  }
  static void print(std::ostream& stream, const case_folder& c, const settings& s,
                    const outcome& o) {
    print_case(stream, c, s, o);
  }
  // Everything that the case allows.
  static std::optional<settings> settings_for(const case_folder& c, settings s) {
    s.grad = s.grad || std::filesystem::exists(c.folder() / "dy.npy");
    const heed::index T = c.extent("T");
    if (T < 2) {
      s.prefill = std::nullopt;
    } else if (!s.prefill) {
      s.prefill = c.has("decode_prefill") ? c.extent("decode_prefill") : T / 2;
    }
    return s;
  }
};

}  // namespace
}  // namespace layer_program

int main(int argc, char** argv) {
  return cases::case_program<layer_program::program>::run(argc, argv);
}
