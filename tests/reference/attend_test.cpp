#include "heed/reference/attend.hpp"

#include <cmath>

#include "reference/small_call.hpp"

// A mechanism that lives elsewhere: a slope on distances, as a user would write it.
namespace elsewhere {

struct slope {
  double value;
};
constexpr heed::place reference_place(const slope&) {
  return heed::place::logits;
}
template <class T>
void apply_reference(const slope& m, heed::reference::state<T>& s) {
  for (heed::index h = 0; h < s.call.Hq; ++h)
    for (heed::index i = 0; i < s.seq.T; ++i)
      for (heed::index j = 0; j < s.seq.S; ++j) {
        s.entries(h, i, j) += T(m.value) * T(j - s.position(i));
      }
}

// Names its place as a member, and writes where nothing is visible.
struct flat {
  static constexpr heed::place where = heed::place::probs;
  bool on;
  bool active() const { return on; }
};
template <class T>
void apply_reference(const flat&, heed::reference::state<T>& s) {
  for (heed::index h = 0; h < s.call.Hq; ++h)
    for (heed::index i = 0; i < s.seq.T; ++i)
      for (heed::index j = 0; j < s.seq.S; ++j) s.entries(h, i, j) = 1;
}

}  // namespace elsewhere

namespace heed_test {

TEST_CASE("reference attend: takes a user's mechanism") {
  auto own = small_call::random(1, 2, 4, 6, 1, 1, 3, 2);
  auto known = small_call::random(1, 2, 4, 6, 1, 1, 3, 2);
  const std::vector<double> slopes{0.25};
  own.options.mask = known.options.mask = heed::causal();
  own.run(elsewhere::slope{0.25});
  known.run(heed::alibi{slopes});
  CHECK(own.out.elements == known.out.elements);
  CHECK(own.lse.elements == known.lse.elements);
}

TEST_CASE("reference attend: what a stage writes to invisible entries is undone") {
  small_call c(1, 3, 3, 1, 1, 1, 1);
  c.v.elements = {1, 2, 4};
  c.options.mask = heed::causal();
  CHECK(c.run(elsewhere::flat{true}).out.elements == std::vector<double>{1, 3, 7});
  CHECK(c.run(elsewhere::flat{false}).out(0, 1, 0, 0) == 1.5);  // not active: not there
}

TEST_CASE("reference attend: sorts into places, keeps the order within one") {
  auto a = small_call::random(2, 1, 5, 5, 2, 2, 4, 2);
  auto b = small_call::random(2, 1, 5, 5, 2, 2, 4, 2);
  auto c = small_call::random(2, 1, 5, 5, 2, 2, 4, 2);
  for (auto* call : {&a, &b, &c}) call->options.mask = heed::causal();
  a.run(heed::rope{}, heed::softcap{0.5}, heed::alibi{});
  b.run(heed::softcap{0.5}, heed::alibi{}, heed::rope{});
  c.run(heed::rope{}, heed::alibi{}, heed::softcap{0.5});
  CHECK(a.out.elements == b.out.elements);
  CHECK_FALSE(close(a.out, c.out, 1e-3));
  heed::reference::steps<double> list;
  list.add(heed::softcap{0.5}).add(heed::alibi{}).add(heed::rope{});
  CHECK(c.run(list).out.elements == a.out.elements);
}

TEST_CASE("reference attend: any scalar type, any layout") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    random_problem p(seed, {.longest = 12});
    CAPTURE(seed, p.text());
    const heed::problem& e = p.call;
    const auto slopes = p.tensor<1>({e.Hq});
    const heed::shape<4> extents{e.B, e.T, e.Hq, e.Dv};
    twin<4> out(extents, layout::heads_outside);
    twin<3> lse({e.B, e.T, e.Hq}, layout::every_second);
    heed::reference::attend<double>(p.q.read<double>(), p.k.read<double>(), p.v.read<double>(),
                                    out.view<double>(), {.mask = p.mask, .lse = lse.view<double>()},
                                    heed::alibi{}, heed::sinks{slopes.read<double>()});
    heed::reference::attend<float>(p.q.read<float>(), p.k.read<float>(), p.v.read<float>(),
                                   out.view<float>(), {.mask = p.mask, .lse = lse.view<float>()},
                                   heed::alibi{}, heed::sinks{slopes.read<float>()});
    CHECK(relative_error(out.read<float>(), out.read<double>(), 1e-2) < 2e-6);
    CHECK(relative_error(lse.read<float>(), lse.read<double>(), 1.0) < 1e-6);

    const auto widen = [](const twin<4>& from, std::vector<long double>& to) {
      for_each_index<4>(from.extents(),
                        [&](auto... at) { to.push_back(from.read<double>()(at...)); });
      return heed::tensor_view<const long double, 4>(to, from.extents());
    };
    std::vector<long double> q, k, v, o(static_cast<std::size_t>(out.read<double>().size()));
    const heed::tensor_view<long double, 4> long_out(o, extents);
    heed::reference::attend<long double>(widen(p.q, q), widen(p.k, k), widen(p.v, v), long_out,
                                         {.mask = p.mask}, heed::alibi{},
                                         heed::sinks{slopes.read<double>()});
    CHECK(relative_error(out.read<double>(), long_out, 1e-2) < 1e-14);
  }
}

TEST_CASE("reference attend: a packed batch equals its pieces as calls of their own") {
  random_limits limits{.longest = 16, .newer_keys = false};
  index packed = 0;
  for (std::uint64_t seed = 100; packed < 8; ++seed) {
    random_problem p(seed, limits);
    if (p.kind != mask_kind::packed) continue;
    ++packed;
    CAPTURE(seed, p.text());
    const heed::problem& e = p.call;
    const auto log_f = p.tensor<3>({1, e.S, e.Hq}), beta = p.tensor<3>({1, e.S, e.Hkv});
    const auto w = p.tensor<4>({1, e.S, e.Hkv, e.D});
    const auto table = p.tensor<2>({e.D, 5});
    const auto kernel = p.tensor<3>({e.Hq, 2, 3});
    const auto run = [&](auto q, auto k, auto v, auto out, auto ww, auto bb, auto ff,
                         const heed::mask& m) {
      heed::reference::attend<double>(q, k, v, out, {.mask = m}, heed::path{ww, bb},
                                      heed::cope{table.read<double>()}, heed::fox{ff},
                                      heed::conv{kernel.read<double>()},
                                      heed::after{heed::conv{kernel.read<double>()}});
    };
    twin<4> whole({1, e.T, e.Hq, e.Dv}, layout::contiguous), parts = whole;
    const auto q = p.q.read<double>(), k = p.k.read<double>(), v = p.v.read<double>();
    run(q, k, v, whole.view<double>(), w.read<double>(), beta.read<double>(), log_f.read<double>(),
        p.mask);
    const heed::mask plain = p.mask.packed({}, {});
    for (index n = 0; n + 1 < p.mask.cu_q.size(); ++n) {
      const index q0 = p.mask.cu_q[n], q1 = p.mask.cu_q[n + 1];
      const index k0 = p.mask.cu_k[n], k1 = p.mask.cu_k[n + 1];
      run(q.slice(1, q0, q1), k.slice(1, k0, k1), v.slice(1, k0, k1),
          parts.view<double>().slice(1, q0, q1), w.read<double>().slice(1, k0, k1),
          beta.read<double>().slice(1, k0, k1), log_f.read<double>().slice(1, k0, k1), plain);
    }
    CHECK(relative_error(whole.read<double>(), parts.read<double>()) == 0);
  }
}

TEST_CASE("reference attend: names what does not fit, and writes nothing") {
  small_call c(2, 3, 4, 4, 2, 5, 6);
  const auto q = c.q.view(), k = c.k.view(), v = c.v.view(), out = c.out.view();
  const auto message = [&](auto qq, auto kk, auto vv, auto oo, const heed::mask& m = {}) {
    try {
      heed::reference::attend<double>(qq, kk, vv, oo, {.mask = m});
    } catch (const heed::shape_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  using view = heed::tensor_view<double, 4>;
  std::vector<double> x(500);
  const auto other = [&](index a, index b, index d, index e) { return view(x, {a, b, d, e}); };
  CHECK(message(q, other(2, 4, 2, 7), v, out) ==
        "heed: attend: k: axis 3 (head size) is 7, expected 5");
  CHECK(message(q, other(1, 4, 2, 5), v, out) ==
        "heed: attend: k: axis 0 (batch) is 1, expected 2");
  CHECK(message(q, other(2, 4, 3, 5), v, out) ==
        "heed: attend: k: axis 2 (key heads) is 3, expected a divisor of the 4 query heads");
  CHECK(message(q, k, other(2, 3, 2, 6), out) == "heed: attend: v: axis 1 (keys) is 3, expected 4");
  CHECK(message(q, k, v, other(2, 3, 4, 5)) ==
        "heed: attend: out: axis 3 (value head size) is 5, expected 6");
  CHECK(message(q, k, v, view(x, {2, 3, 4, 6}, {0, 24, 6, 1})) ==
        "heed: attend: out: axis 0 has stride 0 over 2 elements; an output needs a place for each");
  CHECK(message(other(2, 3, 4, 0), k, v, out) ==
        "heed: attend: q: axis 3 (head size) is 0, expected at least 1");

  const std::vector<std::int32_t> three{0, 1, 2}, two{1, 5}, cu_q{0, 3}, cu_k{0, 4}, cu_bad{0, 3};
  CHECK(message(q, k, v, out, heed::full().key_lengths(three)) ==
        "heed: mask: key_lengths: has length 3, expected 2 (one for each sequence)");
  CHECK(message(q, k, v, out, heed::full().key_starts(two)) ==
        "heed: mask: key_starts: entry 1 is 5, expected 0 to 4 (keys)");
  CHECK(message(q, k, v, out, heed::full().packed(cu_q, cu_k)) ==
        "heed: mask: packed: q: axis 0 (batch) is 2, expected 1");
  CHECK(message(q.slice(0, 0, 1), k.slice(0, 0, 1), v.slice(0, 0, 1), out.slice(0, 0, 1),
                heed::full().packed(cu_q, cu_bad)) ==
        "heed: mask: cu_keys: ends at 3, expected 4 (keys)");
  CHECK(message(q, k, v, out, heed::full().packed(cu_q, cu_k).key_lengths(two)) ==
        "heed: mask: packed: cannot be combined with key_lengths, key_starts or query_starts");
  for (const double o : c.out.elements) CHECK(std::isnan(o));
}

}  // namespace heed_test
