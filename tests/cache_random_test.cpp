// A cache under random operations, held against one that keeps all tokens and computes everything
// afresh with the reference.
#include <sstream>
#include <vector>

#include "catch.hpp"
#include "heed/cache.hpp"
#include "heed/mechanisms/cope.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/path.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/reference/attend.hpp"
#include "random_problem.hpp"

// Built with 10000 for a long run.
#ifndef HEED_CACHE_OPERATIONS
#define HEED_CACHE_OPERATIONS 700
#endif

namespace {

using heed::index;
using heed_test::random_source;

constexpr index H = 4, Hkv = 2, D = 6, sequences = 3, longest = 80, pool_size = 150;

// Tokens to draw from, and what does not change with them.
template <class T>
struct tokens {
  std::vector<T> q, k, v, w, beta, log_f, gate_keys;

  void add(random_source& random) {
    const auto fill = [&](std::vector<T>& to, index n, const auto& value) {
      for (index i = 0; i < n; ++i) to.push_back(static_cast<T>(static_cast<float>(value())));
    };
    const auto normal = [&] { return random.normal(); };
    fill(q, H * D, normal);
    fill(k, Hkv * D, normal);
    fill(v, Hkv * D, normal);
    fill(w, Hkv * D, [&] { return random.normal() / std::sqrt(static_cast<double>(D)); });
    fill(beta, Hkv, [&] { return random.uniform(0, 1.5); });
    fill(log_f, H, [&] { return random.chance(0.05) ? -30 : -0.2 * random.uniform(); });
    fill(gate_keys, Hkv * D, normal);
  }
  // The tokens of a list, one after the other.
  template <class U>
  tokens<U> gather(const std::vector<index>& list) const {
    tokens<U> some;
    const auto take = [&](const std::vector<T>& from, std::vector<U>& to, index row) {
      for (const index t : list) {
        for (index i = 0; i < row; ++i) {
          to.push_back(static_cast<U>(from[static_cast<std::size_t>(t * row + i)]));
        }
      }
    };
    take(q, some.q, H * D);
    take(k, some.k, Hkv * D);
    take(v, some.v, Hkv * D);
    take(w, some.w, Hkv * D);
    take(beta, some.beta, Hkv);
    take(log_f, some.log_f, H);
    take(gate_keys, some.gate_keys, Hkv * D);
    return some;
  }
  static heed::tensor_view<const T, 4> rows(const std::vector<T>& from, index heads) {
    return {from.data(), {1, static_cast<index>(from.size()) / (heads * D), heads, D}};
  }
  static heed::tensor_view<const T, 3> numbers(const std::vector<T>& from, index heads) {
    return {from.data(), {1, static_cast<index>(from.size()) / heads, heads}};
  }
  heed::path<T> path() const { return {rows(w, Hkv), numbers(beta, Hkv)}; }
  heed::fox<T> fox() const { return {numbers(log_f, H)}; }
  heed::cope<T> cope(const std::vector<T>& table) const {
    return {heed::tensor_view<const T, 2>(table.data(), {D, 9}), heed::cope_scale::divided,
            heed::cope_gates::separate_keys, rows(gate_keys, Hkv)};
  }
};

template <class T>
struct parameters {
  std::vector<T> table, kernel, mix;

  explicit parameters(random_source random) {
    const auto fill = [&](std::vector<T>& to, int n) {
      for (int i = 0; i < n; ++i) to.push_back(static_cast<T>(static_cast<float>(random.normal())));
    };
    fill(table, D * 9);
    fill(kernel, H * 3 * 3);
    fill(mix, H / 2 * 2 * 2);
  }
  heed::conv<T> conv() const { return {{kernel.data(), {H, 3, 3}}, heed::conv_keys::both}; }
  heed::after<heed::group_mix<T>> after() const { return {{{mix.data(), {H / 2, 2, 2}}}}; }
};

class pair_of_caches {
 public:
  using cache_type =
      heed::KvCache<float, heed::rope, heed::path<float>, heed::cope<float>, heed::conv<float>,
                    heed::fox<float>, heed::after<heed::group_mix<float>>>;

  explicit pair_of_caches(std::uint64_t seed) : random_(seed), single_(random_), double_(random_) {
    for (index n = 0; n < pool_size; ++n) pool_.add(random_);
  }

  void operate() {
    switch (random_.integer(0, 15)) {
      case 0:
        return rollback();
      case 1:
        return fork();
      case 2:
        return truncate();
      case 3:
        if (random_.chance(0.2)) {
          const index s = random_.integer(0, sequences - 1);
          cache_.reset(s);
          at(s) = {};
        } else if (random_.chance(0.3)) {
          save_and_load();
        }
        return;
      default:
        return random_.chance(0.5) ? append() : attend();
    }
  }
  double worst() const { return worst_; }

 private:
  struct conversation {
    std::vector<index> list;  // of tokens in the pool
    index pending = 0;        // newest tokens whose rows have not been asked for
  };
  conversation& at(index s) { return state_[static_cast<std::size_t>(s)]; }
  index length(index s) { return static_cast<index>(at(s).list.size()); }

  // Some sequences, each with a number of tokens from least(s) to most(s).
  template <class Least, class Most>
  void draw(const Least& least, const Most& most) {
    named_.clear();
    cu_ = {0};
    for (index s = sequences - 1; s >= 0; --s) {
      if (random_.chance(0.4)) continue;
      const index n = random_.integer(least(s), most(s));
      named_.push_back(s);
      cu_.push_back(cu_.back() + n);
    }
  }
  heed::cache_batch batch() const { return {named_, cu_}; }

  void append() {
    draw([](index) { return 0; },
         [&](index s) {
           return std::min<index>(random_.chance(0.1) ? 70 : 4, longest - length(s));
         });
    std::vector<index> fresh;
    for (std::size_t n = 0; n < named_.size(); ++n) {
      for (index t = cu_[n]; t < cu_[n + 1]; ++t) {
        fresh.push_back(random_.integer(0, pool_size - 1));
        at(named_[n]).list.push_back(fresh.back());
        ++at(named_[n]).pending;
      }
    }
    const tokens<float> some = pool_.gather<float>(fresh);
    cache_.append(batch(), tokens<float>::rows(some.k, Hkv), tokens<float>::rows(some.v, Hkv),
                  some.path(), some.cope(single_.table), some.fox());
    for (index s = 0; s < sequences; ++s) CHECK(cache_.length(s) == length(s));
  }
  void attend() {
    draw([&](index s) { return at(s).pending; },
         [&](index s) { return std::min(length(s), at(s).pending + 3); });
    std::vector<index> asked;
    for (std::size_t n = 0; n < named_.size(); ++n) {
      const auto& list = at(named_[n]).list;
      asked.insert(asked.end(), list.end() - (cu_[n + 1] - cu_[n]), list.end());
      at(named_[n]).pending = 0;
    }
    const tokens<float> some = pool_.gather<float>(asked);
    std::vector<float> out(some.q.size());
    cache_.attend(batch(), tokens<float>::rows(some.q, H),
                  heed::tensor_view<float, 4>(out.data(), {1, cu_.back(), H, D}));
    for (std::size_t n = 0; n < named_.size(); ++n) {
      compare(named_[n], out.data() + cu_[n] * H * D, cu_[n + 1] - cu_[n]);
    }
  }
  void compare(index s, const float* found, index rows) {
    if (rows == 0) return;
    const tokens<double> all = pool_.gather<double>(at(s).list);
    std::vector<double> out(all.q.size());
    heed::reference::attend(tokens<double>::rows(all.q, H), tokens<double>::rows(all.k, Hkv),
                            tokens<double>::rows(all.v, Hkv),
                            heed::tensor_view<double, 4>(out.data(), {1, length(s), H, D}),
                            {.mask = heed::causal()}, heed::rope{}, all.path(),
                            all.cope(double_.table), double_.conv(), all.fox(), double_.after());
    double largest = 1;
    const std::size_t first = out.size() - static_cast<std::size_t>(rows * H * D);
    for (std::size_t n = first; n < out.size(); ++n) largest = std::max(largest, std::abs(out[n]));
    for (std::size_t n = first; n < out.size(); ++n) {
      const double error = std::abs(out[n] - static_cast<double>(found[n - first])) / largest;
      if (!(error <= worst_)) worst_ = error;
    }
  }
  void shorten(index s, index to) {
    conversation& c = at(s);
    c.pending = std::max<index>(0, c.pending - (length(s) - to));
    c.list.resize(static_cast<std::size_t>(to));
  }
  void rollback() {
    const index s = random_.integer(0, sequences - 1);
    const index n = random_.integer(0, std::min<index>(length(s), random_.chance(0.2) ? 80 : 6));
    cache_.rollback(s, n);
    shorten(s, length(s) - n);
  }
  void truncate() {
    const index s = random_.integer(0, sequences - 1), to = random_.integer(0, length(s));
    CHECK_THROWS_AS(cache_.truncate(s, length(s) + 1), heed::shape_error);
    cache_.truncate(s, to);
    shorten(s, to);
  }
  void fork() {
    const index from = random_.integer(0, sequences - 1), to = random_.integer(0, sequences - 1);
    cache_.fork(from, to);
    at(to) = conversation(at(from));
  }
  void save_and_load() {
    std::stringstream stream;
    cache_.save(stream);
    for (index s = 0; s < sequences; ++s) cache_.reset(s);
    cache_.load(stream);
  }

  random_source random_;
  parameters<float> single_;
  parameters<double> double_;
  tokens<float> pool_;
  cache_type cache_{{.sequences = sequences, .heads = H, .kv_heads = Hkv, .head_size = D},
                    {},
                    heed::rope{},
                    heed::path<float>{},
                    tokens<float>().cope(single_.table),
                    single_.conv(),
                    heed::fox<float>{},
                    single_.after()};
  std::vector<conversation> state_{sequences};
  std::vector<std::int64_t> named_, cu_;
  double worst_ = 0;
};

}  // namespace

TEST_CASE("random operations leave what a cache that forgets nothing has") {
  pair_of_caches caches(5);
  for (int n = 0; n < HEED_CACHE_OPERATIONS; ++n) {
    INFO("operation " << n);
    caches.operate();
  }
  CHECK(caches.worst() > 0);
  CHECK(caches.worst() < 2e-5);
}
