#include "heed/io/npy.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include "catch.hpp"
#include "fuzz/npy_target.hpp"
#include "fuzz/replay.hpp"
#include "golden.hpp"
#include "guarded.hpp"
#include "scratch_folder.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;
using heed::index;
using heed::tensor_view;
using heed::io::dtype;
using heed::io::npy_array;
using heed::io::npy_error;
using heed::io::parse_npy;
namespace fs = std::filesystem;

namespace {

// The file of a header text, with data; the length field is right.
std::string file_of(const std::string& header, const std::string& data, char version = 1) {
  std::string file = std::string("\x93NUMPY") + version + '\0';
  for (int n = 0; n < (version == 1 ? 2 : 4); ++n) {
    file += static_cast<char>((header.size() >> (8 * n)) & 0xff);
  }
  return file + header + data;
}

std::string header(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::string floats(std::size_t count) {
  std::string data(count * sizeof(float), '\0');
  for (std::size_t n = 0; n < count; ++n) {
    const float value = static_cast<float>(n) + 0.5F;
    std::memcpy(data.data() + n * sizeof(float), &value, sizeof value);
  }
  return data;
}

npy_array parse(const std::string& file) {
  return parse_npy(std::as_bytes(std::span(file.data(), file.size())), "x.npy");
}

// Memory that ends at a forbidden page: one byte read too far crashes.
const guarded_bytes guarded;

}  // namespace

TEST_CASE("npy: what NumPy wrote is read, and written again byte for byte") {
  const scratch_folder scratch("npy");
  int files = 0;
  for (const golden_case& c : golden_cases("softmax_")) {
    for (const char* name : {"q", "k_f32"}) {
      const fs::path source = c.folder() / (std::string(name) + ".npy");
      const npy_array a = heed::io::read_npy(source);
      REQUIRE(a.extents()[0] == c.integer("B"));
      const fs::path copy = scratch.path / "copy.npy";
      a.type() == dtype::f32 ? heed::io::write_npy(copy, a.view<float, 4>())
                             : heed::io::write_npy(copy, a.view<double, 4>());
      REQUIRE(slurp(copy) == slurp(source));
      ++files;
    }
    const npy_array wide = c.tensor<double>("q"),
                    narrow = heed::io::read_npy(c.folder() / "q_f32.npy");
    REQUIRE(std::ranges::equal(wide.values<double>(), narrow.as<double>().values<double>()));
  }
  REQUIRE(files >= 10);
}

TEST_CASE("npy: ranks, empty arrays, header versions and spellings") {
  const auto read = [](const std::string& shape, std::size_t count) {
    return parse(file_of(header("'<f4'", "False", shape), floats(count)));
  };
  CHECK(read("()", 1).extents().empty());
  CHECK(read("()", 1).values<float>()[0] == 0.5F);
  CHECK(read("(3,)", 3).extents() == std::vector<index>{3});
  CHECK(read("(2, 3)", 6).view<float, 2>()(1, 2) == 5.5F);
  CHECK(read("(1,1,2,1,1,1,1,2)", 4).rank() == 8);
  CHECK(read("(0,)", 0).size() == 0);
  CHECK(read("(4, 0, 2)", 0).view<float, 3>().extent(2) == 2);

  const std::string two = header("'<f4'", "False", "(2,)");
  CHECK(parse(file_of(two, floats(2), 2)).size() == 2);
  CHECK(parse(file_of(two, floats(2), 3)).size() == 2);
  CHECK(parse(file_of("  {\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<f4\"}", floats(2)))
            .size() == 2);

  CHECK(npy_array().size() == 0);
  CHECK_THROWS_AS(npy_array("x", {2, 2}, std::vector<float>(3)), npy_error);
}

TEST_CASE("npy: a corrupt file is refused with what is wrong") {
  const std::string data = floats(6);
  const auto refused = [](const std::string& file, const std::string& message) {
    CAPTURE(message);
    CHECK_THROWS_WITH(parse(file), ContainsSubstring("x.npy: ") && ContainsSubstring(message));
    CHECK_THROWS_AS(parse(file), npy_error);
  };
  const auto with = [&](const std::string& descr, const std::string& order,
                        const std::string& shape) {
    return file_of(header(descr, order, shape), data);
  };

  refused("", "not a .npy file");
  refused("\x93NUMPX\x01", "not a .npy file");
  refused("PK\x03\x04 an archive", "not a .npy file");
  refused("\x93NUMPY", "truncated in the version");
  refused(file_of(header("'<f4'", "False", "(6,)"), data, 4), "version 4.0 is not supported");
  refused(std::string("\x93NUMPY\x01\0\x10", 9), "truncated in the header length");
  refused(std::string("\x93NUMPY\x02\0\x10\0\0", 11), "truncated in the header length");
  refused(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{}", 14), "truncated in the header");

  refused(with("'<f4'", "True", "(2, 3)"), "Fortran order");
  for (const char* type : {"'>f4'", "'<i4'", "'|b1'", "'<f2'", "'f4'", "''"}) {
    refused(with(type, "False", "(6,)"), "expected <f4 or <f8");
  }
  refused(with("[('a', '<f4')]", "False", "(6,)"), "dtype is a record");
  refused(with("'" + std::string(500, 'x') + "'", "False", "(6,)"), "expected <f4 or <f8");
  refused(with("'a\nb'", "False", "(6,)"), "dtype is 'a?b'");

  refused(with("'<f4'", "False", "(2, 2)"), "bytes follow the data");
  refused(with("'<f4'", "False", "(2, 4)"), "truncated: shape (2, 4) of <f4 is 32 bytes");
  refused(with("'<f8'", "False", "(6,)"), "truncated");
  refused(with("'<f4'", "False", "(1,1,1,1,1,1,1,1,6)"), "more than 8 axes");
  refused(with("'<f4'", "False", "(4611686018427387904,)"), "more elements than memory");
  refused(with("'<f4'", "False", "(4294967296, 4294967296)"), "more elements than memory");
  refused(with("'<f4'", "False", "(0, 4294967296, 4294967296)"), "more elements than memory");
  refused(with("'<f4'", "False", "(1152921504606846976,)"), "truncated");
  refused(with("'<f4'", "False", "(99999999999999999999,)"), "does not fit 63 bits");
  for (const char* shape : {"(-6,)", "(6)", "6", "(6,", "(2 3)", "(2,,3)", "[6]", "(6.0,)"}) {
    refused(with("'<f4'", "False", shape), "not a NumPy header");
  }

  refused(file_of("{'descr': '<f4', 'shape': (6,)}", data), "lacks");
  refused(file_of("{'descr': '<f4', 'descr': '<f4'}", data), "the key 'descr' twice");
  refused(file_of("{'order': 'C'}", data), "the key 'order'");
  refused(file_of("{'descr': '<f4', 'fortran_order': 0}", data), "not a NumPy header");
  refused(file_of("{'descr", data), "not a NumPy header");
  refused(file_of("", data), "not a NumPy header");
  refused(file_of(header("'<f4'", "False", "(6,)") + "x", data), "after its closing brace");
}

TEST_CASE("npy: every truncation and every changed byte is read in bounds") {
  int accepted = 0;
  for (const char version : {char{1}, char{2}}) {
    const std::string file = file_of(header("'<f8'", "False", "(1, 2, 3)"), floats(12), version);
    REQUIRE(parse_npy(guarded(file), "x.npy").size() == 6);
    for (std::size_t length = 0; length < file.size(); ++length) {
      CHECK_FALSE(fuzz_npy(guarded(file.substr(0, length))));
    }
    for (std::size_t at = 0; at < file.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        std::string changed = file;
        changed[at] = static_cast<char>(value);
        accepted += fuzz_npy(guarded(changed));
      }
    }
  }
  CHECK(accepted > 1000);  // changed data, for one
}

TEST_CASE("npy: a view of any strides is written row-major") {
  const scratch_folder scratch("npy");
  std::vector<double> elements(2 * 3 * 4);
  std::iota(elements.begin(), elements.end(), 0);
  const tensor_view<double, 3> view(elements.data(), {2, 3, 4});
  const auto turned = view.permute({2, 0, 1}).slice(0, 1, 3);
  heed::io::write_npy(scratch.path / "turned.npy", turned);
  const npy_array back = heed::io::read_npy(scratch.path / "turned.npy");
  const auto read = back.view<double, 3>();
  REQUIRE(read.extents() == turned.extents());
  for (index i = 0; i < 2; ++i) {
    for (index j = 0; j < 2; ++j) {
      for (index k = 0; k < 3; ++k) REQUIRE(read(i, j, k) == turned(i, j, k));
    }
  }

  const std::vector<float> one = {std::numeric_limits<float>::infinity()};
  heed::io::write_npy(scratch.path / "repeated.npy",
                      tensor_view<const float, 1>(one.data(), {5}, {0}));
  const npy_array repeated = heed::io::read_npy(scratch.path / "repeated.npy");
  REQUIRE(repeated.size() == 5);
  CHECK(std::ranges::all_of(repeated.values<float>(), [](float x) { return std::isinf(x); }));

  heed::io::write_npy(scratch.path / "none.npy", tensor_view<float, 4>(nullptr, {2, 0, 3, 4}));
  CHECK(heed::io::read_npy(scratch.path / "none.npy").extents() == std::vector<index>{2, 0, 3, 4});
}

TEST_CASE("npy: access in another type or rank says so") {
  const npy_array a("a.npy", {2, 3}, std::vector<float>(6));
  CHECK_THROWS_WITH((a.view<double, 2>()), "a.npy: dtype is <f4, expected <f8");
  CHECK_THROWS_WITH((a.view<float, 3>()), "a.npy: shape (2, 3) has 2 axes, expected 3");
  CHECK(a.as<double>().type() == dtype::f64);
}

TEST_CASE("npy: files that cannot be read or written are named") {
  const scratch_folder scratch("npy");
  const fs::path missing = scratch.path / "missing.npy", folder = scratch.path / "folder.npy";
  CHECK_THROWS_WITH(heed::io::read_npy(missing), missing.string() + ": no such file");
  fs::create_directory(folder);
  CHECK_THROWS_WITH(heed::io::read_npy(folder), folder.string() + ": not a regular file");

  const std::vector<float> data(3);
  const tensor_view<const float, 1> view(data.data(), {3});
  CHECK_THROWS_WITH(heed::io::write_npy(missing / "x.npy", view),
                    (missing / "x.npy").string() + ": cannot be written");
  CHECK_THROWS_AS(heed::io::write_npy(folder, view), npy_error);
  CHECK(fs::is_directory(folder));
  CHECK_FALSE(fs::exists(scratch.path / "folder.npy.part"));
}

TEST_CASE("npy: the fuzzer's corpus holds no surprises") {
  const replayed files = replay_corpus("npy", fuzz_npy);
  CHECK(files.accepted >= 5);
  CHECK(files.refused >= 9);
}

}  // namespace heed_test
