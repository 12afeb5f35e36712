// CoPE against the reference: random calls under every mask, and the cases that other
// implementations got wrong.
#include "heed/mechanisms/cope.hpp"

#include <cmath>

#include "allocations.hpp"
#include "compare.hpp"
#include "guarded.hpp"
#include "mechanisms/cope_calls.hpp"

using namespace heed_test;

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// B = 1, one head: the rows of a [n, d] list as a [1, n, 1, d] view.
heed::tensor_view<const float, 4> rows_of(const std::vector<float>& x, heed::index d) {
  return {x.data(), {1, static_cast<heed::index>(x.size()) / d, 1, d}};
}
std::vector<float> normals(std::uint64_t seed, heed::index n) {
  random_source random(seed);
  std::vector<float> x;
  for (heed::index i = 0; i < n; ++i) x.push_back(static_cast<float>(random.normal()));
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("cope equals the reference on random calls", "", float, double) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    random_problem p(seed, {.values_like_keys = seed % 3 == 0});
    const cope_parameters m(p);
    check_against_reference<TestType>(
        p, all_tunings[seed % all_tunings.size()],
        [&](auto zero) { return std::tuple(m.of<decltype(zero)>()); }, 3);
  }
}

TEMPLATE_TEST_CASE("cope equals the reference over several row blocks and panels", "", float,
                   double) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    random_problem p(seed, {.longest = 420, .values_like_keys = seed % 3 == 0});
    const cope_parameters m(p);
    check_against_reference<TestType>(
        p, {}, [&](auto zero) { return std::tuple(m.of<decltype(zero)>()); }, 8);
  }
}

TEST_CASE("cope: the caller's scale is that of the logits and of separate gates") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    random_problem p(seed, {.values_like_keys = true});
    const cope_parameters m(p);
    std::vector<double> found(
        static_cast<std::size_t>(p.call.B * p.call.T * p.call.Hq * p.call.Dv));
    std::vector<double> expected(found.size());
    const heed::shape<4> extents{p.call.B, p.call.T, p.call.Hq, p.call.Dv};
    heed::attend_options<double> options{.mask = p.mask, .scale = 0.37};
    const heed::tensor_view<double, 4> out(found, extents), wanted(expected, extents);
    heed::attend(p.q.read<double>(), p.k.read<double>(), p.v.read<double>(), out, options,
                 m.of<double>());
    heed::reference::attend(p.q.read<double>(), p.k.read<double>(), p.v.read<double>(), wanted,
                            options, m.of<double>());
    INFO(p.text());
    CHECK(relative_error(out, wanted, 0.1) <= 3e-13);
  }
}

TEST_CASE("cope at the clamp reads nothing beyond the table") {
  // Separate gate keys that open every gate: p = i - j + 1, at most npos - 1.
  const heed::index T = 40, D = 3;
  for (const guard side : {guard::after_last, guard::before_first}) {
    for (const heed::index npos : {1, 4, 16, 32, 33, 64}) {
      guarded_tensor<float, 2> table({D, npos}, side);
      guarded_tensor<float, 4> u({1, T, 1, D}, side), q({1, T, 1, D}, side);
      random_source random(5);
      table.fill([&](auto...) { return random.normal(); });
      q.fill([&](auto...) { return 1 + random.uniform(); });
      u.fill([&](auto...) { return 50.0; });
      const auto k = normals(1, T * D), v = normals(2, T * 2);
      std::vector<float> out(static_cast<std::size_t>(T * 2));
      heed::attend(q.read(), rows_of(k, D), rows_of(v, 2),
                   heed::tensor_view<float, 4>(out, {1, T, 1, 2}), {.mask = heed::causal()},
                   heed::cope{table.read(), heed::cope_scale::undivided,
                              heed::cope_gates::separate_keys, u.read()});
      for (heed::index i = 0; i < T; ++i) {
        std::vector<double> logit;
        double sum = 0, expected = 0;
        for (heed::index j = 0; j <= i; ++j) {
          double x = 0;
          for (heed::index d = 0; d < D; ++d) {
            const double product = static_cast<double>(q.read()(0, i, 0, d));
            x += product * static_cast<double>(k[static_cast<std::size_t>(j * D + d)]) /
                 std::sqrt(static_cast<double>(D));
            x += product *
                 static_cast<double>(table.read()(d, std::min<heed::index>(npos - 1, i - j + 1)));
          }
          sum += std::exp(x);
          expected += std::exp(x) * static_cast<double>(v[static_cast<std::size_t>(2 * j)]);
        }
        CHECK(out[static_cast<std::size_t>(2 * i)] ==
              Catch::Approx(expected / sum).epsilon(1e-5).margin(1e-5));
      }
    }
  }
}

TEST_CASE("cope at whole positions gives the table's entry") {
  // Gate keys of 0: p = 0.5, 1, 1.5, ... from the newest key, up to 3.
  const heed::index T = 16;
  const std::vector<float> q(T, 1.0F), zero(T), e{0, 1, 4, 9};
  std::vector<float> v(static_cast<std::size_t>(T * T)), out(v);
  for (heed::index j = 0; j < T; ++j) v[static_cast<std::size_t>(j * T + j)] = 1;
  heed::attend(rows_of(q, 1), rows_of(zero, 1), rows_of(v, T),
               heed::tensor_view<float, 4>(out, {1, T, 1, T}), {.mask = heed::causal()},
               heed::cope{heed::tensor_view<const float, 2>(e, {1, 4}), heed::cope_scale::divided,
                          heed::cope_gates::separate_keys, rows_of(zero, 1)});
  const double z[] = {0.5, 1, 2.5, 4, 6.5, 9};
  for (heed::index i = 0; i < T; ++i) {
    const float* line = out.data() + i * T;
    for (heed::index back = 0; back <= i; ++back) {
      const double expected = z[std::min<heed::index>(back, 5)] - z[0];
      CHECK(std::log(static_cast<double>(line[i - back]) / static_cast<double>(line[i])) ==
            Catch::Approx(expected).margin(2e-6));
    }
  }
}

TEST_CASE("cope: keys hidden by padding on the left count nothing") {
  const heed::index T = 30, pad = 5, D = 8;
  for (const bool newer : {false, true}) {
    const auto q = normals(1, T * D), k = normals(2, T * D), v = normals(3, T * D),
               e = normals(4, D * 12);
    std::vector<float> padded_k(static_cast<std::size_t>(pad * D), std::nanf("")),
        padded_v(padded_k);
    padded_k.insert(padded_k.end(), k.begin(), k.end());
    padded_v.insert(padded_v.end(), v.begin(), v.end());
    std::vector<float> plain(q.size()), padded(q.size());
    const std::vector<std::int64_t> start{pad};
    const heed::mask mask = newer ? heed::full() : heed::causal();
    const heed::cope m{heed::tensor_view<const float, 2>(e, {D, 12})};
    heed::attend(rows_of(q, D), rows_of(k, D), rows_of(v, D),
                 heed::tensor_view<float, 4>(plain, {1, T, 1, D}), {.mask = mask}, m);
    heed::attend(rows_of(q, D), rows_of(padded_k, D), rows_of(padded_v, D),
                 heed::tensor_view<float, 4>(padded, {1, T, 1, D}),
                 {.mask = mask.key_starts(start)}, m);
    for (std::size_t n = 0; n < plain.size(); ++n) {
      CHECK(plain[n] == Catch::Approx(padded[n]).margin(2e-6));
    }
  }
}

TEST_CASE("cope: positions beyond 256 and 2048 keep their digits in float") {
  for (const heed::index npos : {300, 1200, 2601}) {
    const heed::index T = 2600, D = 4;
    random_problem p(3, {.longest = 3});
    p.call = {1, T, T, 1, 1, D, 2, 0.5};
    p.mask = heed::causal();
    p.q = twin<4>({1, T, 1, D}, layout::contiguous);
    p.k = twin<4>({1, T, 1, D}, layout::contiguous);
    p.v = twin<4>({1, T, 1, 2}, layout::contiguous);
    for (twin<4>* x : {&p.q, &p.k, &p.v}) x->fill([&] { return p.random.normal(); });
    // Gates near 0.9: the first components alone make logits of about 2.
    for (heed::index i = 0; i < T; ++i) {
      p.q.set(2, 0, i, 0, 0);
      p.k.set(2 + 0.1 * p.random.normal(), 0, i, 0, 0);
    }
    // One position makes logits differ by 1 and more, so an error of 1e-8 of a position shows.
    twin<3> table({1, D, npos}, layout::contiguous);
    table.fill([&] { return p.random.normal(); });
    check_against_reference<float>(
        p, {}, [&](auto zero) { return std::tuple(heed::cope{table.read<decltype(zero)>()}); }, 15);
  }
}

TEST_CASE("cope: a NaN among the gate keys reaches only rows that see it") {
  const heed::index T = 20, D = 4;
  const auto q = normals(1, T * D), k = normals(2, T * D), v = normals(3, T * D),
             e = normals(4, D * 30);
  auto u = normals(5, T * D);
  std::vector<float> plain(q.size()), spoilt(q.size());
  const auto run = [&](std::vector<float>& out) {
    heed::attend(
        rows_of(q, D), rows_of(k, D), rows_of(v, D), heed::tensor_view<float, 4>(out, {1, T, 1, D}),
        {.mask = heed::causal()},
        heed::cope{heed::tensor_view<const float, 2>(e, {D, 30}), heed::cope_scale::divided,
                   heed::cope_gates::separate_keys, rows_of(u, D)});
  };
  run(plain);
  u[static_cast<std::size_t>(11 * D)] = static_cast<float>(nan_value);
  run(spoilt);
  for (std::size_t n = 0; n < q.size(); ++n) {
    if (n < static_cast<std::size_t>(11 * D)) {
      CHECK(plain[n] == Catch::Approx(spoilt[n]).margin(1e-6));
    } else {
      CHECK(std::isnan(spoilt[n]));
    }
  }
}

TEST_CASE("cope: a second call with the same workspace allocates nothing") {
  const heed::index T = 150, D = 8;
  const auto q = normals(1, T * D), k = normals(2, T * D), e = normals(4, D * 30);
  std::vector<float> out(q.size());
  heed::workspace memory;
  const auto run = [&] {
    heed::attend(rows_of(q, D), rows_of(k, D), rows_of(k, D),
                 heed::tensor_view<float, 4>(out, {1, T, 1, D}),
                 {.mask = heed::causal(), .workspace = &memory},
                 heed::cope{heed::tensor_view<const float, 2>(e, {D, 30}),
                            heed::cope_scale::divided, heed::cope_gates::values});
  };
  run();
  const long before = allocations.load();
  run();
  CHECK(allocations.load() == before);
}

TEST_CASE("cope refuses what does not fit") {
  const heed::index T = 4, D = 3;
  const auto q = normals(1, T * D), v = normals(2, T * 2), e = normals(3, D * 5);
  std::vector<float> out(static_cast<std::size_t>(T * 2), 7);
  const auto run = [&](const heed::cope<float>& m) {
    heed::attend(rows_of(q, D), rows_of(q, D), rows_of(v, 2),
                 heed::tensor_view<float, 4>(out, {1, T, 1, 2}), {}, m);
  };
  using heed::cope_gates;
  using heed::cope_scale;
  const heed::tensor_view<const float, 2> table(e, {D, 5});
  CHECK_THROWS_WITH(run(heed::cope{heed::tensor_view<const float, 2>(e, {2, 5})}),
                    "heed: cope: embedding: axis 1 (head size) is 2, expected 3");
  CHECK_THROWS_AS(run(heed::cope{table, cope_scale::divided, cope_gates::values}),
                  heed::shape_error);
  CHECK_THROWS_AS(run(heed::cope{table, cope_scale::divided, cope_gates::separate_keys}),
                  heed::shape_error);
  CHECK(out == std::vector<float>(out.size(), 7));
  CHECK_NOTHROW(run(heed::cope{table}));
}
