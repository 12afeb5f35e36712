#include "heed/mask.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "catch.hpp"

namespace heed_test {

using Catch::Matchers::Equals;
using heed::causal;
using heed::full;
using heed::index;
using heed::index_list;
using heed::mask;
using heed::tensor_view;

namespace {

// Masks are plain values that the compiler can compute.
constexpr mask sliding = causal().window(1023, 0).always_visible(4);
static_assert(sliding.is_causal && sliding.left == 1023 && sliding.right == 0 &&
              sliding.first_keys == 4 && sliding.align == heed::alignment::bottom_right);
static_assert(std::is_trivially_copyable_v<mask> && std::is_trivially_copyable_v<index_list>);

constexpr std::array<std::int32_t, 3> narrow{1, 2, -3};
constexpr std::array<std::int64_t, 2> wide{std::int64_t{1} << 40, 7};
static_assert(index_list(narrow).size() == 3 && index_list(narrow)[2] == -3);
static_assert(index_list(wide)[0] == index{1} << 40);
static_assert(!index_list().given() && index_list().size() == 0);

// Lists of other types would have to be copied, and are refused.
static_assert(std::is_constructible_v<index_list, std::vector<std::int32_t>>);
static_assert(std::is_constructible_v<index_list, std::span<const std::int64_t>>);
static_assert(std::is_constructible_v<index_list, std::span<std::int64_t>>);
static_assert(!std::is_constructible_v<index_list, std::vector<std::uint32_t>>);
static_assert(!std::is_constructible_v<index_list, std::vector<double>>);
static_assert(!std::is_constructible_v<index_list, std::vector<std::int16_t>>);
static_assert(!std::is_constructible_v<index_list, int>);

bool plain(const mask& m) {
  return !m.is_causal && m.align == heed::alignment::bottom_right && m.left == mask::unlimited &&
         m.right == mask::unlimited && m.first_keys == 0 && !m.query_start.given() &&
         !m.key_length.given() && !m.key_start.given() && !m.cu_q.given() && !m.cu_k.given() &&
         m.shown.data() == nullptr;
}

}  // namespace

TEST_CASE("without a word a mask hides nothing", "[mask]") {
  REQUIRE(plain(mask()));
  REQUIRE(plain(full()));
  mask m = causal();
  REQUIRE(m.is_causal);
  m.is_causal = false;
  REQUIRE(plain(m));
}

TEST_CASE("each step of the chain sets its own field and no other", "[mask]") {
  const std::vector<std::int32_t> list{0, 1};
  const std::vector<std::int64_t> other{0, 2};
  const bool shown[1] = {true};
  const tensor_view<const bool, 4> view(shown, {1, 1, 1, 1});

  mask m = full().window(3, 5);
  REQUIRE((m.left == 3 && m.right == 5));
  m.left = m.right = mask::unlimited;
  REQUIRE(plain(m));

  m = full().always_visible(6);
  REQUIRE(m.first_keys == 6);
  m.first_keys = 0;
  REQUIRE(plain(m));

  m = full().top_left();
  REQUIRE(m.align == heed::alignment::top_left);
  m.align = heed::alignment::bottom_right;
  REQUIRE(plain(m));

  m = full().query_starts(list);
  REQUIRE((m.query_start.size() == 2 && m.query_start[1] == 1));
  m.query_start = {};
  REQUIRE(plain(m));

  m = full().key_lengths(list);
  REQUIRE((m.key_length.size() == 2 && m.key_length[1] == 1));
  m.key_length = {};
  REQUIRE(plain(m));

  m = full().key_starts(other);
  REQUIRE((m.key_start.size() == 2 && m.key_start[1] == 2));
  m.key_start = {};
  REQUIRE(plain(m));

  m = full().packed(list, other);
  REQUIRE((m.cu_q[1] == 1 && m.cu_k[1] == 2));
  m.cu_q = m.cu_k = {};
  REQUIRE(plain(m));

  m = full().visible(view);
  REQUIRE((m.shown.data() == shown && m.shown.extents() == heed::shape<4>{1, 1, 1, 1}));
  m.shown = {};
  REQUIRE(plain(m));
}

TEST_CASE("steps add up in any order and leave their source alone", "[mask]") {
  const std::vector<std::int64_t> lengths{5, 9};
  const mask base = causal();
  const mask a = base.window(7, 0).key_lengths(lengths).top_left().always_visible(2);
  const mask b = heed::window(7, 0).always_visible(2).top_left().key_lengths(lengths);
  REQUIRE((a.is_causal && !b.is_causal));
  for (const mask& m : {a, b}) {
    REQUIRE((m.left == 7 && m.right == 0 && m.first_keys == 2 && m.key_length[1] == 9));
    REQUIRE(m.align == heed::alignment::top_left);
  }
  REQUIRE((base.left == mask::unlimited && !base.key_length.given()));
  // Said twice, the last word counts.
  REQUIRE(a.window(1, 2).right == 2);
}

TEST_CASE("windows of any size leave room for position arithmetic", "[mask]") {
  constexpr index largest = std::numeric_limits<index>::max();
  const mask m = full().window(largest, largest);
  REQUIRE((m.left == mask::unlimited && m.right == mask::unlimited));
  const index longest = index{1} << 48;  // more tokens than any memory holds
  REQUIRE(longest + m.right + longest > longest);
  REQUIRE(-longest - m.left < -longest);
  REQUIRE(full().window(0, 0).left == 0);
}

TEST_CASE("negative sizes are refused", "[mask]") {
  REQUIRE_THROWS_WITH(full().window(-1, 0),
                      Equals("heed: mask::window: left is -1 and right is 0, expected both >= 0"));
  REQUIRE_THROWS_AS(causal().window(0, -2), heed::shape_error);
  REQUIRE_THROWS_AS(heed::window(-3, -2), heed::shape_error);
  REQUIRE_THROWS_WITH(full().always_visible(-7),
                      Equals("heed: mask::always_visible: n is -7, expected >= 0"));
}

TEST_CASE("index lists borrow", "[mask]") {
  std::vector<std::int32_t> list{4, 5, 6};
  const index_list borrowed(list);
  list[1] = -50;
  REQUIRE(borrowed[1] == -50);
  const index_list copy = borrowed;
  REQUIRE((copy.given() && copy.size() == 3 && copy[2] == 6));

  std::int64_t array[2] = {1, 2};
  REQUIRE(index_list(array)[1] == 2);
  // A list without entries is given all the same: a batch of 0.
  REQUIRE(index_list(std::vector<std::int32_t>()).given());
  REQUIRE(index_list(std::span<const std::int64_t>()).given());
}

}  // namespace heed_test
