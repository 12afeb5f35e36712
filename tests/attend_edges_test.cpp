// What a call must survive, refuse, or leave alone.
#include <cmath>
#include <limits>

#include "allocations.hpp"
#include "compare.hpp"
#include "guarded.hpp"
#include "heed/parallel.hpp"

using namespace heed_test;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

// A self-attention call in contiguous memory.
template <class T>
struct call {
  heed::index B, T_, S, Hq, Hkv, D, Dv;
  std::vector<T> q_data, k_data, v_data, out_data, lse_data;

  call(heed::index batch, heed::index rows, heed::index keys, heed::index heads,
       heed::index kv_heads, heed::index head_size, heed::index value_size)
      : B(batch), T_(rows), S(keys), Hq(heads), Hkv(kv_heads), D(head_size), Dv(value_size) {
    random_source random(7);
    const auto fill = [&](std::vector<T>& data, heed::index size) {
      data.resize(static_cast<std::size_t>(size));
      for (T& x : data) x = static_cast<T>(random.normal());
    };
    fill(q_data, B * T_ * Hq * D);
    fill(k_data, B * S * Hkv * D);
    fill(v_data, B * S * Hkv * Dv);
    fill(out_data, B * T_ * Hq * Dv);
    fill(lse_data, B * T_ * Hq);
  }
  heed::tensor_view<T, 4> q() { return {q_data.data(), {B, T_, Hq, D}}; }
  heed::tensor_view<T, 4> k() { return {k_data.data(), {B, S, Hkv, D}}; }
  heed::tensor_view<T, 4> v() { return {v_data.data(), {B, S, Hkv, Dv}}; }
  heed::tensor_view<T, 4> out() { return {out_data.data(), {B, T_, Hq, Dv}}; }
  heed::tensor_view<T, 3> lse() { return {lse_data.data(), {B, T_, Hq}}; }
};

}  // namespace

TEMPLATE_TEST_CASE("attend touches no memory beside its tensors", "", float, double) {
  for (const guard side : {guard::after_last, guard::before_first}) {
    for (const heed::index length : {1, 2, 15, 16, 17, 63, 64, 65, 129}) {
      for (const heed::index D : {1, 7, 16, 33}) {
        guarded_tensor<TestType, 4> q({1, length, 2, D}, side), k({1, length, 1, D}, side),
            v({1, length, 1, D}, side), out({1, length, 2, D}, side);
        random_source random(3);
        for_each_index<4>(q.view().extents(), [&](auto... at) {
          q.view()(at...) = static_cast<TestType>(random.normal());
        });
        for_each_index<4>(k.view().extents(), [&](auto... at) {
          k.view()(at...) = static_cast<TestType>(random.normal());
          v.view()(at...) = static_cast<TestType>(random.normal());
        });
        heed::attend(q.view(), k.view(), v.view(), out.view(), {.mask = heed::causal()});
        CHECK(std::isfinite(out.view()(0, length - 1, 1, D - 1)));
      }
    }
  }
}

TEST_CASE("a window leaves early panels without visible keys", "[cases]") {
  random_problem p(1);
  p.call = {1, 640, 640, 1, 1, 8, 8, 0};
  p.mask = heed::causal().window(9, 0);
  p.q = p.tensor<4>({1, 640, 1, 8});
  p.k = p.tensor<4>({1, 640, 1, 8});
  p.v = p.tensor<4>({1, 640, 1, 8});
  for (const heed::tuning sizes : {heed::tuning{}, heed::tuning{64, 128}, heed::tuning{12, 3}}) {
    check_against_reference<float>(p, sizes, [](auto) { return std::tuple<>(); });
  }
}

TEST_CASE("rows without keys give 0 and a log-sum-exp of -inf", "[cases]") {
  call<float> c(1, 5, 2, 2, 2, 4, 4);
  heed::attend(c.q(), c.k(), c.v(), c.out(), {.mask = heed::causal(), .lse = c.lse()});
  for (heed::index i = 0; i < 3; ++i) {
    CHECK(c.lse()(0, i, 1) == -infinity);
    for (heed::index d = 0; d < 4; ++d) CHECK(c.out()(0, i, 1, d) == 0);
  }
  CHECK(std::isfinite(c.lse()(0, 3, 0)));
  call<double> none(2, 3, 0, 2, 1, 4, 3);
  heed::attend(none.q(), none.k(), none.v(), none.out(), {.lse = none.lse()});
  for (const double x : none.out_data) CHECK(x == 0);
  for (const double x : none.lse_data) CHECK(x == -infinity);
}

TEST_CASE("calls without rows, batches, heads or values do nothing", "[cases]") {
  call<float> rows(1, 0, 3, 2, 2, 4, 4), batches(0, 3, 3, 2, 2, 4, 4), heads(1, 3, 3, 0, 0, 4, 4);
  call<float> values(1, 3, 3, 2, 2, 4, 0);
  CHECK_NOTHROW(heed::attend(rows.q(), rows.k(), rows.v(), rows.out()));
  CHECK_NOTHROW(heed::attend(batches.q(), batches.k(), batches.v(), batches.out()));
  CHECK_NOTHROW(heed::attend(heads.q(), heads.k(), heads.v(), heads.out()));
  heed::attend(values.q(), values.k(), values.v(), values.out(), {.lse = values.lse()});
  CHECK(std::isfinite(values.lse()(0, 2, 1)));
}

TEST_CASE("blocks larger than the call cost no more than it", "[memory]") {
  call<float> one(2, 5, 40, 2, 1, 8, 8), other = one;
  heed::attend(one.q(), one.k(), one.v(), one.out());
  constexpr heed::index huge = heed::mask::unlimited;
  heed::workspace memory;
  heed::attend(other.q(), other.k(), other.v(), other.out(),
               {.workspace = &memory, .tuning = {huge, huge}});
  CHECK(relative_error(other.out(), one.out()) <= tolerance<float>);
  CHECK(memory.capacity() < 1 << 20);
}

TEST_CASE("what a hidden key holds never reaches an output", "[cases]") {
  for (const double poison : {not_a_number, infinity, -infinity}) {
    call<float> clean(1, 70, 70, 2, 1, 16, 16), bad(1, 70, 70, 2, 1, 16, 16);
    const std::array<std::int64_t, 1> length{50};
    const auto mask = heed::causal().key_lengths(length);
    for (heed::index j = 50; j < 70; ++j) {
      for (heed::index d = 0; d < 16; ++d) {
        bad.k()(0, j, 0, d) = static_cast<float>(poison);
        bad.v()(0, j, 0, d) = static_cast<float>(poison);
      }
    }
    // A future key, too: rows up to 19 do not see key 20, later ones do.
    bad.v()(0, 20, 0, 3) = static_cast<float>(poison);
    bad.k()(0, 20, 0, 3) = static_cast<float>(poison);
    heed::attend(clean.q(), clean.k(), clean.v(), clean.out(), {.mask = mask, .tuning = {24, 16}});
    heed::attend(bad.q(), bad.k(), bad.v(), bad.out(), {.mask = mask, .tuning = {24, 16}});
    for (heed::index i = 0; i < 20; ++i) {
      for (heed::index d = 0; d < 16; ++d) {
        CHECK(bad.out()(0, i, 1, d) == Approx(clean.out()(0, i, 1, d)).margin(1e-6));
      }
    }
    if (std::isnan(poison)) CHECK(std::isnan(bad.out()(0, 40, 1, 3)));
  }
}

TEST_CASE("a visible logit of NaN or +inf makes its row NaN", "[cases]") {
  for (const double poison : {not_a_number, infinity}) {
    call<float> c(1, 20, 20, 1, 1, 4, 4);
    for (heed::index d = 0; d < 4; ++d) {
      c.k()(0, 5, 0, d) = static_cast<float>(poison);
      c.q()(0, 10, 0, d) = 1;
    }
    heed::attend(c.q(), c.k(), c.v(), c.out(), {.mask = heed::causal(), .lse = c.lse()});
    for (heed::index d = 0; d < 4; ++d) {
      CHECK(std::isnan(c.out()(0, 10, 0, d)));
      CHECK(std::isfinite(c.out()(0, 4, 0, d)));
    }
  }
}

TEST_CASE("512 equal logits weigh 1/512 each", "[cases]") {
  call<float> c(1, 1, 512, 1, 1, 4, 4);
  for (float& x : c.q_data) x = 0;
  for (float& x : c.v_data) x = 0;
  c.v()(0, 17, 0, 2) = 1;
  heed::attend(c.q(), c.k(), c.v(), c.out());
  CHECK(c.out()(0, 0, 0, 2) == Approx(1.0 / 512).epsilon(1e-6));
}

TEMPLATE_TEST_CASE("the bits do not depend on the number of threads", "", float, double) {
  call<TestType> c(2, 300, 300, 4, 2, 24, 20);
  heed::attend(c.q(), c.k(), c.v(), c.out(), {.mask = heed::causal(), .lse = c.lse()});
  const auto out = c.out_data, lse = c.lse_data;
  for (const heed::index threads : {1, 2, 7, 16}) {
    heed::thread_pool pool(threads);
    c.out_data.assign(c.out_data.size(), TestType(5));
    heed::attend(c.q(), c.k(), c.v(), c.out(),
                 {.mask = heed::causal(), .lse = c.lse(), .executor = pool});
    CHECK(c.out_data == out);
    CHECK(c.lse_data == lse);
  }
}

TEST_CASE("the bits of a row do not depend on the batch beside it", "[cases]") {
  call<float> many(32, 70, 70, 2, 2, 16, 16);
  heed::attend(many.q(), many.k(), many.v(), many.out(), {.mask = heed::causal()});
  for (const heed::index b : {0, 13, 31}) {
    call<float> one(1, 70, 70, 2, 2, 16, 16);
    heed::attend(many.q().slice(0, b, b + 1), many.k().slice(0, b, b + 1),
                 many.v().slice(0, b, b + 1), one.out(), {.mask = heed::causal()});
    for_each_index<3>({70, 2, 16},
                      [&](auto... at) { CHECK(one.out()(0, at...) == many.out()(b, at...)); });
  }
}

TEST_CASE("with a kept workspace a second call allocates nothing", "[memory]") {
  call<float> c(2, 300, 300, 4, 2, 20, 18);  // odd sizes: keys and values are packed
  heed::workspace workspace;
  heed::thread_pool pool(2);
  const auto run = [&] {
    heed::attend(c.q(), c.k(), c.v(), c.out(),
                 {.mask = heed::causal(), .executor = pool, .workspace = &workspace});
  };
  // Which worker meets which block is chance: a few rounds let each grow to the largest.
  for (int n = 0; n < 5; ++n) run();
  const long before = allocations.load();
  run();
  CHECK(allocations.load() == before);
  const auto serial = [&] {
    heed::attend(c.q(), c.k(), c.v(), c.out(), {.mask = heed::causal(), .workspace = &workspace});
  };
  serial();
  const long first = allocations.load();
  serial();
  CHECK(allocations.load() == first);
}

TEST_CASE("shapes that disagree are named", "[errors]") {
  call<float> c(1, 4, 6, 4, 2, 8, 8);
  const auto message = [&](auto&& f) -> std::string {
    const auto before = c.out_data;
    try {
      f();
    } catch (const heed::shape_error& error) {
      CHECK(c.out_data == before);
      return error.what();
    }
    return "accepted";
  };
  call<float> other(1, 4, 6, 4, 2, 7, 8);
  CHECK(message([&] { heed::attend(c.q(), other.k(), c.v(), c.out()); }) ==
        "heed: attend: k: axis 3 (head size) is 7, expected 8");
  call<float> fewer(1, 4, 5, 4, 2, 8, 8);
  CHECK(message([&] { heed::attend(c.q(), c.k(), fewer.v(), c.out()); }) ==
        "heed: attend: v: axis 1 (keys) is 5, expected 6");
  call<float> heads(1, 4, 6, 4, 3, 8, 8);
  CHECK(message([&] { heed::attend(c.q(), heads.k(), heads.v(), c.out()); }) ==
        "heed: attend: k: axis 2 (key heads) is 3, expected a divisor of the 4 query heads");
}

TEST_CASE("an output that shares elements with a view is refused", "[errors]") {
  call<float> c(1, 6, 6, 2, 2, 8, 8);
  CHECK_THROWS_AS(heed::attend(c.q(), c.k(), c.v(), c.q()), heed::shape_error);
  CHECK_THROWS_AS(heed::attend(c.q(), c.k(), c.v(), c.v()), heed::shape_error);
  CHECK_THROWS_AS(
      heed::attend(c.q(), c.k(), c.v(),
                   heed::tensor_view<float, 4>(c.out_data.data(), {1, 6, 2, 8}, {0, 0, 8, 1})),
      heed::shape_error);
  // Interleaved slices of one buffer are fine.
  std::vector<float> fused(6 * 2 * 32, 0.5F);
  const auto slice = [&](heed::index at) {
    return heed::tensor_view<float, 4>(fused.data() + at, {1, 6, 2, 8}, {384, 64, 32, 1});
  };
  CHECK_NOTHROW(heed::attend(slice(0), slice(8), slice(16), slice(24)));
  CHECK(fused[24] == Approx(0.5));
}

TEST_CASE("strides beyond 32 bits", "[memory]") {
  const heed::index step = (heed::index{1} << 31) + 8;
  const sparse_memory memory(static_cast<std::size_t>(4 * step) * sizeof(float));
  const auto view = [&](heed::index at) {
    return heed::tensor_view<float, 4>(memory.as<float>() + at, {1, 3, 1, 2}, {0, step, 0, 1});
  };
  for (heed::index j = 0; j < 3; ++j) {
    for (heed::index d = 0; d < 2; ++d) view(4)(0, j, 0, d) = static_cast<float>(j + 1);
  }
  heed::attend(view(0), view(2), view(4), view(6), {.mask = heed::causal()});
  CHECK(view(6)(0, 2, 0, 1) == Approx(2));
}
