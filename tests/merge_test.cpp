// merge: two parts, many, empty ones; against one call over all keys.
#include "heed/merge.hpp"

#include <vector>

#include "catch.hpp"
#include "heed/attend.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "random_problem.hpp"

namespace {

using heed::index;
using heed_test::layout;
using heed_test::random_source;
using heed_test::twin;

constexpr double infinity = std::numeric_limits<double>::infinity();

// Queries against keys that are cut in pieces.
struct cut_keys {
  index B = 2, T = 5, S = 40, H = 4, Hkv = 2, D = 12, Dv = 7;
  random_source random{7};
  twin<4> q = normal({B, T, H, D}), k = normal({B, S, Hkv, D}), v = normal({B, S, Hkv, Dv});

  twin<4> normal(const heed::shape<4>& extents) {
    twin<4> t(extents, layout::fused);
    t.fill([&] { return random.normal(); });
    return t;
  }
  struct result {
    twin<4> out;
    twin<3> lse;
    heed::partial<const float> view() const {
      return {out.template read<float>(), lse.template read<float>()};
    }
  };
  // Keys [from, to) of all.
  result over(index from, index to) {
    result r{twin<4>({B, T, H, Dv}, layout::every_second), twin<3>({B, T, H}, layout::contiguous)};
    heed::attend(q.read<float>(), k.read<float>().slice(1, from, to),
                 v.read<float>().slice(1, from, to), r.out.view<float>(),
                 {.lse = r.lse.view<float>()});
    return r;
  }
};

template <int Rank>
bool same_bits(const heed::tensor_view<const float, Rank>& a,
               const heed::tensor_view<const float, Rank>& b) {
  bool same = true;
  heed_test::for_each_index<Rank>(a.extents(), [&](auto... at) { same &= a(at...) == b(at...); });
  return same;
}

}  // namespace

TEST_CASE("two parts are as one") {
  cut_keys all;
  const auto whole = all.over(0, 40);
  auto a = all.over(0, 11);
  const auto b = all.over(11, 40);
  heed::merge(a.out.view<float>(), a.lse.view<float>(), b.out.read<float>(), b.lse.read<float>());
  CHECK(heed_test::relative_error(a.out.read<float>(), whole.out.read<float>()) < 1e-6);
  CHECK(heed_test::relative_error(a.lse.read<float>(), whole.lse.read<float>()) < 1e-6);
}

TEST_CASE("many parts are as one, empty ones change nothing, and of none there is nothing") {
  cut_keys all;
  const auto whole = all.over(0, 40);
  std::vector<cut_keys::result> pieces;
  for (heed::index n = 0; n < 5; ++n) pieces.push_back(all.over(n * 8, n * 8 + 8));
  std::vector<heed::partial<const float>> parts;
  for (const auto& p : pieces) parts.push_back(p.view());
  auto joined = all.over(0, 0);
  heed::merge<float>(parts, joined.out.view<float>(), joined.lse.view<float>());
  CHECK(heed_test::relative_error(joined.out.read<float>(), whole.out.read<float>()) < 1e-6);
  CHECK(heed_test::relative_error(joined.lse.read<float>(), whole.lse.read<float>()) < 1e-6);

  const auto nothing = all.over(3, 3);
  parts.insert(parts.begin() + 2, nothing.view());
  parts.push_back(nothing.view());
  auto again = all.over(0, 0);
  heed::merge<float>(parts, again.out.view<float>(), again.lse.view<float>());
  CHECK(same_bits(again.out.read<float>(), joined.out.read<float>()));
  CHECK(same_bits(again.lse.read<float>(), joined.lse.read<float>()));

  heed::merge<float>({}, again.out.view<float>(), again.lse.view<float>());
  CHECK(same_bits(again.out.read<float>(), nothing.out.read<float>()));
  CHECK(same_bits(again.lse.read<float>(), nothing.lse.read<float>()));
}

TEST_CASE("an empty part on either side leaves the other, bit by bit") {
  cut_keys all;
  const auto x = all.over(0, 40), empty = all.over(0, 0);
  auto left = all.over(0, 40), right = all.over(0, 0), both = all.over(0, 0);
  CHECK(static_cast<double>(empty.lse.read<float>()(1, 2, 3)) == -infinity);
  heed::merge(left.out.view<float>(), left.lse.view<float>(), empty.out.read<float>(),
              empty.lse.read<float>());
  CHECK(same_bits(left.out.read<float>(), x.out.read<float>()));
  CHECK(same_bits(left.lse.read<float>(), x.lse.read<float>()));
  heed::merge(right.out.view<float>(), right.lse.view<float>(), x.out.read<float>(),
              x.lse.read<float>());
  CHECK(same_bits(right.out.read<float>(), x.out.read<float>()));
  CHECK(same_bits(right.lse.read<float>(), x.lse.read<float>()));
  heed::merge(both.out.view<float>(), both.lse.view<float>(), empty.out.read<float>(),
              empty.lse.read<float>());
  CHECK(same_bits(both.out.read<float>(), empty.out.read<float>()));
  CHECK(static_cast<double>(both.lse.read<float>()(0, 0, 0)) == -infinity);
}

TEST_CASE("parts whose log-sum-exps lie far apart") {
  float out[2] = {1, 2}, other[2] = {5, 6}, lse[1] = {1000}, other_lse[1] = {1000};
  const auto merge = [&] {
    heed::merge(heed::tensor_view<float, 4>(out, {1, 1, 1, 2}),
                heed::tensor_view<float, 3>(lse, {1, 1, 1}),
                heed::tensor_view<const float, 4>(other, {1, 1, 1, 2}),
                heed::tensor_view<const float, 3>(other_lse, {1, 1, 1}));
  };
  merge();
  CHECK(static_cast<double>(out[0]) == 3);
  CHECK(static_cast<double>(lse[0]) == Approx(1000 + std::log(2.0)));
  other_lse[0] = -1000;
  merge();
  CHECK(static_cast<double>(out[1]) == 4);
}

TEST_CASE("what cannot be merged is refused in a sentence") {
  using Catch::Matchers::ContainsSubstring;
  cut_keys all;
  auto a = all.over(0, 20);
  const auto b = all.over(20, 40);
  std::vector<float> numbers(4 * 3 * 3, 0.1F);
  const heed::tensor_view<const float, 3> kernel(numbers.data(), {4, 3, 3});
  const auto merge = [&](const auto&... mechanisms) {
    heed::merge(a.out.view<float>(), a.lse.view<float>(), b.out.read<float>(), b.lse.read<float>(),
                mechanisms...);
  };
  CHECK_THROWS_WITH(merge(heed::after{heed::conv{kernel}}), ContainsSubstring("after softmax"));
  CHECK_THROWS_AS(merge(heed::mta{kernel}), heed::shape_error);
  CHECK_NOTHROW(merge(heed::after<heed::conv<float>>{}, heed::fox<float>{}, heed::sinks<float>{}));
  CHECK_THROWS_WITH(heed::merge(a.out.view<float>(), a.lse.view<float>(),
                                b.out.read<float>().slice(1, 0, 2), b.lse.read<float>()),
                    ContainsSubstring("axis 1 (queries) is 2, expected 5"));
  CHECK_THROWS_AS(heed::merge(a.out.view<float>(), a.lse.view<float>(), a.out.read<float>(),
                              b.lse.read<float>()),
                  heed::shape_error);
}
