// Gradients of CoPE: differences, and what masks, kinks and threads ask for.
#include "heed/parallel.hpp"
#include "mechanisms/cope_kinks.hpp"

using namespace heed_test;
using heed::cope_gates;
using heed::cope_scale;

namespace {

using heed::index;

// One sequence, one head, in double, with all gradients.
struct small_call {
  index T, S, D, npos;
  cope_gates gates;
  double scale = 0;  // 0: 1 / sqrt(D)
  std::vector<double> q, k, v, u, e, dout;
  std::vector<double> dq, dk, dv, du, de, out, lse;

  small_call(index rows, index keys, index head, index positions, cope_gates from)
      : T(rows), S(keys), D(head), npos(positions), gates(from) {
    random_source random(3);
    for (auto [x, n] : {std::pair(&q, T * D),
                        {&k, S * D},
                        {&v, S * D},
                        {&u, S * D},
                        {&e, D * npos},
                        {&dout, T * D}}) {
      for (index i = 0; i < n; ++i) x->push_back(random.normal());
    }
  }
  void run(heed::executor_ref executor = {}) {
    const auto like = [](const std::vector<double>& x) { return std::vector<double>(x.size(), 7); };
    dq = like(q), dk = like(k), dv = like(v), du = like(u), de = like(e), out = like(dout);
    lse.assign(static_cast<std::size_t>(T), 0);
    const auto rows = [&](std::vector<double>& x) {
      return heed::tensor_view<double, 4>(x.data(), {1, static_cast<index>(x.size()) / D, 1, D});
    };
    heed::cope<double> m(heed::tensor_view<double, 2>(e.data(), {D, npos}), cope_scale::divided,
                         gates);
    heed::cope_grad<double> d;
    d.embedding = heed::tensor_view<double, 2>(de.data(), {D, npos});
    if (gates == cope_gates::separate_keys) {
      m.gate_keys = rows(u);
      d.gate_keys = rows(du);
    }
    heed::attend_options<double> options{
        .mask = heed::causal(), .executor = executor, .tuning = {5, 7}};
    if (scale != 0) options.scale = scale;
    options.lse = {lse.data(), {1, T, 1}};
    const auto stage = heed::with_grad(m, d);
    heed::attend(rows(q), rows(k), rows(v), rows(out), options, stage);
    heed::attend_grad(rows(q), rows(k), rows(v), rows(out), options.lse, rows(dout),
                      {.q = rows(dq), .k = rows(dk), .v = rows(dv)}, options, stage);
  }
  // Rows [from, to) of a gradient against another call's.
  static double distance(const std::vector<double>& a, const std::vector<double>& b,
                         std::size_t from, std::size_t to) {
    double worst = 0;
    for (std::size_t n = from; n < to; ++n) {
      const double difference = std::abs(a[n] - b[n]);
      if (!(difference <= worst)) worst = difference;
    }
    return worst;
  }
};

}  // namespace

TEST_CASE("cope: gradients on random calls under every mask") {
  int done = 0;
  for (std::uint64_t seed = 0; seed < 160; ++seed) {
    cope_call c(seed, {.longest = 16, .values_like_keys = seed % 3 == 0});
    auto make = [&]<class T>(T, gradient_memory<T>& to) {
      return std::tuple(cope_with_gradients(c.m, to));
    };
    if (!check_cope_differences(c, std::tuple<>(), make)) continue;
    INFO("seed " << seed << " " << c.x.text());
    const auto expected = gradients_of<double>(c.x, c.sizes, make);
    CHECK(gradient_distance(gradients_of<float>(c.x, c.sizes, make), expected) <= 5e-5);
    ++done;
  }
  CHECK(done >= 80);
}

TEST_CASE("cope: gate keys equal to the keys are the keys, at any scale") {
  for (const double scale : {0.0, 0.2, 1.7}) {
    small_call shared(23, 23, 6, 8, cope_gates::keys);
    small_call separate(23, 23, 6, 8, cope_gates::separate_keys);
    shared.scale = separate.scale = scale;
    separate.u = separate.k;
    shared.run();
    separate.run();
    for (std::size_t n = 0; n < separate.dk.size(); ++n) separate.dk[n] += separate.du[n];
    const std::size_t all = shared.out.size();
    CHECK(small_call::distance(separate.out, shared.out, 0, all) <= 1e-12);
    CHECK(small_call::distance(separate.dq, shared.dq, 0, all) <= 1e-12);
    CHECK(small_call::distance(separate.dk, shared.dk, 0, all) <= 1e-12);
    CHECK(small_call::distance(separate.de, shared.de, 0, shared.de.size()) <= 1e-12);
  }
}

TEST_CASE("cope: gates that only saturated positions count have gradient 0") {
  // One row; every gate is 0.9, so that the fifth key from the end is the first beyond 4.
  small_call c(1, 30, 4, 5, cope_gates::separate_keys);
  for (std::size_t n = 0; n < c.u.size(); ++n) c.u[n] = n % 4 == 0 ? 2 * std::log(9.0) : 0;
  c.q = {1, 0.3, -0.2, 0.5};
  c.run();
  for (std::size_t j = 0; j < 30; ++j) {
    for (std::size_t d = 0; d < 4; ++d) CHECK((c.du[4 * j + d] != 0) == (j > 25));
  }
  // Half-open gates at whole and half positions: no slope at the whole ones.
  small_call half(1, 30, 4, 40, cope_gates::separate_keys);
  for (double& x : half.u) x = 0;
  half.run();
  CHECK(half.du[4 * 29] != 0);
  // Key 0 is at position 15: its gate moves only itself.
  for (std::size_t d = 0; d < 4; ++d) CHECK(half.du[d] == 0);
  for (std::size_t d = 0; d < 4; ++d) CHECK(half.du[4 + d] != 0);
}

TEST_CASE("cope: NaN reaches only the gradients of what saw it") {
  for (const auto gates : {cope_gates::keys, cope_gates::separate_keys, cope_gates::values}) {
    small_call clean(20, 20, 5, 7, gates);
    clean.run();
    // Query 0 sees key 0 only.
    small_call row = clean;
    for (std::size_t d = 0; d < 5; ++d) row.q[d] = std::numeric_limits<double>::quiet_NaN();
    row.run();
    CHECK(std::isnan(row.dq[0]));
    for (auto pair : {std::pair(&row.dq, &clean.dq),
                      {&row.dk, &clean.dk},
                      {&row.dv, &clean.dv},
                      {&row.du, &clean.du}}) {
      if (gates != cope_gates::separate_keys && pair.first == &row.du) continue;
      CHECK(small_call::distance(*pair.first, *pair.second, 5, 100) <= 1e-12);
    }
    // The last key is seen by the last row only.
    small_call key = clean;
    for (std::size_t d = 95; d < 100; ++d) {
      key.k[d] = key.u[d] = key.v[d] = std::numeric_limits<double>::quiet_NaN();
    }
    key.run();
    CHECK(std::isnan(key.dq[95]));
    CHECK(small_call::distance(key.dq, clean.dq, 0, 95) <= 1e-12);
  }
}

TEST_CASE("cope: gradients are the same bits for any number of threads") {
  heed::thread_pool pool(3);
  for (std::uint64_t seed = 500; seed < 512; ++seed) {
    cope_call c(seed, {.longest = 60});
    auto make = [&]<class T>(T, gradient_memory<T>& to) {
      return std::tuple(cope_with_gradients(c.m, to));
    };
    const auto one = gradients_of<float>(c.x, c.sizes, make);
    const auto many = gradients_of<float>(c.x, c.sizes, make, pool);
    CHECK(gradient_distance(many, one) == 0);
  }
}
