// heed-layer as its user meets it: what it prints, writes, refuses, and its exit statuses.
#include "heed/io/safetensors.hpp"
#include "layers/cases.hpp"
#include "programs/program.hpp"

namespace heed_test {
namespace {

using Catch::Matchers::ContainsSubstring;

struct layer_bench : program_bench {
  explicit layer_bench(const std::string& name = "fox_B2_T9_d32_h4x4_qknorm_bias_decode5")
      : program_bench(HEED_LAYER_PROGRAM, golden_layers_folder() / name) {}
};

}  // namespace

TEST_CASE("heed-layer writes y and the gradients under their official names") {
  const layer_bench b;
  const golden_case c(b.input);
  for (const bool single : {true, false}) {
    const fs::path to = b.results / (single ? "f32" : "f64");
    const finished f =
        b.run({b.input, "--grad", "--decode", "3", "--out", to, "--dtype", single ? "f32" : "f64"});
    CAPTURE(f.out, f.err);
    REQUIRE(f.status == 0);
    for (const char* part : {"layer fox", "B=2 T=9 model_dim=32 heads=4", "decode y", "d_x",
                             "d_q_proj.bias", "wrote"}) {
      CHECK_THAT(f.out, ContainsSubstring(part));
    }
    CHECK(f.err.empty());
    const double tolerance = single ? 5e-6 : 1e-12;
    for (const std::string name : {"y", "d_x"}) {
      const heed::io::npy_array found = heed::io::read_npy(to / (name + ".npy"));
      CHECK((found.type() == heed::io::dtype::f32) == single);
      CHECK(relative_error(found, c.tensor<double>(name)) <= 10 * tolerance);
    }
    const auto found = heed::io::safetensors::open(to / "grads.safetensors");
    const auto expected = heed::io::safetensors::open(b.input / "grads.safetensors");
    CHECK(found.tensors().size() == expected.tensors().size());
    for (const auto& entry : expected.tensors()) {
      CAPTURE(entry.name);
      CHECK(found.at(entry.name).extents == entry.extents);
      CHECK(found.at(entry.name).dtype ==
            (single ? heed::io::safetensors_dtype::f32 : heed::io::safetensors_dtype::f64));
      const auto have = found.read<double>(entry.name), want = expected.read<double>(entry.name);
      for (std::size_t n = 0; n < want.size(); ++n) {
        CHECK(std::abs(have[n] - want[n]) <= 100 * tolerance);
      }
    }
  }
}

TEST_CASE("heed-layer --all prints a table of every case") {
  const layer_bench b("path_B1_T1_d32_h4x2_lowrank_conv_fgate_qknorm");
  fs::create_directories(b.top / "cases");
  fs::copy(golden_layers_folder() / "mta_B2_T9_d32_h4x2_postlin", b.top / "cases" / "one");
  fs::copy(b.input, b.top / "cases" / "two");
  const finished all = b.run({"--all", b.top / "cases", "--dtype", "f64"});
  CAPTURE(all.out);
  CHECK(all.status == 0);
  CHECK_THAT(all.out, ContainsSubstring("mta_B2_T9_d32_h4x2_postlin"));
  CHECK_THAT(all.out, ContainsSubstring("2 layers in float64: 2 within tolerance"));
  CHECK_THAT(all.out, ContainsSubstring("largest relative errors: y "));
  const finished strict = b.run({"--all", b.top / "cases", "--tolerance", "1e-30"});
  CHECK(strict.status == 1);
  CHECK_THAT(strict.out, ContainsSubstring("OVER TOLERANCE"));
  spill(b.top / "cases" / "two" / "case.txt",
        "layer=other\nB=1\nT=1\nmodel_dim=1\nn_heads=1\nn_kv_heads=1\nhead_dim=1\n");
  const finished unknown = b.run({"--all", b.top / "cases"});
  CHECK_THAT(unknown.out, ContainsSubstring("1 not built"));
  spill(b.top / "cases" / "two" / "case.txt", "layer=path\n");
  CHECK(b.run({"--all", b.top / "cases"}).status == 2);
}

TEST_CASE("heed-layer: what is wrong stands in one line, with status 2 or 3") {
  {
    const layer_bench b;
    b.set("layer", "other");
    b.refused(3, {"layer other is not built"});
  }
  {
    const layer_bench b;
    b.set("arg.use_output_gate", "1");
    b.refused(2, {"tensor 'g_proj.weight' is missing"});
  }
  {
    const layer_bench b;
    b.set("arg.qkv_bias", "0");
    b.refused(2, {"tensor 'q_proj.bias' belongs to no parameter"});
  }
  {
    const layer_bench b;
    b.set("arg.num_heads", "8");
    b.refused(2, {"tensor 'f_proj.weight' has shape [4, 32], expected [8, 32]"});
  }
  {
    const layer_bench b;
    b.set("arg.num_heads", "5");
    b.refused(2, {"input", "expected a multiple of heads = 5"});
  }
  {
    const layer_bench b;
    b.set("T", "8");
    b.refused(2, {"x_f32.npy: shape is (2, 9, 32), expected (2, 8, 32)"});
  }
  {
    const layer_bench b;
    b.set("arg.new_option", "1");
    b.refused(2, {"unknown key for layer fox: arg.new_option=1"});
  }
  {
    const layer_bench b;
    fs::resize_file(b.input / "params_f32.safetensors", 100);
    b.refused(2, {"params_f32.safetensors: truncated"});
  }
  {
    const layer_bench b("cope_B2_T9_d36_h3");
    b.set("arg.drop", "0.1");
    b.refused(2, {"arg.drop=0.1"});
  }
}

TEST_CASE("heed-layer: command lines that it does not take") {
  const layer_bench b;
  b.refused_line({});
  b.refused_line({b.input, b.input});
  b.refused_line({b.input, "--decode", "9"});
  b.refused_line({b.input, "--decode", "0"});
  b.refused_line({b.input, "--dtype", "f16"});
  b.refused_line({b.input, "--tolerance"});
  b.refused_line({b.input, "--nonsense"});
  b.refused_line({"--all", b.input, "--out", b.results});
  b.refused_line({b.input, "--out", b.input});
  b.refused_line({b.top / "nowhere"});
  const finished help = b.run({"--help"});
  CHECK(help.status == 0);
  CHECK_THAT(help.out, ContainsSubstring("usage: heed-layer CASE_DIR"));
}

}  // namespace heed_test
