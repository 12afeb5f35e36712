// What a call of attend_grad must survive, refuse or leave alone.
#include <cstring>
#include <limits>

#include "gradient.hpp"
#include "heed/heed.hpp"

namespace {

using heed::index;
using view4 = heed::tensor_view<float, 4>;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// A call of its own memory: B = 1, two query heads on one key head.
struct small_call {
  index T, S, D = 5, Dv = 3;
  heed::attend_options<float> options;
  std::vector<float> q, k, v, out, dout, lse, dq, dk, dv;

  small_call(index rows, index keys, const heed::mask& mask) : T(rows), S(keys) {
    heed_test::random_source random(5);
    const auto fill = [&](std::vector<float>& x, index size) {
      x.resize(static_cast<std::size_t>(size));
      for (float& e : x) e = static_cast<float>(random.normal());
    };
    fill(q, T * 2 * D);
    fill(k, S * D);
    fill(v, S * Dv);
    fill(dout, T * 2 * Dv);
    out.resize(dout.size());
    lse.resize(static_cast<std::size_t>(T * 2));
    dq.assign(q.size(), 7);
    dk.assign(k.size(), 7);
    dv.assign(v.size(), 7);
    options.mask = mask;
    options.tuning = {4, 3};
  }
  view4 queries(std::vector<float>& x) const { return {x.data(), {1, T, 2, D}}; }
  view4 keys(std::vector<float>& x) const { return {x.data(), {1, S, 1, D}}; }
  view4 values(std::vector<float>& x) const { return {x.data(), {1, S, 1, Dv}}; }
  view4 outputs(std::vector<float>& x) const { return {x.data(), {1, T, 2, Dv}}; }
  heed::tensor_view<float, 3> rows(std::vector<float>& x) const { return {x.data(), {1, T, 2}}; }

  heed::gradients<float> all() { return {queries(dq), keys(dk), values(dv), {}, false}; }
  template <class... M>
  void forward(const M&... m) {
    auto with_lse = options;
    with_lse.lse = rows(lse);
    heed::attend(queries(q), keys(k), values(v), outputs(out), with_lse, m...);
  }
  template <class... M>
  void backward(const heed::gradients<float>& g, const M&... m) {
    heed::attend_grad(queries(q), keys(k), values(v), outputs(out), rows(lse), outputs(dout), g,
                      options, m...);
  }
};

bool is_zero(const std::vector<float>& x, index begin, index end) {
  return std::all_of(x.begin() + begin, x.begin() + end, [](float e) { return e == 0; });
}
bool is_finite(const std::vector<float>& x) {
  return std::all_of(x.begin(), x.end(), [](float e) { return std::isfinite(e); });
}

// ALiBi that leaves keys out once it has made them small.
struct pruned_alibi : heed::alibi {
  static constexpr heed::hook hooks = heed::alibi::hooks | heed::hook::prunes;
  double tolerance = 0;
  heed::pruning prunes() const { return {tolerance, 0}; }
};

}  // namespace

TEST_CASE("Gradients leave out the panels that the forward sweep leaves out") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    heed_test::random_problem x(seed, {.longest = 5, .newer_keys = false});
    const heed::index T = 90, heads = 2, D = 8;
    auto q = x.tensor<4>({1, T, heads, D}), k = x.tensor<4>({1, T, 1, D}),
         v = x.tensor<4>({1, T, 1, D});
    const auto errors = [&](double tolerance) {
      const std::array<double, 2> slopes{0.2, 0.15};
      pruned_alibi decay;
      decay.slopes = slopes;
      decay.tolerance = tolerance;
      double worst = 0, change = 0;
      std::vector<double> exact(static_cast<std::size_t>(T * heads * D)), pruned = exact;
      heed::attend(q.view<double>(), k.view<double>(), v.view<double>(),
                   heed::tensor_view<double, 4>(exact.data(), {1, T, heads, D}),
                   {.mask = heed::causal(), .tuning = {8, 8}}, heed::alibi{slopes});
      heed::attend(q.view<double>(), k.view<double>(), v.view<double>(),
                   heed::tensor_view<double, 4>(pruned.data(), {1, T, heads, D}),
                   {.mask = heed::causal(), .tuning = {8, 8}}, decay);
      for (std::size_t n = 0; n < exact.size(); ++n)
        change = std::max(change, std::abs(exact[n] - pruned[n]));
      for (const auto& [tensor, error] : heed::reference::gradient_check(
               q.view<double>(), k.view<double>(), v.view<double>(),
               {.mask = heed::causal(), .tuning = {8, 8}}, {.seed = seed}, decay)) {
        worst = std::max(worst, error);
      }
      return std::pair(worst, change);
    };
    const auto [worst, change] = errors(0.2);
    CHECK(change > 1e-4);  // something was left out
    CHECK(worst < 1e-8);
  }
}

TEST_CASE("Keys that no row sees get exactly 0, and what they hold reaches nobody") {
  const std::vector<std::int64_t> starts{2}, lengths{9};
  small_call c(12, 12, heed::causal().key_starts(starts).key_lengths(lengths));
  c.forward(heed::alibi{});
  c.backward(c.all(), heed::alibi{});
  const auto dq = c.dq, dk = c.dk, dv = c.dv;
  for (const float strange : {not_a_number, std::numeric_limits<float>::infinity()}) {
    for (const heed::index j :
         {heed::index(0), heed::index(1), heed::index(9), heed::index(10), heed::index(11)}) {
      std::fill_n(c.k.begin() + j * c.D, c.D, strange);
      std::fill_n(c.v.begin() + j * c.Dv, c.Dv, strange);
    }
    c.forward(heed::alibi{});
    c.backward(c.all(), heed::alibi{});
    CHECK(is_zero(c.dk, 0, 2 * c.D));
    CHECK(is_zero(c.dk, 9 * c.D, 12 * c.D));
    CHECK(is_zero(c.dv, 0, 2 * c.Dv));
    CHECK(is_zero(c.dv, 9 * c.Dv, 12 * c.Dv));
    CHECK(is_zero(c.dq, 0, 2 * 2 * c.D));  // rows 0 and 1 see nothing
    for (std::size_t n = 0; n < dq.size(); ++n) REQUIRE(c.dq[n] == Approx(dq[n]).margin(1e-6));
    for (std::size_t n = 0; n < dk.size(); ++n) REQUIRE(c.dk[n] == Approx(dk[n]).margin(1e-6));
    for (std::size_t n = 0; n < dv.size(); ++n) REQUIRE(c.dv[n] == Approx(dv[n]).margin(1e-6));
  }
}

TEST_CASE("A NaN in a query or in dO reaches the keys that its row sees, and no others") {
  for (const bool in_query : {true, false}) {
    small_call c(10, 10, heed::window(2, 0));
    c.forward();
    (in_query ? c.q : c.dout)[static_cast<std::size_t>(in_query ? 6 * 2 * c.D : 6 * 2 * c.Dv)] =
        not_a_number;
    if (in_query) c.forward();
    c.backward(c.all());
    const std::vector<float> before(c.dk.begin(), c.dk.begin() + 4 * c.D);
    const std::vector<float> behind(c.dk.begin() + 7 * c.D, c.dk.end());
    CHECK(is_finite(before));
    CHECK(is_finite(behind));
    CHECK(std::isnan(c.dk[static_cast<std::size_t>(5 * c.D)]));
    const std::vector<float> rows(c.dq.begin(), c.dq.begin() + 6 * 2 * c.D);
    CHECK(is_finite(rows));
  }
}

TEST_CASE("A query of an empty row may hold anything") {
  const std::vector<std::int64_t> starts{4};
  small_call c(8, 8, heed::causal().key_starts(starts));
  std::fill_n(c.q.begin(), 4 * 2 * c.D, not_a_number);
  std::fill_n(c.dout.begin(), 4 * 2 * c.Dv, not_a_number);
  c.forward();
  c.backward(c.all());
  CHECK(is_finite(c.dk));
  CHECK(is_finite(c.dv));
  CHECK(is_zero(c.dq, 0, 4 * 2 * c.D));
  CHECK(is_finite(c.dq));
}

TEST_CASE("No rows, no keys, no values: gradients 0") {
  for (const auto& [T, S] : {std::pair<heed::index, heed::index>{0, 5}, {5, 0}, {0, 0}}) {
    small_call c(T, S, heed::full());
    c.forward();
    c.backward(c.all());
    CHECK(is_zero(c.dq, 0, static_cast<heed::index>(c.dq.size())));
    CHECK(is_zero(c.dk, 0, static_cast<heed::index>(c.dk.size())));
    CHECK(is_zero(c.dv, 0, static_cast<heed::index>(c.dv.size())));
  }
  small_call c(5, 5, heed::causal());
  c.Dv = 0;
  std::vector<float> none;
  c.v = c.dv = c.out = c.dout = none;
  c.forward();
  auto g = c.all();
  g.v = {};
  c.backward(g);
  CHECK(is_zero(c.dq, 0, static_cast<heed::index>(c.dq.size())));
}

TEST_CASE("Every gradient can be left out, alone or with others, and changes no other") {
  small_call c(13, 13, heed::causal());
  c.forward();
  c.backward(c.all());
  const auto dq = c.dq, dk = c.dk, dv = c.dv;
  for (unsigned which = 0; which < 8; ++which) {
    std::fill(c.dq.begin(), c.dq.end(), 7.0F);
    std::fill(c.dk.begin(), c.dk.end(), 7.0F);
    std::fill(c.dv.begin(), c.dv.end(), 7.0F);
    const std::vector<float> sevens_q = c.dq, sevens_k = c.dk, sevens_v = c.dv;
    heed::gradients<float> g;
    if ((which & 1) != 0) g.q = c.queries(c.dq);
    if ((which & 2) != 0) g.k = c.keys(c.dk);
    if ((which & 4) != 0) g.v = c.values(c.dv);
    c.backward(g);
    CHECK(c.dq == ((which & 1) != 0 ? dq : sevens_q));
    CHECK(c.dk == ((which & 2) != 0 ? dk : sevens_k));
    CHECK(c.dv == ((which & 4) != 0 ? dv : sevens_v));
  }
}

TEST_CASE("Gradients are added where that is asked for") {
  small_call c(9, 11, heed::causal());
  c.forward();
  c.backward(c.all());
  const auto dq = c.dq, dk = c.dk, dv = c.dv;
  auto g = c.all();
  g.accumulate = true;
  c.backward(g);
  for (std::size_t n = 0; n < dq.size(); ++n) REQUIRE(c.dq[n] == Approx(2 * dq[n]).margin(1e-6));
  for (std::size_t n = 0; n < dk.size(); ++n) REQUIRE(c.dk[n] == Approx(2 * dk[n]).margin(1e-6));
  for (std::size_t n = 0; n < dv.size(); ++n) REQUIRE(c.dv[n] == Approx(2 * dv[n]).margin(1e-6));
}

TEST_CASE("The same bits for any number of threads, and no allocation the second time") {
  const auto parameters = [](heed_test::random_problem& x) {
    auto e = x.tensor<2>({x.call.D, 6});
    auto s = x.tensor<1>({x.call.Hq});
    return [e, s]<class T>(T, heed_test::gradient_memory<T>& to) {
      return std::tuple(heed::with_grad(heed::relative<T>{e.template read<T>()},
                                        {to.like("e", e.template read<T>())}),
                        heed::with_grad(heed::sinks<T>{s.template read<T>()},
                                        {to.like("s", s.template read<T>())}));
    };
  };
  heed::thread_pool two(2), three(3);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    heed_test::random_problem x(seed);
    auto make = parameters(x);
    const auto one = heed_test::gradients_of<float>(x, {5, 7}, make);
    const auto other = heed_test::gradients_of<float>(x, {5, 7}, make, two);
    const auto third = heed_test::gradients_of<float>(x, {5, 7}, make, three);
    for (const auto& [name, values] : one.tensors()) {
      const std::size_t bytes = values.size() * sizeof(float);
      REQUIRE(
          (bytes == 0 || std::memcmp(values.data(), other.tensors().at(name).data(), bytes) == 0));
      REQUIRE(
          (bytes == 0 || std::memcmp(values.data(), third.tensors().at(name).data(), bytes) == 0));
    }
  }
  small_call c(40, 40, heed::causal());
  heed::workspace workspace;
  c.options.workspace = &workspace;
  c.forward();
  c.backward(c.all());
  const std::size_t held = workspace.capacity();
  c.backward(c.all());
  CHECK(workspace.capacity() == held);
}

TEST_CASE("What does not fit is refused before anything is written") {
  small_call c(6, 6, heed::causal());
  c.forward();
  const std::vector<float> sevens = c.dq;
  const auto refused = [&](const heed::gradients<float>& g, const char* why) {
    CHECK_THROWS_WITH(c.backward(g), why);
    CHECK(c.dq == sevens);
  };
  auto g = c.all();
  g.k = c.keys(c.dk).slice(1, 0, 5);
  refused(g, "heed: attend_grad: gradients.k: axis 1 is 5, expected 6");
  g = c.all();
  g.q = c.queries(c.q);
  refused(g,
          "heed: attend_grad: gradients.q shares elements with q; an output needs memory of its "
          "own");
  g = c.all();
  g.v = view4(c.dk.data(), c.values(c.dv).extents());
  refused(g,
          "heed: attend_grad: gradients.v shares elements with gradients.k; an output needs "
          "memory of its own");
  g = c.all();
  g.q = view4(c.dq.data(), {1, 6, 2, 5}, {60, 0, 5, 1});
  refused(g,
          "heed: attend_grad: gradients.q: axis 1 has stride 0 over 6 elements; an output needs "
          "a place for each");
  std::vector<float> short_lse(10);
  CHECK_THROWS_WITH(heed::attend_grad(c.queries(c.q), c.keys(c.k), c.values(c.v), c.outputs(c.out),
                                      heed::tensor_view<float, 3>(short_lse.data(), {1, 5, 2}),
                                      c.outputs(c.dout), c.all()),
                    "heed: attend_grad: lse: axis 1 (queries) is 5, expected 6");
}
