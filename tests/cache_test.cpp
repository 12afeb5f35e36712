// KvCache: batches, rings, limits, streams, threads, memory. What single mechanisms give is held
// against the golden cases by heed-attend --decode.
#include "heed/cache.hpp"

#include <sstream>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/reference/attend.hpp"
#include "random_problem.hpp"

namespace {

using Catch::Matchers::ContainsSubstring;
using heed::index;
using heed_test::layout;
using heed_test::random_source;
using heed_test::twin;

using cache_type = heed::KvCache<float, heed::rope>;

// Tokens of some sequences, and what attention gives for all of them.
struct conversations {
  index B = 3, T, H = 4, Hkv = 2, D = 6, Dv = 5;
  heed::mask mask;
  twin<4> q, k, v, out;
  twin<3> lse;

  explicit conversations(index tokens, const heed::mask& m = heed::causal()) : T(tokens), mask(m) {
    random_source random(3);
    const auto normal = [&](const heed::shape<4>& extents) {
      twin<4> t(extents, layout::fused);
      t.fill([&] { return random.normal(); });
      return t;
    };
    q = normal({B, T, H, D});
    k = normal({B, T, Hkv, D});
    v = normal({B, T, Hkv, Dv});
    out = twin<4>({B, T, H, Dv}, layout::contiguous);
    lse = twin<3>({B, T, H}, layout::contiguous);
    heed::reference::attend(q.read<double>(), k.read<double>(), v.read<double>(),
                            out.view<double>(), {.mask = mask, .lse = lse.view<double>()},
                            heed::rope{});
  }
  heed::cache_shape shape() const {
    return {.sequences = B, .heads = H, .kv_heads = Hkv, .head_size = D, .value_size = Dv};
  }
  cache_type cache(heed::cache_shape s, const heed::cache_options& options = {}) const {
    heed::cache_options with_mask = options;
    with_mask.mask = mask;
    return cache_type(s, with_mask, heed::rope{});
  }
  template <class Tensor>
  static auto part(const Tensor& t, index b, index from, index to) {
    return t.template read<float>().slice(0, b, b + 1).slice(1, from, to);
  }
  void append(cache_type& c, index b, index from, index to) const {
    c.append(b, part(k, b, from, to), part(v, b, from, to));
  }
  // Error of the rows of tokens [from, to), which are the newest.
  double attend(cache_type& c, index b, index from, index to) const {
    twin<4> found({1, to - from, H, Dv}, layout::every_second);
    twin<3> found_lse({1, to - from, H}, layout::contiguous);
    c.attend(b, part(q, b, from, to), found.view<float>(), found_lse.view<float>());
    const auto expected = out.read<double>().slice(0, b, b + 1).slice(1, from, to);
    const auto expected_lse = lse.read<double>().slice(0, b, b + 1).slice(1, from, to);
    return std::max(heed_test::relative_error(found.read<float>(), expected, 0.1),
                    heed_test::relative_error(found_lse.read<float>(), expected_lse, 1));
  }
  double step(cache_type& c, index b, index from, index to) const {
    append(c, b, from, to);
    return attend(c, b, from, to);
  }
};

}  // namespace

TEST_CASE("sequences of a batch have lengths of their own") {
  const conversations all(150);
  cache_type c = all.cache(all.shape());
  double worst = 0;
  heed::index at[3] = {0, 0, 0};
  random_source random(2);
  for (int n = 0; n < 60; ++n) {
    const heed::index b = random.integer(0, 2), t = random.integer(0, random.chance(0.1) ? 70 : 3);
    const heed::index to = std::min<heed::index>(150, at[b] + t);
    worst = std::max(worst, all.step(c, b, at[b], to));
    at[b] = to;
    CHECK(c.length(b) == to);
    // Rows may be asked for again, and fewer or more than were appended.
    worst = std::max(worst, all.attend(c, b, std::max<heed::index>(0, to - 5), to));
  }
  CHECK(worst < 4e-6);
}

TEST_CASE("a packed call and an equal one") {
  const conversations all(40);
  cache_type c = all.cache(all.shape());
  // Sequences 2 and 0 with 3 and 1 tokens, behind one another.
  const std::vector<int> list{2, 0}, cu{0, 3, 4};
  twin<4> k({1, 4, all.Hkv, all.D}, layout::contiguous);
  twin<4> v({1, 4, all.Hkv, all.Dv}, layout::contiguous), q({1, 4, all.H, all.D}, layout::fused);
  twin<4> out({1, 4, all.H, all.Dv}, layout::contiguous);
  const auto gather = [&](twin<4>& to, const twin<4>& from) {
    heed_test::for_each_index<4>(to.read<float>().extents(),
                                 [&](heed::index, heed::index t, heed::index h, heed::index d) {
                                   const heed::index b = t < 3 ? 2 : 0, row = t < 3 ? t : 0;
                                   to.set(from.read<double>()(b, row, h, d), 0, t, h, d);
                                 });
  };
  gather(k, all.k);
  gather(v, all.v);
  gather(q, all.q);
  c.append({list, cu}, k.read<float>(), v.read<float>());
  c.attend({list, cu}, q.read<float>(), out.view<float>());
  CHECK(heed_test::relative_error(out.read<float>().slice(1, 0, 3),
                                  all.out.read<double>().slice(0, 2, 3).slice(1, 0, 3)) < 4e-6);
  CHECK(heed_test::relative_error(out.read<float>().slice(1, 3, 4),
                                  all.out.read<double>().slice(0, 0, 1).slice(1, 0, 1)) < 4e-6);
  CHECK(c.length(1) == 0);

  c.reset();
  twin<4> rows({3, 40, all.H, all.Dv}, layout::contiguous);
  c.append({}, all.k.read<float>(), all.v.read<float>());
  c.attend({}, all.q.read<float>(), rows.view<float>());
  CHECK(heed_test::relative_error(rows.read<float>(), all.out.read<double>()) < 4e-6);
}

TEST_CASE("a ring holds a window and no more") {
  const conversations all(400, heed::causal().window(7, 0));
  heed::cache_shape shape = all.shape();
  shape.ring = true;
  shape.spare = 10;
  cache_type c = all.cache(shape);
  double worst = 0;
  // Steps of three sequences in turns, across the window and on.
  for (heed::index t = 0; t < 400; ++t) {
    for (heed::index b = 0; b < 3; ++b) worst = std::max(worst, all.step(c, b, t, t + 1));
  }
  CHECK(worst < 4e-6);
  CHECK(c.length(1) == 400);
  CHECK(c.oldest(1) >= 400 - 2 * 64 - 17);
  CHECK(c.capacity(1) <= 256);

  c.rollback(1, 10);
  CHECK(all.step(c, 1, 390, 400) < 4e-6);
  CHECK_THROWS_WITH(c.rollback(1, 300), ContainsSubstring("the ring has dropped tokens"));
  CHECK(c.length(1) == 400);
  c.reset(1);
  CHECK(all.step(c, 1, 0, 100) < 4e-6);  // more at once than a ring keeps
  CHECK(all.step(c, 1, 100, 130) < 4e-6);

  shape.ring = true;
  CHECK_THROWS_WITH(cache_type(shape, {}, heed::rope{}), ContainsSubstring("a mask with a window"));
}

TEST_CASE("first keys stay visible beside a window") {
  const conversations all(90, heed::causal().window(5, 0).always_visible(3));
  cache_type c = all.cache(all.shape());
  double worst = all.step(c, 0, 0, 20);
  for (heed::index t = 20; t < 90; ++t) worst = std::max(worst, all.step(c, 0, t, t + 1));
  CHECK(worst < 4e-6);
}

TEST_CASE("requests out of range throw and change nothing") {
  const conversations all(30);
  heed::cache_shape shape = all.shape();
  shape.max_length = 20;
  cache_type c = all.cache(shape);
  all.append(c, 0, 0, 15);
  CHECK_THROWS_WITH(all.append(c, 0, 15, 21), ContainsSubstring("20 (max_length)"));
  CHECK_THROWS_WITH(c.append(3, all.part(all.k, 0, 0, 1), all.part(all.v, 0, 0, 1)),
                    ContainsSubstring("there is no sequence 3 of 3"));
  CHECK_THROWS_WITH(c.rollback(0, 16), ContainsSubstring("which has 15"));
  CHECK_THROWS_AS(c.rollback(0, -1), heed::shape_error);
  CHECK_THROWS_AS(c.truncate(0, 16), heed::shape_error);
  CHECK_THROWS_AS(c.fork(0, 3), heed::shape_error);
  CHECK_THROWS_AS(c.reserve(21), heed::shape_error);
  CHECK_THROWS_AS(c.length(-1), heed::shape_error);
  CHECK_THROWS_WITH(all.attend(c, 0, 0, 16), ContainsSubstring("has 15 tokens, fewer than the 16"));
  const std::vector<int> twice{1, 1};
  CHECK_THROWS_WITH(c.append(heed::cache_batch(twice), all.k.read<float>().slice(0, 0, 2),
                             all.v.read<float>().slice(0, 0, 2)),
                    ContainsSubstring("sequence 1 is named twice"));
  // One of two sequences has no room: neither grows.
  const std::vector<int> both{1, 0};
  CHECK_THROWS_AS(c.append(heed::cache_batch(both), all.k.read<float>().slice(0, 0, 2),
                           all.v.read<float>().slice(0, 0, 2)),
                  heed::shape_error);
  CHECK(c.length(0) == 15);
  CHECK(c.length(1) == 0);
  bool refused = false;
  heed_test::out_of_memory = true;
  try {
    all.append(c, 1, 0, 20);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  heed_test::out_of_memory = false;
  CHECK(refused);
  CHECK(c.length(1) == 0);
  CHECK(all.attend(c, 0, 10, 15) < 4e-6);
}

TEST_CASE("steps within the capacity allocate nothing, in one sweep or two") {
  const conversations all(200);
  heed::cache_shape shape = all.shape();
  shape.capacity = 200;
  const auto decode = [&](auto& c) {
    twin<4> out({1, 1, all.H, all.Dv}, layout::contiguous);
    const auto step = [&](heed::index t) {
      c.append(0, all.part(all.k, 0, t, t + 1), all.part(all.v, 0, t, t + 1));
      c.attend(0, all.part(all.q, 0, t, t + 1), out.view<float>());
    };
    const std::size_t bytes = c.bytes();
    for (heed::index t = 0; t < 102; ++t) step(t);
    const long before = heed_test::allocations;
    for (heed::index t = 102; t < 200; ++t) step(t);
    CHECK(heed_test::allocations == before);
    CHECK(c.bytes() == bytes);
    c.fork(0, 1);
    CHECK(heed_test::allocations == before);
  };
  cache_type once = all.cache(shape);
  decode(once);
  const std::vector<float> weights(static_cast<std::size_t>(all.H * 9), 0.1F);
  const heed::conv<float> conv{.kernel = {weights.data(), {all.H, 3, 3}}};
  heed::KvCache<float, heed::conv<float>, heed::after<heed::conv<float>>> twice(
      shape, {.tuning = {0, 1}}, conv, heed::after{conv});
  decode(twice);
}

TEST_CASE("a stream gives back what it was given, or says why not") {
  const conversations all(120);
  cache_type c = all.cache(all.shape());
  all.append(c, 0, 0, 100);
  all.append(c, 2, 0, 7);
  std::stringstream stream;
  c.save(stream);
  const std::string written = stream.str();

  cache_type other = all.cache(all.shape());
  all.append(other, 1, 0, 3);
  std::stringstream good(written);
  other.load(good);
  CHECK(other.length(0) == 100);
  CHECK(other.length(1) == 0);
  CHECK(all.step(other, 0, 100, 120) < 4e-6);
  CHECK(all.attend(other, 2, 0, 7) < 4e-6);

  const auto refused = [&](const std::string& bytes) {
    std::stringstream bad(bytes);
    try {
      other.load(bad);
    } catch (const std::runtime_error& e) {
      CHECK(other.length(0) == 120);
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  for (std::size_t n = 0; n < written.size(); n = n < 200 ? n + 1 : n * 3 / 2) {
    CHECK_THAT(refused(written.substr(0, n)), ContainsSubstring("the stream ends within"));
  }
  CHECK_THAT(refused("PK" + written), ContainsSubstring("does not hold a cache"));
  std::string damaged = written;
  damaged[8] = 9;
  CHECK_THAT(refused(damaged), ContainsSubstring("the format's version of the stream is 9"));
  damaged = written;
  damaged[8 + 104 + 2] = 1;  // the first sequence's length
  CHECK_THAT(refused(damaged), ContainsSubstring("damaged"));
  heed::cache_shape wider = all.shape();
  wider.head_size = 8;
  heed::KvCache<float> foreign(wider);
  std::stringstream wrong;
  foreign.save(wrong);
  CHECK_THAT(refused(wrong.str()), ContainsSubstring("the head_size of the stream is 8"));
  CHECK(all.attend(other, 0, 115, 120) < 4e-6);
}

TEST_CASE("a long context is cut into ranges, whoever works on them") {
  const heed::index S = 70000, D = 4;
  random_source random(9);
  std::vector<float> k, v, q;
  for (heed::index n = 0; n < S * D; ++n) {
    k.push_back(static_cast<float>(random.normal()));
    v.push_back(static_cast<float>(random.normal()));
  }
  for (heed::index n = 0; n < 2 * D; ++n) q.push_back(static_cast<float>(random.normal()));
  const heed::shape<4> keys{1, S, 1, D}, row{1, 1, 2, D};
  const auto run = [&](heed::executor_ref executor) {
    cache_type c({.heads = 2, .kv_heads = 1, .head_size = D}, {.executor = executor}, heed::rope{});
    c.append(0, heed::tensor_view<const float, 4>(k.data(), keys),
             heed::tensor_view<const float, 4>(v.data(), keys));
    std::vector<float> out(q.size());
    c.attend(0, heed::tensor_view<const float, 4>(q.data(), row),
             heed::tensor_view<float, 4>(out.data(), row));
    return out;
  };
  heed::thread_pool pool(3);
  const std::vector<float> out = run({});
  CHECK(run(pool) == out);
  const std::vector<double> qd(q.begin(), q.end()), kd(k.begin(), k.end()), vd(v.begin(), v.end());
  std::vector<double> expected(qd.size());
  heed::reference::attend(heed::tensor_view<const double, 4>(qd.data(), row),
                          heed::tensor_view<const double, 4>(kd.data(), keys),
                          heed::tensor_view<const double, 4>(vd.data(), keys),
                          heed::tensor_view<double, 4>(expected.data(), row),
                          {.mask = heed::causal()}, heed::rope{});
  for (std::size_t n = 0; n < out.size(); ++n) {
    CHECK(static_cast<double>(out[n]) == Approx(expected[n]).margin(2e-7));
  }
}
