// The gradients of FoX: against differences in random lists under every mask, against the published
// code, and where sums are long, cut off or pruned.
#include <cmath>
#include <optional>

#include "gradient.hpp"
#include "heed/heed.hpp"

namespace heed_test {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

enum class gates { mild, strong, resets, cuts };
constexpr std::array all_gates{gates::mild, gates::strong, gates::resets, gates::cuts};

double draw_gate(random_source& random, gates kind) {
  switch (kind) {
    case gates::mild:
      return random.uniform(-0.1, 0);
    case gates::strong:
      return random.uniform(-4, -0.2);
    case gates::resets:
      return random.chance(0.15) ? random.uniform(-100, -50) : random.uniform(-0.1, 0);
    case gates::cuts:
      break;
  }
  return random.chance(0.15) ? -infinity : random.uniform(-1, 0);
}

// The parameters of a list with FoX in it, drawn with the problem.
struct fox_parameters {
  twin<3> log_f;
  twin<2> embedding;
  twin<4> values;
  index rotary;
  heed::gate convention;

  fox_parameters(random_problem& x, gates kind) {
    if (!heed::hides_newer_keys(x.mask)) x.mask.is_causal = true;
    const heed::problem& p = x.call;
    log_f = x.tensor<3>({p.B, p.S, p.Hq});
    log_f.fill([&] { return draw_gate(x.random, kind); });
    embedding = x.tensor<2>({p.D, x.random.integer(1, 9)});
    values = twin<4>({1, p.Hq, 1, p.S}, layout::contiguous);
    values.fill([&] { return x.random.normal(); });
    rotary = p.D / 2 * 2;
    convention = x.random.chance(0.3) ? heed::gate::inside_scale : heed::gate::outside_scale;
  }
  heed::rope turn() const { return {100, heed::rope_pairs::half, rotary, 3}; }
  template <class T>
  auto fox(gradient_memory<T>& to, std::optional<heed::pruning> prune = {}) const {
    const auto f = log_f.read<T>();
    return heed::with_grad(heed::fox<T>{f, convention, prune}, {to.like("log_f", f)});
  }
  template <class T>
  auto far(gradient_memory<T>& to) const {
    const auto e = embedding.read<T>();
    return heed::with_grad(heed::relative<T>{e}, {to.like("embedding", e)});
  }
  template <class T>
  auto add(gradient_memory<T>& to) const {
    const auto b = values.read<T>();
    return heed::with_grad(heed::bias<T>{b}, {to.like("bias", b)});
  }
};

// make(type, memory) of parameters and a function of them.
template <class F>
auto with_parameters(gates kind, const F& list) {
  return [list, kind](random_problem& x) {
    return [list, p = fox_parameters(x, kind)]<class T>(T, gradient_memory<T>& to) {
      return list(p, to);
    };
  };
}

constexpr random_limits limits{.newer_keys = false};

// L_ij <- L_i(j-older): the logits behind it lag, the driver's columns do all the work.
struct older_keys {
  static constexpr heed::place where = heed::place::logits;
  static constexpr heed::hook hooks =
      heed::hook::geometry | heed::hook::forward | heed::hook::backward;
  index older;

  heed::geometry geometry() const { return {0, older, 0, 1, heed::geometry::invisible::zero}; }
  template <class T, class Arch>
  void forward(const heed::panel<T, Arch>&) const {}
  // forward: dL_i(j-older) = dL_ij
  template <class T, class Arch>
  void backward(const heed::reverse_panel<T, Arch>&) const {}
};

// make(type, memory) of a list with FoX alone.
auto alone(const fox_parameters& p, std::optional<heed::pruning> prune = {}) {
  return [&p, prune]<class T>(T, gradient_memory<T>& to) { return std::tuple(p.fox(to, prune)); };
}

}  // namespace

TEST_CASE("Gradients of FoX under every mask") {
  std::uint64_t seed = 1000;
  for (const gates kind : all_gates) {
    check_gradients<float>(seed, 30, limits, with_parameters(kind, [](auto& p, auto& to) {
                             return std::tuple(p.fox(to));
                           }));
    seed += 30;
  }
}

TEST_CASE("Gradients of FoX among other mechanisms") {
  std::uint64_t seed = 2000;
  for (const gates kind : all_gates) {
    check_gradients(seed, 10, limits,
                    with_parameters(kind,
                                    [](auto& p, auto& to) {
                                      return std::tuple(p.turn(), p.fox(to), heed::alibi{},
                                                        p.add(to));
                                    }),
                    2);
    check_gradients(seed + 10, 10, limits, with_parameters(kind, [](auto& p, auto& to) {
                      return std::tuple(p.far(to), heed::softcap{2}, p.fox(to), heed::softcap{9});
                    }));
    seed += 20;
  }
}

TEST_CASE("Gradients of FoX before and behind logits that lag") {
  std::uint64_t seed = 3000;
  for (const gates kind : {gates::mild, gates::strong}) {
    check_gradients(seed, 15, limits, with_parameters(kind, [](auto& p, auto& to) {
                      return std::tuple(older_keys{2}, p.fox(to), older_keys{1}, p.far(to));
                    }));
    seed += 15;
  }
}

TEST_CASE("What no row reads has a gate gradient of exactly 0") {
  for (const heed::tuning& sizes : all_tunings) {
    random_problem x = causal_problem(7, {1, 40, 40, 4, 2, 8, 8, 0.35});
    fox_parameters p(x, gates::mild);
    const std::vector<std::int64_t> start{9}, length{30};
    x.mask = heed::causal().key_starts(start).key_lengths(length);
    auto make = alone(p);
    const auto padded = gradients_of<float>(x, sizes, make).tensors().at("log_f");
    for (index j = 0; j < 40; ++j) {
      for (index h = 0; h < 4; ++h) {
        const float d = padded[static_cast<std::size_t>(j * 4 + h)];
        CAPTURE(j, h, d);
        CHECK((j > 9 ? d != 0 : d == 0));
      }
    }
    x.mask = heed::causal().window(0, 0);  // every row its own key: no gate between them
    const auto narrow = gradients_of<float>(x, sizes, make).tensors().at("log_f");
    for (const float d : narrow) {
      CHECK(std::abs(d) < 1e-5F);
    }
  }
}

TEST_CASE("A gate of exactly 0 has a gradient of exactly 0 and cuts those of what it hides") {
  for (const heed::tuning& sizes : all_tunings) {
    random_problem x = causal_problem(8, {1, 50, 50, 2, 1, 8, 8, 0.35});
    fox_parameters p(x, gates::mild);
    for (const index h : {0, 1}) p.log_f.set(-infinity, 0, 20 + h, h);
    auto make = alone(p);
    const auto cut = gradients_of<double>(x, sizes, make);
    const auto& d = cut.tensors().at("log_f");
    for (const index h : {0, 1}) {
      CHECK(d[static_cast<std::size_t>((20 + h) * 2 + h)] == 0);
      CHECK(d[static_cast<std::size_t>((21 + h) * 2 + h)] != 0);
    }
    for (const double value : d) CHECK(std::isfinite(value));

    // Rows from the cut on do not feel what lies before it: head 0's gates there are the same with
    // other gates, keys and values in front.
    for (index j = 0; j < 20; ++j) {
      p.log_f.set(-0.3, 0, j, 0);
      x.k.set(2.0, 0, j, 0, 1);
      x.v.set(-3.0, 0, j, 0, 2);
    }
    const auto other = gradients_of<double>(x, sizes, make);
    for (std::size_t j = 0; j < 50; ++j) {
      const double change = std::abs(other.tensors().at("log_f")[2 * j] - d[2 * j]);
      CAPTURE(j, change);
      CHECK((j >= 20 ? change < 1e-14 : j == 0 || change > 1e-6));
    }
  }
}

TEST_CASE("Gate gradients over long sequences keep their digits in float") {
  for (const double decay : {1e-4, 1e-2}) {
    random_problem x = causal_problem(9, {1, 6000, 6000, 1, 1, 4, 4, 0.5});
    fox_parameters p(x, gates::mild);
    p.log_f.fill([&] { return x.random.uniform(-2 * decay, 0); });
    p.convention = heed::gate::outside_scale;
    auto make = alone(p);
    const auto exact = gradients_of<double>(x, {}, make);
    CHECK(gradient_distance(gradients_of<float>(x, {}, make), exact) <= 1e-5);
    CHECK(gradient_distance(gradients_of<double>(x, {100, 256}, make), exact) <= 1e-13);
  }
}

TEST_CASE("Gate gradients are the same bits for any number of threads, and can be left out") {
  random_problem x = causal_problem(10, {1, 300, 300, 8, 4, 16, 16, 0.25});
  fox_parameters p(x, gates::mild);
  auto make = alone(p);
  const auto one = gradients_of<float>(x, {}, make);
  heed::thread_pool three(3);
  CHECK(gradients_of<float>(x, {}, make, three).tensors() == one.tensors());

  auto without = [&]<class T>(T, gradient_memory<T>&) {
    return std::tuple(heed::fox<T>{p.log_f.template read<T>(), p.convention});
  };
  auto others = one.tensors();
  others.erase("log_f");
  CHECK(gradients_of<float>(x, {}, without).tensors() == others);
}

TEST_CASE("Pruning leaves out the same keys in both directions") {
  int left_out = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    random_problem x = causal_problem(seed, {1, 150, 150, 4, 2, 8, 8, 0.35});
    fox_parameters p(x, gates::mild);
    p.convention = heed::gate::outside_scale;
    p.log_f.fill([&] { return x.random.uniform(-0.6, 0); });
    if (seed % 2 == 1) x.mask = x.mask.window(100, 0).always_visible(5);
    const heed::tuning& sizes = all_tunings[1 + seed % 4];
    const heed::pruning prune{0.2, 0};
    INFO("seed " << seed << " rows " << sizes.rows << " panel " << sizes.panel);
    // Differences of what attend computes with pruning: 0.2 of a row may be missing there.
    auto make = alone(p, prune);
    gradient_memory<double> memory;
    const auto errors = heed::reference::gradient_check(
        x.q.view<double>(), x.k.view<double>(), x.v.view<double>(),
        {.mask = x.mask, .scale = 0.35, .tuning = sizes}, {.step = 1e-5, .seed = seed},
        std::get<0>(make(double(), memory)));
    for (const auto& [tensor, error] : errors) {
      INFO(tensor);
      CHECK(error <= 1e-6);
    }
    auto all_keys = alone(p);
    const auto pruned = gradients_of<double>(x, sizes, make);
    const double distance = gradient_distance(pruned, gradients_of<double>(x, sizes, all_keys));
    left_out += distance > 1e-3;
    CHECK(distance < 0.5);
    // The default leaves out e^-10 of a row at most.
    auto usual = alone(p, heed::pruning{});
    CHECK(gradient_distance(gradients_of<double>(x, sizes, usual),
                            gradients_of<double>(x, sizes, all_keys)) < 1e-3);
  }
  CHECK(left_out >= 6);
}

}  // namespace heed_test
