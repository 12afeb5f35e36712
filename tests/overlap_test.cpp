#include "heed/overlap.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "catch.hpp"
#include "guarded.hpp"

namespace heed_test {

using Catch::Matchers::Equals;
using heed::check_output;
using heed::index;
using heed::overlaps_itself;
using heed::shape_error;
using heed::tensor_view;
using heed::views_overlap;

namespace {

template <class T, int Rank, class F>
void for_each_element(const tensor_view<T, Rank>& view, F f) {
  heed::shape<4> extents{1, 1, 1, 1}, strides{};
  for (int axis = 0; axis < Rank; ++axis) {
    extents[static_cast<std::size_t>(axis)] = view.extent(axis);
    strides[static_cast<std::size_t>(axis)] = view.stride(axis);
  }
  for (index a = 0; a < extents[0]; ++a)
    for (index b = 0; b < extents[1]; ++b)
      for (index c = 0; c < extents[2]; ++c)
        for (index d = 0; d < extents[3]; ++d) {
          f(view.data() + a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]);
        }
}

// The definition, byte by byte.
template <class A, int RankA, class B, int RankB>
bool share_a_byte(const tensor_view<A, RankA>& a, const tensor_view<B, RankB>& b) {
  std::set<std::uintptr_t> bytes;
  for_each_element(a, [&](const A* element) {
    for (std::size_t n = 0; n < sizeof(A); ++n) {
      bytes.insert(reinterpret_cast<std::uintptr_t>(element) + n);
    }
  });
  bool shared = false;
  for_each_element(b, [&](const B* element) {
    for (std::size_t n = 0; n < sizeof(B); ++n) {
      shared = shared || bytes.contains(reinterpret_cast<std::uintptr_t>(element) + n);
    }
  });
  return shared;
}

template <class T, int Rank>
bool names_one_twice(const tensor_view<T, Rank>& view) {
  std::set<const T*> seen;
  bool twice = false;
  for_each_element(view, [&](const T* element) { twice = !seen.insert(element).second || twice; });
  return twice;
}

using generator = std::mt19937;

index pick(generator& random, index low, index high) {
  return std::uniform_int_distribution<index>(low, high)(random);
}

// Addresses only: nothing is read, so the views may lie anywhere, unaligned ones too.
template <class T, int Rank>
tensor_view<T, Rank> random_view(generator& random, index most_extent, index most_stride,
                                 index most_start) {
  heed::shape<Rank> extents, strides;
  for (auto& e : extents) e = pick(random, pick(random, 0, 9) == 0 ? 0 : 1, most_extent);
  for (auto& s : strides) s = pick(random, pick(random, 0, 9) == 0 ? 0 : 1, most_stride);
  const index step = pick(random, 0, 3) == 0 ? 1 : static_cast<index>(alignof(T));
  const index start = 4096 + pick(random, 0, most_start) * step;
  return {reinterpret_cast<T*>(start), extents, strides};
}

template <class A, int RankA, class B, int RankB>
std::array<int, 2> compare_with_definition(generator& random, int times, index most_extent,
                                           index most_stride, index most_start) {
  std::array<int, 2> answers{};
  for (int n = 0; n < times; ++n) {
    const auto a = random_view<A, RankA>(random, most_extent, most_stride, most_start);
    const auto b = random_view<B, RankB>(random, most_extent, most_stride, most_start);
    const bool expected = share_a_byte(a, b);
    CAPTURE(a.extents(), a.strides(), b.extents(), b.strides());
    CAPTURE(reinterpret_cast<index>(a.data()), reinterpret_cast<index>(b.data()));
    if (views_overlap(a, b) != expected || views_overlap(b, a) != expected) {
      REQUIRE(views_overlap(a, b) == expected);
      REQUIRE(views_overlap(b, a) == expected);
    }
    ++answers[expected];
  }
  return answers;
}

struct triple {  // an element size that divides no other
  char bytes[3];
};

}  // namespace

TEST_CASE("views overlap exactly when they share a byte", "[overlap]") {
  generator random(7);
  std::array<int, 2> all{};
  const auto add = [&](std::array<int, 2> some) {
    all[0] += some[0];
    all[1] += some[1];
  };
  for (const index stride : {3, 12, 60}) {
    for (const index start : {4, 40, 300}) {
      add(compare_with_definition<float, 1, float, 1>(random, 1000, 8, stride, start));
      add(compare_with_definition<float, 2, float, 2>(random, 1000, 5, stride, start));
      add(compare_with_definition<float, 3, double, 2>(random, 700, 4, stride, start));
      add(compare_with_definition<double, 2, float, 4>(random, 500, 4, stride, start));
      add(compare_with_definition<float, 4, float, 4>(random, 500, 3, stride, start));
      add(compare_with_definition<bool, 3, float, 3>(random, 500, 4, stride, start));
      add(compare_with_definition<triple, 3, double, 3>(random, 500, 3, stride, start));
      add(compare_with_definition<char, 4, std::uint16_t, 4>(random, 500, 3, stride, start));
    }
  }
  // Both answers are well represented.
  REQUIRE(all[0] > 10'000);
  REQUIRE(all[1] > 10'000);
}

TEST_CASE("sparse views that only meet by number theory", "[overlap]") {
  // Large coprime steps: ranges overlap, elements seldom do.
  generator random(8);
  const auto two = compare_with_definition<float, 2, float, 2>(random, 5000, 12, 400, 2000);
  const auto three = compare_with_definition<float, 3, float, 3>(random, 1500, 5, 300, 1000);
  REQUIRE((two[0] > 500 && two[1] > 500));
  REQUIRE((three[0] > 200 && three[1] > 200));
}

TEST_CASE("a view overlaps itself exactly when two indices name one element", "[overlap]") {
  generator random(9);
  std::array<int, 2> answers{};
  const auto check = [&](const auto& view) {
    const bool expected = names_one_twice(view);
    CAPTURE(view.extents(), view.strides());
    if (overlaps_itself(view) != expected) REQUIRE(overlaps_itself(view) == expected);
    ++answers[expected];
  };
  for (int n = 0; n < 4000; ++n) {
    check(random_view<float, 1>(random, 4, 5, 0));
    check(random_view<double, 2>(random, 6, 20, 0));
    check(random_view<float, 3>(random, 4, 40, 0));
    check(random_view<float, 4>(random, 3, 80, 0));
  }
  REQUIRE(answers[0] > 3000);
  REQUIRE(answers[1] > 1000);
}

TEST_CASE("slices of one buffer side by side do not overlap", "[overlap]") {
  // q, k and v in one [B, T, 3, H, D] buffer, and in one [B, T, H, 3 D] buffer.
  constexpr index B = 2, T = 1000, H = 8, D = 64;
  std::vector<float> fused(B * T * 3 * H * D);
  const auto by_token = [&](index which) {
    return tensor_view<float, 4>(fused.data() + which * H * D, {B, T, H, D},
                                 {T * 3 * H * D, 3 * H * D, D, 1});
  };
  const auto by_head = [&](index which) {
    return tensor_view<float, 4>(fused.data() + which * D, {B, T, H, D},
                                 {T * 3 * H * D, 3 * H * D, 3 * D, 1});
  };
  for (index a = 0; a < 3; ++a)
    for (index b = 0; b < 3; ++b) {
      REQUIRE(views_overlap(by_token(a), by_token(b)) == (a == b));
      REQUIRE(views_overlap(by_head(a), by_head(b)) == (a == b));
    }
  REQUIRE(views_overlap(by_token(1), by_head(1)));
  // One column too many reaches into the neighbour.
  const tensor_view<float, 4> wide(fused.data() + D, {B, T, H, D + 1},
                                   {T * 3 * H * D, 3 * H * D, 3 * D, 1});
  REQUIRE(views_overlap(wide, by_head(2)));
  REQUIRE(!views_overlap(wide, by_head(0)));
  // Even and odd columns, one axis in reverse roles.
  const tensor_view<float, 3> even(fused.data(), {T, H, D}, {2 * H * D, 2 * D, 2});
  const tensor_view<float, 3> odd(fused.data() + 1, {H, T, D}, {2 * D, 2 * H * D, 2});
  REQUIRE(!views_overlap(even, odd));
  REQUIRE(views_overlap(even, odd.permute({1, 0, 2}).slice(2, 0, 1).slice(0, 0, 0)) == false);
  REQUIRE(!overlaps_itself(even));
}

TEST_CASE("ranges that touch, and views without elements", "[overlap]") {
  std::vector<double> data(100);
  const tensor_view<double, 2> first(data.data(), {5, 10}), second(data.data() + 50, {5, 10});
  REQUIRE(!views_overlap(first, second));
  REQUIRE(views_overlap(first, tensor_view<double, 1>(data.data() + 49, {5})));
  REQUIRE(!views_overlap(first, first.slice(0, 3, 3)));
  REQUIRE(!views_overlap(tensor_view<double, 3>(), tensor_view<double, 3>()));
  REQUIRE(!overlaps_itself(tensor_view<double, 2>(data.data(), {0, 9}, {0, 0})));
  REQUIRE(!overlaps_itself(tensor_view<double, 2>(data.data(), {1, 9}, {0, 1})));

  // A byte mask and floats: the last byte of an element counts.
  const auto* bytes = reinterpret_cast<const bool*>(data.data());
  REQUIRE(views_overlap(first, tensor_view<const bool, 1>(bytes + 50 * 8 - 1, {1})));
  REQUIRE(!views_overlap(first, tensor_view<const bool, 1>(bytes + 50 * 8, {1})));
  // Bytes between the elements of a strided view are nobody's.
  const tensor_view<double, 1> spread(data.data(), {50}, {2});
  REQUIRE(!views_overlap(spread, tensor_view<const bool, 2>(bytes + 8, {50, 8}, {16, 1})));
  REQUIRE(views_overlap(spread, tensor_view<const bool, 2>(bytes + 8, {50, 9}, {16, 1})));
}

TEST_CASE("64-bit offsets", "[overlap][sparse]") {
  constexpr index T = 6, far = (index{1} << 30) + 1;
  const sparse_memory memory(static_cast<std::size_t>(T * far) * sizeof(float));
  float* const data = memory.as<float>();
  const tensor_view<float, 2> a(data, {T, 8}, {far, 1}), b(data + 8, {T, 8}, {far, 1});
  REQUIRE(!views_overlap(a, b));
  REQUIRE(views_overlap(a, tensor_view<float, 2>(data + 7, {T, 8}, {far, 1})));
  // Meets only in the last row.
  REQUIRE(views_overlap(a, tensor_view<float, 1>(data + (T - 1) * far + 7, {8})));
  REQUIRE(!views_overlap(a, tensor_view<float, 1>(data + (T - 1) * far + 8, {8})));
  REQUIRE(!overlaps_itself(a));
  // 5 steps of far equal one step of 5 far.
  REQUIRE(overlaps_itself(tensor_view<float, 2>(data, {2, T}, {5 * far, far})));
  REQUIRE(!overlaps_itself(tensor_view<float, 2>(data, {2, T - 1}, {5 * far, far})));

  // The largest views that exist; nothing overflows on the way.
  const index huge = (index{1} << 60) - 1;
  float x[2];
  const tensor_view<float, 2> c(x, {3, 2}, {huge / 2, huge / 3}), d(x + 1, {2, 3}, {huge, 7});
  REQUIRE(!views_overlap(c, d));
  REQUIRE(views_overlap(c, c));
  REQUIRE(!overlaps_itself(c));
  REQUIRE(!overlaps_itself(tensor_view<char, 1>(reinterpret_cast<char*>(x), {2}, {4 * huge})));
}

TEST_CASE("strides made to be hard end in a bounded time, never in a false no", "[overlap]") {
  // Near-equal steps without a common divisor: a knapsack.
  generator random(10);
  const auto start = std::chrono::steady_clock::now();
  for (int n = 0; n < 4; ++n) {
    heed::shape<4> s, t;
    for (auto& stride : s) stride = 1'000'000 + pick(random, 0, 999) * 2;
    for (auto& stride : t) stride = 1'000'000 + pick(random, 0, 999) * 2;
    const tensor_view<float, 4> a(reinterpret_cast<float*>(1 << 20), {40, 40, 40, 40}, s);
    // b lies an odd number of elements away, all strides are even: no common element.
    const tensor_view<float, 4> b(reinterpret_cast<float*>((1 << 20) + 4'000'004), {40, 40, 40, 40},
                                  t);
    REQUIRE(!views_overlap(a, b));
    // Half an element off, anything that meets counts; c starts inside one of a's elements.
    float* const inside = a.pointer(3, 17, 20, 5);
    const tensor_view<float, 4> c(
        reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(inside) + 2), {9, 9, 9, 9}, t);
    REQUIRE(views_overlap(a, c));
  }
  REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::minutes(2));
}

TEST_CASE("check_output says which rule is broken", "[overlap]") {
  std::vector<float> data(1000);
  const tensor_view<const float, 4> q(data, {1, 4, 2, 8}), k(data, {1, 4, 2, 8});
  const tensor_view<float, 4> out(data.data() + 64, {1, 4, 2, 8});
  const tensor_view<float, 3> no_lse;
  REQUIRE_NOTHROW(check_output("attend", {"out", out}, {{"q", q}, {"k", k}, {"lse", no_lse}}));
  REQUIRE_NOTHROW(check_output("attend", {"lse", no_lse}, {{"q", q}, {"out", out}}));
  REQUIRE_NOTHROW(check_output("attend", {"out", out}, {}));

  const tensor_view<float, 4> late(data.data() + 60, {1, 4, 2, 8});
  REQUIRE_THROWS_WITH(
      check_output("attend", {"out", late}, {{"lse", no_lse}, {"k", k}, {"q", q}}),
      Equals("heed: attend: out shares elements with k; an output needs memory of its own"));
  REQUIRE_THROWS_AS(check_output("attend", {"out", late}, {{"q", q}}), shape_error);

  const tensor_view<float, 4> repeated(data.data(), {1, 4, 2, 8}, {64, 16, 0, 1});
  REQUIRE_THROWS_WITH(check_output("attend_grad", {"dk", repeated}, {}),
                      Equals("heed: attend_grad: dk: axis 2 has stride 0 over 2 elements; an "
                             "output needs a place for each"));
  const tensor_view<float, 4> folded(data.data(), {1, 4, 2, 8}, {64, 8, 8, 1});
  REQUIRE_THROWS_WITH(check_output("attend", {"out", folded}, {}),
                      Equals("heed: attend: out: its strides put two elements in one place"));
  // Stride 0 over a single element is no repetition.
  const tensor_view<float, 4> single(data.data() + 64, {1, 4, 1, 8}, {0, 8, 0, 1});
  REQUIRE_NOTHROW(check_output("attend", {"out", single}, {{"q", q}}));
}

}  // namespace heed_test
