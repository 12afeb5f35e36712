#include "heed/io/safetensors.hpp"

#include <cmath>
#include <sstream>

#include "catch.hpp"
#include "fuzz/replay.hpp"
#include "fuzz/safetensors_target.hpp"
#include "guarded.hpp"
#include "layers/cases.hpp"
#include "scratch_folder.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;
using heed::bfloat16;
using heed::float16;
using heed::index;
using heed::io::safetensors;
using heed::io::safetensors_dtype;
using heed::io::safetensors_entry;
using heed::io::safetensors_error;
using heed::io::safetensors_tensor;
namespace fs = std::filesystem;

namespace {

const guarded_bytes guarded;

// The file of a header text, with data; the length field is right.
std::string file_of(const std::string& header, const std::string& data) {
  std::string file;
  for (int n = 0; n < 8; ++n) file += static_cast<char>(header.size() >> (8 * n) & 0xff);
  return file + header + data;
}
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}
std::string file_of_entry(const std::string& dtype, const std::string& shape,
                          const std::string& offsets, std::size_t data = 24) {
  return file_of("{" + entry("a", dtype, shape, offsets) + "}", std::string(data, '\1'));
}

void refused(const std::string& file, const std::string& why) {
  INFO(file.substr(0, 200));
  try {
    safetensors(guarded(file), "x");
    FAIL_CHECK("accepted, but " << why);
  } catch (const safetensors_error& error) {
    CHECK_THAT(error.what(), ContainsSubstring(why));
    refused_in_a_sentence(error.what());
  }
}

template <class T>
std::vector<T> numbers(std::size_t count) {
  std::vector<T> values;
  for (std::size_t n = 0; n < count; ++n) values.emplace_back(static_cast<float>(n) * 0.5f - 1.0f);
  return values;
}
std::vector<float> floats_of(const safetensors& file, const std::string& name) {
  return file.read<float>(name);
}

// The numbers of a value of case.txt, such as extents.
std::vector<index> numbers_of(const std::string& text) {
  std::istringstream values(text);
  std::vector<index> found;
  for (index e; values >> e; values.ignore()) found.push_back(e);
  return found;
}

}  // namespace

TEST_CASE("safetensors: the official layers' weights are read as they are", "[safetensors]") {
  // The cases that ship with the tests have the weights in one type only.
  int cases = 0, tensors = 0, unsorted = 0;
  for (const golden_case& one : golden_layers("")) {
    const fs::path& folder = one.folder();
    if (!fs::exists(folder / "params_f32.safetensors")) continue;
    INFO(one.name());
    ++cases;
    const auto narrow = safetensors::open(folder / "params_f32.safetensors");
    const auto gradients = safetensors::open(folder / "grads.safetensors");
    CHECK_FALSE(narrow.metadata().empty());
    CHECK(gradients.metadata().empty());
    unsorted += !std::ranges::is_sorted(narrow.tensors(), {}, &safetensors_entry::name);
    for (const safetensors_entry& t : narrow.tensors()) {
      INFO(t.name);
      ++tensors;
      CHECK(t.dtype == safetensors_dtype::f32);
      if (gradients.contains(t.name)) {
        CHECK(t.extents == numbers_of(one.text("param." + t.name)));
        CHECK(gradients.at(t.name).extents == t.extents);
        CHECK(gradients.at(t.name).dtype == safetensors_dtype::f64);
      }
      REQUIRE(narrow.view<float>(t.name).has_value());
      CHECK(std::ranges::equal(*narrow.view<float>(t.name), narrow.read<float>(t.name)));
      CHECK_FALSE(narrow.view<double>(t.name).has_value());
    }
    if (!fs::exists(folder / "params.safetensors")) continue;
    const auto wide = safetensors::open(folder / "params.safetensors");
    REQUIRE(wide.tensors().size() == narrow.tensors().size());
    for (const safetensors_entry& t : wide.tensors()) {
      INFO(t.name);
      CHECK(t.dtype == safetensors_dtype::f64);
      // The values are those of floats.
      CHECK(narrow.at(t.name).extents == t.extents);
      CHECK(wide.read<float>(t.name) == narrow.read<float>(t.name));
      CHECK(wide.read<double>(t.name) == narrow.read<double>(t.name));
    }
  }
  CHECK(cases >= 1);
  CHECK(tensors > 3 * cases);
  CHECK(unsorted > 0);
}

TEST_CASE("safetensors: what is written is read", "[safetensors]") {
  const scratch_folder scratch("safetensors");
  const fs::path path = scratch.path / "all.safetensors";
  const auto halves = numbers<bfloat16>(3);
  const auto doubles = numbers<double>(6);
  const auto ieee_halves = numbers<float16>(1);
  const auto floats = numbers<float>(4);
  const std::vector<safetensors_tensor> tensors = {
      {"z.half", {3}, std::span(halves)},
      {"a \"quoted\"\\\n\xc3\xa9", {2, 3}, std::span(doubles)},
      {"scalar", {}, std::span(ieee_halves)},
      {"", {1, 2, 2, 1}, std::span(floats)},
      {"none", {2, 0, 3}, std::span<const float>()}};
  const heed::io::safetensors_metadata metadata = {{"format", "pt"}, {"b", ""}, {"a\n", "\"1\""}};
  heed::io::write_safetensors(path, tensors, metadata);

  const auto file = safetensors::open(path);
  CHECK(file.name() == path.string());
  CHECK(file.metadata() == metadata);
  REQUIRE(file.tensors().size() == tensors.size());
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    CHECK(file.tensors()[n].name == tensors[n].name);
    CHECK(file.tensors()[n].extents == tensors[n].extents);
  }
  CHECK(file.at("z.half").dtype == safetensors_dtype::bf16);
  CHECK(floats_of(file, "z.half") == std::vector<float>{-1.0f, -0.5f, 0.0f});
  CHECK(file.read<double>(tensors[1].name) == doubles);
  CHECK(floats_of(file, "scalar") == std::vector<float>{-1.0f});
  CHECK(file.at("scalar").size() == 1);
  CHECK(floats_of(file, "") == floats);
  CHECK(floats_of(file, "none").empty());
  // All lie where their types want them.
  CHECK(file.view<bfloat16>("z.half").has_value());
  CHECK(file.view<double>(tensors[1].name).has_value());
  CHECK(file.view<float16>("scalar").has_value());
  CHECK(file.view<float>("")->size() == 4);

  // A moved file keeps its views; a file that cannot be mapped is read.
  const float* const first = file.view<float>("")->data();
  auto source = safetensors::open(path);
  const float* const before = source.view<float>("")->data();
  const safetensors moved = std::move(source);
  CHECK(moved.view<float>("")->data() == before);
  CHECK(before != first);
  const auto copy = heed::io::file_bytes::read<safetensors_error>(path);
  const auto mapped = heed::io::file_bytes::map<safetensors_error>(path);
  CHECK_FALSE(copy.is_mapped());
  CHECK(std::ranges::equal(copy.bytes(), mapped.bytes()));
  CHECK(safetensors(copy.bytes(), "copy").read<float>("") == floats);

  heed::io::write_safetensors(path, {});
  CHECK(safetensors::open(path).tensors().empty());
  CHECK(fs::file_size(path) == 16);
}

TEST_CASE("safetensors: every type is read as every other, rounded once", "[safetensors]") {
  const scratch_folder scratch("safetensors");
  const fs::path path = scratch.path / "types.safetensors";
  const double tie = 1.0 + 0x1p-8 + 0x1p-40;  // next to a tie of bfloat16, on it for a float
  const std::vector<double> doubles = {tie, -65520.0, 1e300, std::nan(""), 0x1p-25};
  const auto floats = numbers<float>(5);
  const auto halves = numbers<float16>(5);
  const auto brains = numbers<bfloat16>(5);
  const std::vector<safetensors_tensor> tensors = {{"d", {5}, std::span(doubles)},
                                                   {"f", {5}, std::span(floats)},
                                                   {"h", {5}, std::span(halves)},
                                                   {"b", {5}, std::span(brains)}};
  heed::io::write_safetensors(path, tensors);
  const auto file = safetensors::open(path);
  for (const char* name : {"f", "h", "b"}) {
    CHECK(file.read<float>(name) == floats);
    CHECK(file.read<double>(name) == numbers<double>(5));
    const auto as_float16 = file.read<float16>(name);
    const auto as_bfloat16 = file.read<bfloat16>(name);
    for (std::size_t n = 0; n < 5; ++n) {
      CHECK(as_float16[n].bits() == halves[n].bits());
      CHECK(as_bfloat16[n].bits() == brains[n].bits());
    }
  }
  const auto rounded = file.read<bfloat16>("d");
  CHECK(rounded[0].bits() == 0x3f81);
  CHECK(bfloat16(static_cast<float>(tie)).bits() == 0x3f80);
  CHECK(file.read<float16>("d")[1].bits() == 0xfc00);
  CHECK(std::isinf(file.read<float>("d")[2]));
  CHECK(std::isnan(file.read<float>("d")[3]));
  CHECK(file.read<float16>("d")[4].bits() == 0);

  std::vector<float> room(4, 7.0f);
  CHECK_THROWS_WITH(file.read("f", std::span(room)),
                    path.string() + ": tensor 'f' has shape [5] and 5 elements, expected 4");
  CHECK(room == std::vector<float>(4, 7.0f));
  room.resize(5);
  file.read("f", std::span(room));
  CHECK(room == floats);
  CHECK_THROWS_WITH(file.read<float>("g"), path.string() + ": has no tensor 'g'");
  CHECK_THROWS_AS(file.view<float>("g"), safetensors_error);
  CHECK_FALSE(file.contains("g"));

  // Other types may be there, but not as numbers. Data at an odd address are read, but not viewed:
  // what is last here ends at the end of a page.
  const std::string number("\0\0\x80\x3f", 4), bytes("\1\2\3");
  for (const bool last : {true, false}) {
    const std::string f = entry("f", "F32", "[1]", last ? "[3, 7]" : "[0, 4]");
    const std::string i = entry("i", "I8", "[3]", last ? "[0, 3]" : "[4, 7]");
    const std::string data = last ? bytes + number : number + bytes;
    const safetensors other(guarded(file_of("{" + f + "," + i + "}", data)), "x");
    CHECK(other.view<float>("f").has_value() == last);
    CHECK(other.read<float>("f") == std::vector<float>{1.0f});
    CHECK_THROWS_WITH(other.read<float>("i"),
                      "x: tensor 'i' holds I8, expected F16, BF16, F32 or F64");
  }
}

TEST_CASE("safetensors: what is not a sound file is refused with a sentence", "[safetensors]") {
  const std::string good = entry("a", "F32", "[2, 3]", "[0, 24]");
  const std::string data(24, '\1');
  REQUIRE(fuzz_safetensors(guarded(file_of("{" + good + "}", data))));
  REQUIRE(fuzz_safetensors(guarded(file_of("{}", ""))));
  REQUIRE(fuzz_safetensors(guarded(file_of(" {}", "")).last(10)) == false);

  refused("", "truncated in the header length");
  refused(std::string(7, '\0'), "truncated in the header length");
  refused(std::string(8, '\0'), "not a JSON object");
  refused(std::string(8, '\xff') + "{}", "18446744073709551615 bytes");
  refused(std::string("\1\xe1\xf5\5\0\0\0\0{}", 10), "would have 100000001 bytes");
  refused(std::string("\3\0\0\0\0\0\0\0{}", 10), "truncated in the header, which has 3 bytes");

  // Not JSON, or other JSON than a header.
  for (const char* header : {"[]", "5", " {}", "null", "\xef\xbb\xbf{}", "\"a\""}) {
    refused(file_of(header, ""), "the header is not a JSON object");
  }
  refused(file_of(std::string("{}\0", 3), ""), "the header is not a JSON object");
  for (const char* header :
       {"{", "{]", "{\"a\":", "{} x", "{}{}", "{\"\xff\":{}}", "{'a':{}}", "{\"__metadata__\":{},}",
        "{\"\\ud800\":{}}", "{/**/}", "{\"a\":1e999}"}) {
    refused(file_of(header, ""), "the header is not JSON at its byte");
  }
  for (const char* value : {"5", "[]", "null", "true", "\"F32\"", "-1", "1.5"}) {
    refused(file_of("{\"a\":" + std::string(value) + "}", ""), "tensor 'a' has");
  }
  const std::string deep(50000, '[');
  refused(file_of("{\"a\":" + deep, ""), "tensor 'a' has an array in a wrong place");
  refused(file_of("{\"a\":{\"shape\":" + deep, ""), "tensor 'a' has an array in a wrong place");
  std::string objects = "{";
  for (int n = 0; n < 10000; ++n) objects += "\"a\":{";
  refused(file_of(objects, ""), "tensor 'a' has the key 'a'");
  refused(file_of("{\"__metadata__\":{\"a\":{}}}", ""), "the header has an object");
  refused(file_of("{\"__metadata__\":{\"a\":5}}", ""), "the header has a number");
  refused(file_of("{\"__metadata__\":[]}", ""), "the header has an array");

  // Entries.
  refused(file_of("{\"a\":{}}", data), "tensor 'a' lacks dtype, shape or data_offsets");
  refused(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[6]}}", data), "tensor 'a' lacks");
  refused(file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", data), "the key 'dtype' twice");
  refused(file_of("{\"a\":{\"type\":\"F32\"}}", data), "the key 'type' twice or should not");
  refused(file_of("{" + good + "," + good + "}", data), "has tensor 'a' twice");
  refused(file_of("{" + good + ",\"\\u0061\":" + good.substr(4) + "}", data), "tensor 'a' twice");
  refused(file_of("{\"__metadata__\":{},\"__metadata__\":{}}", ""), "has __metadata__ twice");
  refused(file_of_entry("f32", "[6]", "[0, 24]"), "tensor 'a' has the unknown dtype 'f32'");
  refused(file_of_entry("F4", "[6]", "[0, 24]"), "unknown dtype 'F4'");
  refused(file_of_entry(std::string(1000, 'F'), "[6]", "[0, 24]"), "unknown dtype 'FFFF");
  refused(file_of_entry("\\n\\u0007\xc3\xa9", "[6]", "[0, 24]"),
          "unknown dtype '" + std::string(4, '?'));
  refused(file_of("{" + entry(std::string(1000, 'n'), "F32", "5", "[]") + "}", ""), "tensor 'nnnn");

  // Shapes.
  refused(file_of_entry("F32", "[-6]", "[0, 24]"), "has a negative number");
  refused(file_of_entry("F32", "[-0]", "[0, 24]"), "has a negative number");
  refused(file_of_entry("F32", "[6.0]", "[0, 24]"), "has a number that is not whole");
  refused(file_of_entry("F32", "[[6]]", "[0, 24]"), "has an array in a wrong place");
  refused(file_of_entry("F32", "[1,1,1,1,1,1,1,1,6]", "[0, 24]"), "has more than 8 axes");
  refused(file_of_entry("F32", "[9223372036854775808]", "[0, 24]"), "has an extent of 92233720");
  refused(file_of_entry("F32", "[99999999999999999999]", "[0, 24]"), "has a number that is not");
  refused(file_of_entry("F32", "[2305843009213693952]", "[0, 24]"), "more than memory can hold");
  refused(file_of_entry("F32", "[4294967296, 4294967296]", "[0, 0]"), "more than memory can hold");
  refused(file_of_entry("F32", "[0, 4294967296, 4294967296]", "[0, 0]"), "more than memory can");
  refused(file_of_entry("F32", "[4611686018427387904, 4]", "[0, 0]"), "more than memory can hold");
  refused(file_of_entry("U8", "[9223372036854775807]", "[0, 24]"), "but shape [92233720");

  // Offsets.
  refused(file_of_entry("F32", "[6]", "[0]"), "data_offsets that are not two");
  refused(file_of_entry("F32", "[6]", "[0, 24, 24]"), "data_offsets that are not two");
  refused(file_of_entry("F32", "[6]", "[24, 0]"), "end before they begin");
  refused(file_of_entry("F32", "[6]", "[0, -24]"), "negative number");
  refused(file_of_entry("F32", "[6]", "[18446744073709551592, 18446744073709551615]"), "beyond");
  refused(file_of_entry("F32", "[7]", "[0, 28]"), "beyond the 24 bytes of data in the file");
  refused(file_of_entry("F32", "[5]", "[0, 24]"), "shape [5] of F32 is 20 bytes");
  refused(file_of_entry("F64", "[6]", "[0, 24]"), "shape [6] of F64 is 48 bytes");
  refused(file_of_entry("F32", "[0]", "[0, 24]"), "shape [0] of F32 is 0 bytes");
  refused(file_of_entry("F32", "[5]", "[4, 24]"), "tensor 'a' begins after a gap in the data");
  refused(file_of_entry("F32", "[5]", "[0, 20]"), "4 bytes follow the data");
  refused(file_of_entry("F32", "[0]", "[0, 0]"), "24 bytes follow the data");
  const auto two = [&](const char* first, const char* second) {
    return file_of(
        "{" + entry("a", "F32", "[3]", first) + "," + entry("b", "F32", "[3]", second) + "}", data);
  };
  CHECK(fuzz_safetensors(guarded(two("[12, 24]", "[0, 12]"))));
  refused(two("[0, 12]", "[0, 12]"), "tensor 'b' overlaps another");
  refused(two("[0, 12]", "[8, 20]"), "tensor 'b' overlaps another");
  refused(two("[1, 13]", "[13, 25]"), "beyond");
}

TEST_CASE("safetensors: every truncation and every changed byte is read in bounds",
          "[safetensors]") {
  const std::string file =
      file_of("{\"__metadata__\":{\"k\":\"v\"}," + entry("a", "F32", "[1, 2]", "[2, 10]") + "," +
                  entry("b", "BF16", "[1]", "[0, 2]") + "}",
              std::string(10, '\1'));
  REQUIRE(fuzz_safetensors(guarded(file)));
  int accepted = 0;
  for (std::size_t length = 0; length < file.size(); ++length) {
    CHECK_FALSE(fuzz_safetensors(guarded(file.substr(0, length))));
  }
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = file;
      changed[at] = static_cast<char>(value);
      accepted += fuzz_safetensors(guarded(changed));
    }
  }
  CHECK(accepted > 2560);  // changed data and names
}

TEST_CASE("safetensors: what cannot be read or written is named, and nothing is lost",
          "[safetensors]") {
  const scratch_folder scratch("safetensors");
  const fs::path missing = scratch.path / "missing", folder = scratch.path / "folder",
                 kept = scratch.path / "kept", empty = scratch.path / "empty",
                 pipe = scratch.path / "pipe";
  fs::create_directory(folder);
  std::ofstream(empty).close();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(safetensors::open(missing), missing.string() + ": no such file");
  CHECK_THROWS_WITH(safetensors::open(folder), folder.string() + ": not a regular file");
  CHECK_THROWS_WITH(safetensors::open(pipe), pipe.string() + ": not a regular file");
  CHECK_THROWS_WITH(safetensors::open(empty), empty.string() + ": truncated in the header length");

  const auto values = numbers<float>(6);
  const std::span<const float> span(values);
  const auto write = [&](const fs::path& path, const std::vector<safetensors_tensor>& tensors,
                         const heed::io::safetensors_metadata& metadata = {}) {
    heed::io::write_safetensors(path, tensors, metadata);
  };
  write(kept, {{"a", {6}, span}});
  const std::string before = slurp(kept);
  const auto refuses = [&](const std::vector<safetensors_tensor>& tensors, const std::string& why,
                           const heed::io::safetensors_metadata& metadata = {}) {
    CHECK_THROWS_WITH(write(kept, tensors, metadata), kept.string() + ": " + why);
    CHECK(slurp(kept) == before);
  };
  refuses({{"a", {6}, span}, {"b", {6}, span}, {"a", {6}, span}}, "tensor 'a' is there twice");
  refuses({{"a", {5}, span}}, "tensor 'a' has shape [5], but 6 elements");
  refuses({{"a", {-2, -3}, span}}, "tensor 'a' has shape [-2, -3], but 6 elements");
  refuses({{"a", {index{1} << 62, 4}, span}},
          "tensor 'a' has shape [4611686018427387904, 4], but 6 elements");
  refuses({{"a", {1, 1, 1, 1, 1, 1, 1, 1, 6}, span}}, "tensor 'a' has more than 8 axes");
  refuses({{"__metadata__", {6}, span}}, "tensor '__metadata__' has a name that is taken");
  refuses({{"\xff", {6}, span}}, "'?' is not UTF-8");
  refuses({}, "'?' is not UTF-8", {{"a", "\xff"}});
  CHECK_THROWS_WITH(write(missing / "x", {}), (missing / "x").string() + ": cannot be written");
  CHECK_THROWS_WITH(write(folder, {}), folder.string() + ": cannot be written");
  CHECK(fs::is_directory(folder));
  CHECK_FALSE(fs::exists(scratch.path / "folder.part"));
}

TEST_CASE("safetensors: the fuzzer's corpus holds no surprises", "[safetensors]") {
  const replayed files = replay_corpus("safetensors", fuzz_safetensors);
  CHECK(files.accepted >= 5);
  CHECK(files.refused >= 13);
}

}  // namespace heed_test
