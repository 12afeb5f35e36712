// The gradients of PaTH: against differences under every mask, and what other tokens must not
// disturb.
#include <cmath>

#include "mechanisms/path_gradients.hpp"

namespace heed_test {

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr random_limits limits{.newer_keys = false};

// make(type, memory) of a list with PaTH alone.
auto alone(const path_parameters& p) {
  return
      [&p]<class T>(T, gradient_memory<T>& to) { return std::tuple(path_with_gradients(p, to)); };
}

// A causal call of one batch with all of its parameters.
struct path_problem {
  random_problem x;
  path_parameters p;

  path_problem(std::uint64_t seed, const heed::problem& call, index chunk, index block)
      : x(causal_problem(seed, call)), p(x) {
    p.chunk = chunk;
    p.block = block;
  }
};

void check_distance(const path_problem& c, const path_problem& like, double exact, double single) {
  auto make = alone(c.p), other = alone(like.p);
  const auto expected = gradients_of<double>(like.x, {}, other);
  CHECK(gradient_distance(gradients_of<double>(c.x, {}, make), expected) <= exact);
  CHECK(gradient_distance(gradients_of<float>(c.x, {}, make), expected) <= single);
}

}  // namespace

TEST_CASE("path: gradients under every mask") {
  check_gradients<float>(100, 150, limits, [](random_problem& x) {
    if (!heed::hides_newer_keys(x.mask)) x.mask.is_causal = true;
    return [p = path_parameters(x)]<class T>(T, gradient_memory<T>& to) {
      return std::tuple(path_with_gradients(p, to));
    };
  });
}

TEST_CASE("path: gradients do not depend on chunks and blocks") {
  for (const index T : {1, 63, 64, 65, 129, 300, 700}) {
    const heed::problem call{1, T, T, 2, 1, 20, 8, 0.22};
    const path_problem like(static_cast<std::uint64_t>(T), call, 0, 0);
    for (const auto& [chunk, block] : {std::pair<index, index>{64, 64}, {16, 128}, {7, 28}}) {
      CAPTURE(T, chunk, block);
      const path_problem c(static_cast<std::uint64_t>(T), call, chunk, block);
      check_distance(c, like, 1e-11, 2e-5);
    }
  }
}

TEST_CASE("path: gradients of reflections, of the identity and of directions of zeros") {
  for (const double beta : {0.0, 1.0, 2.0}) {
    for (const bool zeros : {false, true}) {
      path_problem c(3, {1, 70, 70, 2, 2, 8, 8, 0.35}, 16, 32);
      c.p.beta.fill([&] { return beta; });
      if (zeros) c.p.w.fill([] { return 0.0; });
      INFO("beta " << beta << " zeros " << zeros);
      auto make = alone(c.p);
      gradient_memory<double> memory;
      for (const auto& [tensor, error] :
           heed::reference::gradient_check(c.x.q.view<double>(), c.x.k.view<double>(),
                                           c.x.v.view<double>(), {.mask = c.x.mask, .scale = 0.35},
                                           {.samples = 6}, std::get<0>(make(double(), memory)))) {
        INFO(tensor);
        CHECK(error <= 1e-8);
      }
    }
  }
}

TEST_CASE("path: tokens that no visible path crosses have gradients of exactly 0") {
  for (const index chunk : {0, 3, 16}) {
    path_problem c(7, {1, 40, 40, 4, 2, 8, 8, 0.35}, chunk, 2 * chunk);
    const std::vector<std::int64_t> start{9}, length{30};
    c.x.mask = heed::causal().key_starts(start).key_lengths(length);
    auto make = alone(c.p);
    const auto padded = gradients_of<float>(c.x, {5, 7}, make);
    for (std::size_t n = 0; n < 40 * 2; ++n) {
      const float beta = padded.tensors().at("beta")[n], w = padded.tensors().at("w")[n * 8 + 3];
      CAPTURE(chunk, n / 2, beta, w);
      CHECK((n / 2 > 9 ? beta != 0 && w != 0 : beta == 0 && w == 0));
    }
    c.x.mask = heed::causal().window(0, 0);  // every row its own key
    const auto narrow = gradients_of<float>(c.x, {}, make);
    for (const char* name : {"w", "beta"}) {
      for (const float d : narrow.tensors().at(name)) CHECK(d == 0);
    }
  }
}

// Two sequences side by side, told apart by a boolean view only: nothing crosses token 20, and
// nobody reads key 27.
TEST_CASE("path: NaN on a path that the mask cuts does not reach gradients") {
  const index T = 61, cut = 20, hidden = 27;
  std::vector<char> bytes(static_cast<std::size_t>(T * T));
  auto* shown = reinterpret_cast<bool*>(bytes.data());
  for (index i = 0; i < T; ++i) {
    for (index j = 0; j < T; ++j) shown[i * T + j] = (i < cut) == (j < cut) && j != hidden;
  }
  for (const index chunk : {0, 1, 3, 8, 16}) {
    path_problem c(5, {1, T, T, 2, 1, 8, 8, 0.35}, chunk, 4 * chunk);
    path_problem spoilt(5, {1, T, T, 2, 1, 8, 8, 0.35}, chunk, 4 * chunk);
    spoilt.x.mask = c.x.mask =
        heed::causal().visible(heed::tensor_view<const bool, 4>(shown, {1, 1, T, T}));
    spoilt.p.beta.set(nan_value, 0, cut, 0);
    for (index d = 0; d < 8; ++d) {
      spoilt.p.w.set(nan_value, 0, cut, 0, d);
      spoilt.x.k.set(nan_value, 0, hidden, 0, d);
      spoilt.x.v.set(nan_value, 0, hidden, 0, d);
    }
    CAPTURE(chunk);
    auto make = alone(c.p), other = alone(spoilt.p);
    for (const heed::tuning& sizes : {heed::tuning{}, heed::tuning{5, 7}}) {
      const auto clean = gradients_of<double>(c.x, sizes, make);
      const auto found = gradients_of<double>(spoilt.x, sizes, other);
      CHECK(gradient_distance(found, clean) <= 1e-12);
      CHECK(found.tensors().at("beta")[cut] == 0);
      CHECK(found.tensors().at("k")[hidden * 8] == 0);
      CHECK(found.tensors().at("beta")[cut - 1] != 0);
      CHECK(found.tensors().at("beta")[hidden + 1] != 0);
    }
  }
}

TEST_CASE("path: gradients of tokens newer than NaN are NaN where a path crosses it") {
  const index T = 70, bad = 37;
  for (const index chunk : {0, 8}) {
    const path_problem c(6, {1, T, T, 1, 1, 8, 8, 0.35}, chunk, 2 * chunk);
    path_problem spoilt(6, {1, T, T, 1, 1, 8, 8, 0.35}, chunk, 2 * chunk);
    spoilt.p.beta.set(nan_value, 0, bad, 0);
    auto make = alone(c.p), other = alone(spoilt.p);
    const auto clean = gradients_of<double>(c.x, {5, 7}, make);
    const auto found = gradients_of<double>(spoilt.x, {5, 7}, other);
    for (index i = 0; i < T; ++i) {
      const auto at = static_cast<std::size_t>(i * 8);
      const double q = found.tensors().at("q")[at];
      CAPTURE(chunk, i, q);
      // Queries older than the token are untouched; newer rows see keys behind it.
      CHECK((i < bad ? std::abs(q - clean.tensors().at("q")[at]) < 1e-12 : std::isnan(q)));
      CHECK(std::isnan(found.tensors().at("k")[at]));
    }
    CHECK(std::isnan(found.tensors().at("beta")[bad]));
  }
}

TEST_CASE("path: gradients of walks that shrink queries below all numbers") {
  for (const double beta : {1.0, 0.999, 0.9}) {
    const heed::problem call{1, 600, 600, 1, 1, 4, 4, 0.5};
    path_problem c(8, call, 8, 32), like(8, call, 0, 0);
    for (path_parameters* p : {&c.p, &like.p}) {
      for_each_index<4>(p->w.extents(), [&](index, index t, index h, index d) {
        p->w.set(t % 4 == d ? 1 : 0, 0, t, h, d);
      });
      p->beta.fill([&] { return beta; });
    }
    CAPTURE(beta);
    check_distance(c, like, 1e-11, 2e-5);
  }
}

TEST_CASE("path: gradients are the same bits for any number of threads, and can be left out") {
  path_problem c(10, {1, 300, 300, 8, 4, 16, 16, 0.25}, 16, 64);
  auto make = alone(c.p);
  const auto one = gradients_of<float>(c.x, {}, make);
  heed::thread_pool three(3);
  CHECK(gradients_of<float>(c.x, {}, make, three).tensors() == one.tensors());

  auto without = [&]<class T>(T, gradient_memory<T>& to) {
    const heed::path<T> path = c.p.template of<T>();
    return std::tuple(heed::with_grad(path, {{}, to.like("beta", path.beta)}));
  };
  auto others = one.tensors();
  others.erase("w");
  CHECK(gradients_of<float>(c.x, {}, without).tensors() == others);
}

TEST_CASE("path: gradients add to what is there where that is asked for") {
  path_problem c(11, {1, 90, 90, 4, 2, 8, 8, 0.35}, 16, 32);
  const heed::problem& p = c.x.call;
  const auto row = static_cast<std::size_t>(p.T * p.Hq);
  std::vector<double> out(row * 8), lse(row), dout(row * 8, 0.5), zero(row * 8);
  const heed::tensor_view<double, 4> o(out, {1, p.T, p.Hq, 8});
  const heed::tensor_view<double, 3> l(lse, {1, p.T, p.Hq});
  const auto run = [&](bool accumulate, std::vector<double>& d) {
    const heed::path<double> path = c.p.of<double>();
    const heed::path_grad<double> to{{std::span<double>(d).first(90 * 2 * 8), path.w.extents()},
                                     {std::span<double>(d).last(90 * 2), path.beta.extents()}};
    const auto q = c.x.q.read<double>(), k = c.x.k.read<double>(), v = c.x.v.read<double>();
    heed::attend(q, k, v, o, {.mask = c.x.mask, .lse = l}, path);
    heed::attend_grad(q, k, v, o, l, heed::tensor_view<const double, 4>(dout, o.extents()),
                      {.accumulate = accumulate}, {.mask = c.x.mask}, heed::with_grad(path, to));
  };
  std::vector<double> once(90 * 2 * 9, 7), twice = once;
  run(false, once);
  run(false, twice);
  run(true, twice);
  for (std::size_t n = 0; n < once.size(); ++n) CHECK(std::abs(twice[n] - 2 * once[n]) <= 1e-14);
  CHECK(std::any_of(once.begin(), once.end(), [](double x) { return x != 0; }));
}

}  // namespace heed_test
