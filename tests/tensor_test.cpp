#include "heed/tensor.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "guarded.hpp"

namespace heed_test {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Equals;
using heed::index;
using heed::shape;
using heed::shape_error;
using heed::tensor_view;

constexpr index largest = std::numeric_limits<index>::max();

// Views are literal types: all of this is decided by the compiler.
constexpr std::array<int, 6> six{10, 11, 12, 13, 14, 15};
constexpr tensor_view<const int, 2> table(six.data(), {2, 3});
static_assert(table(1, 2) == 15 && table.size() == 6 && table.last_offset() == 5);
static_assert(table.permute({1, 0})(2, 1) == 15 && table.slice(1, 1, 3)(1, 0) == 14);
static_assert(tensor_view<const int, 1>(six.data(), {3}, {2})(2) == 14);
static_assert(tensor_view<float, 4>().empty() && tensor_view<float, 4>().data() == nullptr);
static_assert(std::is_trivially_copyable_v<tensor_view<float, 4>>);

// const is gained, never lost, and no other conversion exists.
static_assert(std::is_convertible_v<tensor_view<float, 3>, tensor_view<const float, 3>>);
static_assert(!std::is_convertible_v<tensor_view<const float, 3>, tensor_view<float, 3>>);
static_assert(!std::is_constructible_v<tensor_view<const float, 3>, tensor_view<double, 3>>);
static_assert(!std::is_constructible_v<tensor_view<float, 3>, tensor_view<float, 2>>);

TEST_CASE("a view addresses data + sum of index * stride", "[tensor]") {
  std::vector<int> data(1000);
  std::iota(data.begin(), data.end(), 0);
  const tensor_view<int, 4> view(data.data(), {2, 3, 4, 5}, {400, 7, 31, 2});
  for (index a = 0; a < 2; ++a)
    for (index b = 0; b < 3; ++b)
      for (index c = 0; c < 4; ++c)
        for (index d = 0; d < 5; ++d) {
          REQUIRE(view(a, b, c, d) == 400 * a + 7 * b + 31 * c + 2 * d);
          REQUIRE(view.pointer(a, b, c, d) == &view(a, b, c, d));
        }
  REQUIRE(view.last_offset() == 400 + 14 + 93 + 8);
  view(1, 2, 3, 4) = -1;
  REQUIRE(data[515] == -1);

  const tensor_view<const int, 4> read = view;
  REQUIRE(read(1, 2, 3, 4) == -1);
  REQUIRE(read.strides() == view.strides());
}

TEST_CASE("row-major strides", "[tensor]") {
  std::vector<float> data(120);
  REQUIRE(tensor_view<float, 4>(data, {2, 3, 4, 5}).strides() == shape<4>{60, 20, 5, 1});
  REQUIRE(tensor_view<float, 1>(data, {120}).strides() == shape<1>{1});
  // An axis without elements leaves the other strides as they were, none of them 0.
  REQUIRE(tensor_view<float, 4>(data, {2, 0, 4, 5}).strides() == shape<4>{20, 20, 5, 1});
  REQUIRE(tensor_view<float, 2>(data, {3, 0}).strides() == shape<2>{1, 1});
}

TEST_CASE("views of spans must fit", "[tensor]") {
  std::vector<float> data(24);
  const std::span<float> whole(data);
  REQUIRE(tensor_view<float, 3>(whole, {2, 3, 4}).size() == 24);
  REQUIRE_THROWS_WITH((tensor_view<float, 3>(whole, {2, 3, 5})),
                      Equals("heed: tensor_view: the shape reaches element 29 of a span of 24"));
  REQUIRE_THROWS_AS((tensor_view<float, 3>(whole, {2, 3, 5})), shape_error);
  REQUIRE_THROWS_AS((tensor_view<float, 3>(whole, {2, 3, 5})), std::invalid_argument);

  // The last element decides, whatever the strides: 1 * 8 + 3 * 5 = 23 fits, 24 does not.
  REQUIRE(tensor_view<float, 2>(whole, {2, 4}, {8, 5})(1, 3) == 0);
  REQUIRE_THROWS_WITH((tensor_view<float, 2>(whole, {2, 4}, {9, 5})),
                      ContainsSubstring("reaches element 24 of a span of 24"));
  // Stride 0 repeats: a million rows in one.
  REQUIRE(tensor_view<float, 2>(whole, {1'000'000, 24}, {0, 1})(999'999, 23) == 0);
  REQUIRE_THROWS_AS((tensor_view<float, 2>(whole, {1'000'000, 25}, {0, 1})), shape_error);
  REQUIRE_THROWS_WITH((tensor_view<float, 2>(std::span<float>(), {1, 1}, {0, 0})),
                      ContainsSubstring("reaches element 0 of a span of 0"));
  // Nothing fits anywhere.
  REQUIRE(tensor_view<float, 2>(std::span<float>(), {0, 25}, {1000, 1}).empty());
  REQUIRE(tensor_view<float, 2>(std::span<float>(), {largest, 0}).empty());

  const std::vector<double> constant(6, 1.5);
  REQUIRE(tensor_view<const double, 2>(constant, {2, 3})(1, 2) == 1.5);
  REQUIRE_THROWS_AS((tensor_view<const double, 2>(constant, {2, 4})), shape_error);
}

TEST_CASE("negative extents and strides are refused by axis", "[tensor]") {
  float x[8] = {};
  REQUIRE_THROWS_WITH((tensor_view<float, 3>(x, {2, -3, 4})),
                      Equals("heed: tensor_view: axis 1 has negative extent -3"));
  REQUIRE_THROWS_WITH((tensor_view<float, 3>(x, {2, 2, 2}, {4, 2, -1})),
                      Equals("heed: tensor_view: axis 2 has negative stride -1"));
  REQUIRE_THROWS_WITH((tensor_view<float, 2>(x, {0, 2}, {-4, 1})),
                      Equals("heed: tensor_view: axis 0 has negative stride -4"));
  REQUIRE_THROWS_AS((tensor_view<float, 2>(std::span<float>(x), {-1, 2})), shape_error);
}

TEST_CASE("a null pointer has no elements", "[tensor]") {
  float* const null = nullptr;
  REQUIRE(tensor_view<float, 2>(null, {0, 5}).empty());
  REQUIRE(tensor_view<float, 2>(null, {5, 0}).empty());
  REQUIRE_THROWS_WITH((tensor_view<float, 2>(null, {2, 5})),
                      Equals("heed: tensor_view: a null pointer to 10 elements"));
  // Loops over some axes of a view that is empty in another may ask where they are.
  REQUIRE(tensor_view<float, 2>(null, {5, 0}, {largest, 1}).pointer(4, 0) == nullptr);
}

TEST_CASE("sizes and offsets that 64 bits cannot hold are refused", "[tensor]") {
  float x = 0;
  const index big = index{1} << 40;
  REQUIRE_THROWS_WITH(
      (tensor_view<float, 2>(&x, {big, big})),
      ContainsSubstring("goes beyond 64-bit sizes") && ContainsSubstring("extent 1099511627776"));
  // Row-major strides that overflow on the way.
  REQUIRE_THROWS_AS((tensor_view<float, 4>(&x, {1, largest, largest, largest})), shape_error);
  // The element count overflows although every stride is 0.
  REQUIRE_THROWS_WITH((tensor_view<float, 2>(&x, {big, big}, {0, 0})),
                      ContainsSubstring("stride 0 in axis 1 goes beyond"));
  // The element offset fits, the byte offset does not.
  REQUIRE_THROWS_AS((tensor_view<float, 1>(&x, {2}, {largest / 4})), shape_error);
  REQUIRE_THROWS_AS((tensor_view<float, 2>(&x, {2, 3}, {largest / 8, largest / 8})), shape_error);
  REQUIRE(tensor_view<float, 1>(&x, {2}, {largest / 4 - 1}).last_offset() == largest / 4 - 1);
  // A stride that is never taken does not count.
  REQUIRE(tensor_view<float, 1>(&x, {1}, {largest})(0) == 0);
  REQUIRE(tensor_view<float, 2>(&x, {0, 3}, {largest, largest}).last_offset() == 0);
}

TEST_CASE("permute", "[tensor]") {
  std::vector<int> data(120);
  std::iota(data.begin(), data.end(), 0);
  const tensor_view<int, 4> bhtd(data, {2, 3, 4, 5});
  const auto bthd = bhtd.permute({0, 2, 1, 3});
  REQUIRE(bthd.extents() == shape<4>{2, 4, 3, 5});
  for (index b = 0; b < 2; ++b)
    for (index t = 0; t < 4; ++t)
      for (index h = 0; h < 3; ++h) REQUIRE(bthd(b, t, h, 4) == bhtd(b, h, t, 4));
  REQUIRE_THROWS_WITH(bhtd.permute({0, 2, 4, 3}), Equals("heed: tensor_view::permute: no axis 4"));
  REQUIRE_THROWS_WITH(bhtd.permute({0, -1, 1, 3}),
                      Equals("heed: tensor_view::permute: no axis -1"));
  REQUIRE_THROWS_WITH(bhtd.permute({0, 2, 2, 3}),
                      Equals("heed: tensor_view::permute: axis 2 is named twice"));
}

TEST_CASE("slice", "[tensor]") {
  std::vector<int> data(24);
  std::iota(data.begin(), data.end(), 0);
  const tensor_view<int, 3> view(data, {2, 3, 4});
  const auto part = view.slice(2, 1, 3).slice(0, 1, 2);
  REQUIRE(part.extents() == shape<3>{1, 3, 2});
  REQUIRE(part(0, 2, 1) == view(1, 2, 2));
  REQUIRE(view.slice(1, 3, 3).empty());
  REQUIRE(view.slice(1, 3, 3).data() == view.data());

  REQUIRE_THROWS_WITH(view.slice(1, 2, 4),
                      Equals("heed: tensor_view::slice: [2, 4) does not lie in axis 1 of 3"));
  REQUIRE_THROWS_AS(view.slice(1, 2, 1), shape_error);
  REQUIRE_THROWS_AS(view.slice(1, -1, 1), shape_error);
  REQUIRE_THROWS_WITH(view.slice(3, 0, 0), ContainsSubstring("does not lie in axis 3"));
  REQUIRE_THROWS_AS(view.slice(-1, 0, 0), shape_error);

  // No step is taken from a null pointer.
  const tensor_view<int, 2> none(static_cast<int*>(nullptr), {4, 0}, {largest, 1});
  REQUIRE(none.slice(0, 2, 4).data() == nullptr);
}

TEST_CASE("slices of a fused buffer are views like any other", "[tensor]") {
  // [B, T, 3, H, D]: q, k and v of a token side by side.
  constexpr index B = 2, T = 3, H = 2, D = 4;
  std::vector<int> fused(B * T * 3 * H * D);
  std::iota(fused.begin(), fused.end(), 0);
  for (index which = 0; which < 3; ++which) {
    const tensor_view<const int, 4> view(
        std::span<const int>(fused).subspan(static_cast<std::size_t>(which * H * D)), {B, T, H, D},
        {T * 3 * H * D, 3 * H * D, D, 1});
    REQUIRE(view(1, 2, 1, 3) == (((1 * T + 2) * 3 + which) * H + 1) * D + 3);
  }
}

TEST_CASE("offsets beyond 2^31 elements", "[tensor][sparse]") {
  constexpr index T = 5, stride = (index{1} << 29) + 3;
  heed_test::sparse_memory memory(static_cast<std::size_t>((T - 1) * stride + 4) * sizeof(float));
  const tensor_view<float, 2> view(memory.as<float>(), {T, 4}, {stride, 1});
  REQUIRE(view.last_offset() > index{1} << 31);
  for (index t = 0; t < T; ++t)
    for (index d = 0; d < 4; ++d) view(t, d) = static_cast<float>(10 * t + d);
  for (index t = 0; t < T; ++t)
    for (index d = 0; d < 4; ++d) {
      REQUIRE(memory.as<float>()[t * stride + d] == static_cast<float>(10 * t + d));
    }
  REQUIRE(view.slice(0, 4, 5)(0, 3) == 43);
  REQUIRE(view.permute({1, 0})(2, 4) == 42);
}

}  // namespace heed_test
