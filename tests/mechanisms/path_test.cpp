// PaTH against the reference on random calls, against explicit products of D x D matrices, and the
// cases that other implementations got wrong.
#include "heed/mechanisms/path.hpp"

#include <cmath>

#include "guarded.hpp"
#include "path_calls.hpp"

namespace heed_test {

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// One sequence with unit directions, in double and float.
struct path_call {
  index T, H, D;
  twin<4> q, k, v, w;
  twin<3> beta;

  path_call(std::uint64_t seed, index tokens, index heads, index head_size)
      : T(tokens), H(heads), D(head_size) {
    random_source random(seed);
    for (twin<4>* x : {&q, &k, &v, &w}) {
      *x = twin<4>({1, T, H, D}, layout::contiguous);
      x->fill([&] { return random.normal(); });
    }
    beta = twin<3>({1, T, H}, layout::contiguous);
    beta.fill([&] { return random.uniform(0, 2); });
    const auto directions = w.view<double>();
    heed::path_directions(directions, directions, 0);
    for_each_index<4>(w.extents(), [&](auto... at) { w.set(directions(at...), at...); });
  }

  // Rows [begin, end) with the keys before `keys`.
  template <class U>
  std::vector<U> run(index begin, index end, index keys, index chunk = 0, index block = 0,
                     const heed::mask& mask = heed::causal()) const {
    std::vector<U> out(static_cast<std::size_t>((end - begin) * H * D));
    heed::attend(q.read<U>().slice(1, begin, end), k.read<U>().slice(1, 0, keys),
                 v.read<U>().slice(1, 0, keys),
                 heed::tensor_view<U, 4>(out, {1, end - begin, H, D}), {.mask = mask},
                 heed::path<U>{w.read<U>().slice(1, 0, keys), beta.read<U>().slice(1, 0, keys),
                               chunk, block});
    return out;
  }
  template <class U>
  std::vector<U> run(index chunk = 0, index block = 0) const {
    return run<U>(0, T, T, chunk, block);
  }
  std::vector<double> reference() const {
    std::vector<double> out(static_cast<std::size_t>(T * H * D));
    heed::reference::attend(q.read<double>(), k.read<double>(), v.read<double>(),
                            heed::tensor_view<double, 4>(out, {1, T, H, D}),
                            {.mask = heed::causal()},
                            heed::path<double>{w.read<double>(), beta.read<double>()});
    return out;
  }
};

// Largest difference over the largest of `wanted`; infinite where only one is finite.
template <class U, class V>
double error(const std::vector<U>& found, const std::vector<V>& wanted) {
  REQUIRE(found.size() == wanted.size());
  const auto n = static_cast<index>(found.size());
  return relative_error(heed::tensor_view<const U, 1>(found, {n}),
                        heed::tensor_view<const V, 1>(wanted, {n}));
}

// The output of head 0 with every H_s written out as a D x D matrix.
std::vector<double> by_matrices(const path_call& c) {
  const auto q = c.q.read<double>(), k = c.k.read<double>(), v = c.v.read<double>(),
             w = c.w.read<double>();
  const auto size = static_cast<std::size_t>(c.D);
  std::vector<double> out(static_cast<std::size_t>(c.T * c.D));
  for (index i = 0; i < c.T; ++i) {
    std::vector<double> logits(static_cast<std::size_t>(i + 1));
    std::vector<double> product(size * size);  // H_i ... H_(j+1)
    for (index d = 0; d < c.D; ++d) product[static_cast<std::size_t>(d * c.D + d)] = 1;
    for (index j = i; j >= 0; --j) {
      double sum = 0;
      for (index a = 0; a < c.D; ++a) {
        for (index b = 0; b < c.D; ++b) {
          sum += q(0, i, 0, a) * product[static_cast<std::size_t>(a * c.D + b)] * k(0, j, 0, b);
        }
      }
      logits[static_cast<std::size_t>(j)] = sum / std::sqrt(static_cast<double>(c.D));
      std::vector<double> next(size * size);
      for (index a = 0; a < c.D; ++a) {
        for (index b = 0; b < c.D; ++b) {
          for (index m = 0; m < c.D; ++m) {
            const double h =
                (m == b ? 1 : 0) - c.beta.read<double>()(0, j, 0) * w(0, j, 0, m) * w(0, j, 0, b);
            next[static_cast<std::size_t>(a * c.D + b)] +=
                product[static_cast<std::size_t>(a * c.D + m)] * h;
          }
        }
      }
      product = next;
    }
    double total = 0;
    for (double& x : logits) total += x = std::exp(x);
    for (index j = 0; j <= i; ++j) {
      for (index d = 0; d < c.D; ++d) {
        out[static_cast<std::size_t>(i * c.D + d)] +=
            logits[static_cast<std::size_t>(j)] / total * v(0, j, 0, d);
      }
    }
  }
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("path equals the reference on random calls", "", float, double) {
  int checked = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    random_problem p(seed, {.longest = 60, .newer_keys = false});
    if (!heed::hides_newer_keys(p.mask)) continue;
    const path_parameters parameters(p);
    const auto make = [&](auto t) { return std::tuple(parameters.of<decltype(t)>()); };
    INFO("seed " << seed << " chunk " << parameters.chunk << " block " << parameters.block);
    check_against_reference<TestType>(p, all_tunings[seed % all_tunings.size()], make);
    ++checked;
  }
  CHECK(checked > 400);
}

TEST_CASE("path equals products of explicit matrices") {
  for (const index D : {1, 5, 16}) {
    const path_call c(7, 37, 1, D);
    const std::vector<double> wanted = by_matrices(c);
    for (const index chunk : {0, 1, 3, 8, 16}) {
      CAPTURE(D, chunk);
      CHECK(error(c.run<double>(chunk, 4 * chunk), wanted) <= 1e-13);
      CHECK(error(c.run<float>(chunk, 4 * chunk), wanted) <= 4e-6);
    }
  }
}

TEST_CASE("path: every length around the edges of small chunks") {
  for (const index chunk : {1, 2, 3, 5, 8, 17}) {
    for (index T = 1; T <= 2 * chunk + 1; ++T) {
      const path_call c(static_cast<std::uint64_t>(T), T, 2, 8);
      const std::vector<double> wanted = c.reference();
      for (const index chunks_in_block : {1, 2, 4}) {
        CAPTURE(chunk, T, chunks_in_block);
        CHECK(error(c.run<double>(chunk, chunk * chunks_in_block), wanted) <= 1e-13);
      }
    }
  }
}

TEST_CASE("path: heed's own chunks and blocks, at their edges") {
  for (const index T : {63, 64, 65, 128, 129, 511, 513, 700}) {
    const path_call c(static_cast<std::uint64_t>(T), T, 1, 20);
    const std::vector<double> wanted = c.reference();
    CAPTURE(T);
    CHECK(error(c.run<double>(), wanted) <= 1e-13);
    CHECK(error(c.run<float>(), wanted) <= 4e-6);
    CHECK(error(c.run<double>(64, 128), wanted) <= 1e-13);
  }
}

TEST_CASE("path: a prefill and single rows give what the whole gives") {
  for (const index T : {1, 63, 64, 65, 129}) {
    const path_call c(static_cast<std::uint64_t>(T), T + 1, 2, 16);
    const std::vector<double> whole = c.run<double>();
    const auto rows = [&](index begin, index end) {
      return std::vector<double>(whole.begin() + begin * 2 * 16, whole.begin() + end * 2 * 16);
    };
    CAPTURE(T);
    CHECK(error(c.run<double>(0, T, T), rows(0, T)) <= 1e-13);
    CHECK(error(c.run<double>(T, T + 1, T + 1), rows(T, T + 1)) <= 1e-13);
    // A few rows that begin inside a chunk.
    CHECK(error(c.run<double>(T / 2, T + 1, T + 1), rows(T / 2, T + 1)) <= 1e-13);
  }
}

TEST_CASE("path: no row meets NaN in tokens newer than itself, nor what no path crosses") {
  const index T = 40;
  for (const index chunk : {0, 1, 3, 8, 16}) {
    path_call c(3, T, 2, 8);
    const std::vector<double> clean = c.run<double>(chunk, 2 * chunk);
    for (const index bad : {0, 1, 7, 15, 16, 17, 31, 39}) {
      path_call spoilt = c;
      for (index h = 0; h < 2; ++h) {
        spoilt.beta.set(nan_value, 0, bad, h);
        for (index d = 0; d < 8; ++d) spoilt.w.set(nan_value, 0, bad, h, d);
      }
      const std::vector<double> out = spoilt.run<double>(chunk, 2 * chunk);
      CAPTURE(chunk, bad);
      const auto before = bad == 0 ? T * 16 : bad * 16;  // nothing crosses token 0
      CHECK(error(std::vector<double>(out.begin(), out.begin() + before),
                  std::vector<double>(clean.begin(), clean.begin() + before)) <= 1e-13);
      CHECK(std::all_of(out.begin() + before, out.end(), [](double x) { return std::isnan(x); }));
    }
  }
}

TEST_CASE("path: NaN on a path that the mask cuts does not arrive") {
  // Two sequences side by side, told apart by a boolean view only: nothing crosses token 20.
  const index T = 41, cut = 20;
  path_call c(5, T, 1, 8);
  std::vector<char> bytes(static_cast<std::size_t>(T * T));
  auto* shown = reinterpret_cast<bool*>(bytes.data());
  for (index i = 0; i < T; ++i) {
    for (index j = 0; j < T; ++j) shown[i * T + j] = (i < cut) == (j < cut);
  }
  const heed::mask mask =
      heed::causal().visible(heed::tensor_view<const bool, 4>(shown, {1, 1, T, T}));
  for (const index chunk : {0, 1, 3, 8, 16}) {
    CAPTURE(chunk);
    const std::vector<double> clean = c.run<double>(0, T, T, chunk, 2 * chunk, mask);
    path_call spoilt = c;
    spoilt.beta.set(nan_value, 0, cut, 0);
    for (index d = 0; d < 8; ++d) spoilt.w.set(nan_value, 0, cut, 0, d);
    CHECK(error(spoilt.run<double>(0, T, T, chunk, 2 * chunk, mask), clean) <= 1e-13);
  }
}

TEST_CASE("path: pieces of a packed batch never multiply across a boundary") {
  const index T = 90;
  const path_call c(11, T, 2, 8);
  const std::vector<std::int64_t> cuts{0, 1, 30, 30, 65, 90};
  const std::vector<double> packed =
      c.run<double>(0, T, T, 8, 16, heed::causal().packed(cuts, cuts));
  for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
    const index begin = cuts[n], end = cuts[n + 1], row = 2 * 8;
    std::vector<double> alone(static_cast<std::size_t>((end - begin) * row));
    const auto part = [&](const auto& x) { return x.slice(1, begin, end); };
    heed::attend(part(c.q.read<double>()), part(c.k.read<double>()), part(c.v.read<double>()),
                 heed::tensor_view<double, 4>(alone, {1, end - begin, 2, 8}),
                 {.mask = heed::causal()},
                 heed::path<double>{part(c.w.read<double>()), part(c.beta.read<double>()), 8, 16});
    CHECK(std::equal(alone.begin(), alone.end(), packed.begin() + begin * row));
  }
}

TEMPLATE_TEST_CASE("path reads nothing beyond its tensors", "", float, double) {
  using U = TestType;
  random_source random(1);
  for (const guard side : {guard::after_last, guard::before_first}) {
    for (const index D : {1, 7, 16, 33}) {
      const index T = 71, H = 1;
      guarded_tensor<U, 4> q({1, T, H, D}, side), k({1, T, H, D}, side), v({1, T, H, D}, side),
          w({1, T, H, D}, side), out({1, T, H, D}, side);
      guarded_tensor<U, 3> beta({1, T, H}, side);
      for (auto* x : {&q, &k, &v, &w}) x->fill([&](auto...) { return random.normal(); });
      beta.fill([&](auto...) { return random.uniform(0, 2); });
      heed::path_directions(w.read(), w.view());
      for (const index chunk : {0, 3, 16}) {
        heed::attend(q.read(), k.read(), v.read(), out.view(), {.mask = heed::causal()},
                     heed::path<U>{w.read(), beta.read(), chunk, 0});
        for_each_index<4>({1, T, H, D},
                          [&](auto... at) { REQUIRE(std::isfinite(out.view()(at...))); });
      }
    }
  }
}

TEST_CASE("path: reflections in one direction over 4096 tokens do not grow") {
  path_call c(2, 4096, 1, 8);
  for_each_index<4>(c.w.extents(), [&](index, index t, index h, index d) {
    c.w.set(c.w.read<double>()(0, 0, 0, d), 0, t, h, d);
  });
  c.beta.fill([] { return 2.0; });
  // Every second reflection undoes the one before: keys an even way back are as they were.
  path_call plain = c;
  plain.beta.fill([] { return 0.0; });
  const std::vector<double> wanted = c.reference();
  CHECK(error(c.run<double>(), wanted) <= 1e-11);
  CHECK(error(c.run<float>(), wanted) <= 1e-4);
  CHECK(error(c.run<float>(64, 4096), wanted) <= 1e-4);
  CHECK(error(plain.run<double>(), wanted) > 1e-3);  // the case is not trivial
}

TEST_CASE("path: directions longer than 1 grow as the reference does") {
  path_call c(4, 64, 1, 8);
  random_source random(5);
  for_each_index<4>(c.w.extents(), [&](index, index t, index, index d) {
    c.w.set((d == 0 ? 1.5 : 0.05 * random.normal()), 0, t, 0, d);
  });
  c.beta.fill([] { return 1.9; });
  c.q.fill([&] { return 1e-20 * random.normal(); });
  const std::vector<double> wanted = c.reference();
  CHECK(std::all_of(wanted.begin(), wanted.end(), [](double x) { return std::isfinite(x); }));
  // Each token multiplies errors by up to 1 - 1.9 * 1.5^2.
  CHECK(error(c.run<double>(), wanted) <= 1e-8);
}

TEST_CASE("path: a direction of zeros is the identity") {
  path_call c(6, 70, 1, 8);
  path_call without = c;
  c.w.fill([] { return 0.0; });
  without.beta.fill([] { return 0.0; });
  CHECK(error(c.run<double>(), without.run<double>()) <= 1e-14);
}

TEST_CASE("path: walks that shrink queries below all numbers") {
  // Beta 1 in directions that go round the axes: after D tokens nothing is left. Beta close to 1
  // leaves 1e-3 each time round: float runs out of normal numbers after 12 D tokens.
  for (const double beta : {1.0, 0.999, 0.9}) {
    path_call c(8, 600, 1, 4);
    for_each_index<4>(c.w.extents(), [&](index, index t, index h, index d) {
      c.w.set(t % 4 == d ? 1 : 0, 0, t, h, d);
    });
    c.beta.fill([&] { return beta; });
    const std::vector<double> wanted = c.reference();
    for (const index chunk : {0, 8, 16}) {
      CAPTURE(beta, chunk);
      CHECK(error(c.run<float>(chunk, 4 * chunk), wanted) <= 4e-6);
      CHECK(error(c.run<double>(chunk, 4 * chunk), wanted) <= 1e-13);
    }
  }
}

TEST_CASE("path: what cannot be is refused before anything is written") {
  const path_call c(1, 6, 2, 4);
  std::vector<double> out(48, 7);
  const heed::tensor_view<double, 4> result(out, {1, 6, 2, 4});
  const auto run = [&](const heed::mask& mask, const heed::path<double>& path) {
    heed::attend(c.q.read<double>(), c.k.read<double>(), c.v.read<double>(), result, {.mask = mask},
                 path);
  };
  const auto w = c.w.read<double>();
  const auto beta = c.beta.read<double>();
  CHECK_THROWS_AS(run(heed::full(), {w, beta}), heed::shape_error);
  CHECK_THROWS_AS(run(heed::window(3, 1), {w, beta}), heed::shape_error);
  CHECK_THROWS_AS(run(heed::causal(), {w.slice(1, 0, 5), beta}), heed::shape_error);
  CHECK_THROWS_AS(run(heed::causal(), {w, beta.slice(2, 0, 1)}), heed::shape_error);
  CHECK_THROWS_AS(run(heed::causal(), {w, beta, -1}), heed::shape_error);
  CHECK(std::all_of(out.begin(), out.end(), [](double x) { return x == 7; }));
}

TEST_CASE("path: directions and betas as PaTH's layer makes them") {
  std::vector<float> w{3, 4, 0, 0, 1e-3F, 0}, same = w;
  const heed::tensor_view<float, 4> from(w, {1, 3, 1, 2}), to(same, {1, 3, 1, 2});
  heed::path_directions(from, to);
  const std::vector<double> wanted{
      3 / std::sqrt(25 + 1e-6), 4 / std::sqrt(25 + 1e-6), 0, 0, 1 / std::sqrt(2.0), 0};
  CHECK(error(same, wanted) <= 1e-7);
  heed::path_directions(from, from);
  CHECK(w == same);
  CHECK_THROWS_AS(heed::path_directions(from, to.slice(1, 0, 2)), heed::shape_error);

  std::vector<float> logits{0, 1, -1, 200, -200, -20}, betas(6);
  heed::path_betas(heed::tensor_view<float, 3>(logits, {1, 6, 1}),
                   heed::tensor_view<float, 3>(betas, {1, 6, 1}));
  CHECK(betas[0] == 1);
  CHECK(betas[1] == Catch::Approx(1.4621171572600098).epsilon(1e-7));
  CHECK(betas[2] == Catch::Approx(0.5378828427399902).epsilon(1e-7));
  CHECK(betas[3] == 2);
  CHECK(betas[4] == 0);
  CHECK(betas[5] == Catch::Approx(4.1223072363804975e-09).epsilon(1e-6));
}

}  // namespace heed_test
