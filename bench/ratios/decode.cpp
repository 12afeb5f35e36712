#include <algorithm>
#include <cmath>
#include <memory>

#include "heed/cache.hpp"
#include "heed/half.hpp"
#include "ratios.hpp"

namespace ratios {

namespace {

// A cache of one sequence, full of random tokens, and a query.
template <class Element, class... Mechanisms>
class decoder {
 public:
  decoder(index tokens, index heads, index kv_heads, index D, heed::executor_ref executor = {})
      : tokens_(tokens),
        kv_(kv_heads),
        D_(D),
        query_(normal(heads * D, 1)),
        out_(query_.size()),
        cache_({.heads = heads, .kv_heads = kv_heads, .head_size = D, .capacity = tokens},
               {.executor = executor}, Mechanisms{}...) {
    const std::vector<float> k = normal(block * kv_ * D, 2), v = normal(block * kv_ * D, 3);
    // Gates that forget over some 2000 tokens, and directions of unit length.
    std::vector<float> log_f = normal(block * heads, 4, 1.0F / 2000);
    std::vector<float> w = normal(block * kv_ * D, 5), beta(static_cast<std::size_t>(block * kv_));
    for (float& x : log_f) x = -std::abs(x);
    for (float& x : beta) x = 1;
    for (std::size_t at = 0; at < w.size(); at += static_cast<std::size_t>(D)) unit(&w[at]);
    [[maybe_unused]] const auto fill = [&](auto mechanism) {
      if constexpr (requires { mechanism.log_f; }) {
        mechanism.log_f = {log_f.data(), {1, block, heads}};
      }
      if constexpr (requires { mechanism.w; }) {
        mechanism.w = {w.data(), {1, block, kv_, D}};
        mechanism.beta = {beta.data(), {1, block, kv_}};
      }
      return mechanism;
    };
    for (index t = 0; t < tokens; t += block) {
      cache_.append(0, heed::tensor_view<const float, 4>(k.data(), {1, block, kv_, D}),
                    heed::tensor_view<const float, 4>(v.data(), {1, block, kv_, D}),
                    fill(Mechanisms{})...);
    }
  }
  void step() {
    const heed::shape<4> row{1, 1, static_cast<index>(query_.size()) / D_, D_};
    cache_.attend(0, heed::tensor_view<const float, 4>(query_.data(), row),
                  heed::tensor_view<float, 4>(out_.data(), row));
  }
  // Keys and values that a step reads.
  index elements() const { return 2 * tokens_ * kv_ * D_; }

 private:
  static constexpr index block = 1024;

  void unit(float* w) const {
    float sum = 0;
    for (index d = 0; d < D_; ++d) sum += w[d] * w[d];
    for (index d = 0; d < D_; ++d) w[d] /= std::sqrt(sum);
  }

  index tokens_, kv_, D_;
  std::vector<float> query_, out_;
  heed::KvCache<Element, Mechanisms...> cache_;
};

// Reads memory from four places at once, nothing else; with the pages that a cache has.
class read_sweep {
 public:
  explicit read_sweep(index elements) {
    memory_.reserve(static_cast<std::size_t>(elements));
    heed::kernel::ask_for_large_pages(memory_.data(), memory_.capacity() * sizeof(float));
    memory_.assign(memory_.capacity(), 1.0F);
  }
  void run() {
    using vec = xsimd::batch<float>;
    constexpr index w = static_cast<index>(vec::size);
    const index quarter = static_cast<index>(memory_.size()) / 4;
    const float* p = memory_.data();
    vec sums[4] = {vec(0.0F), vec(0.0F), vec(0.0F), vec(0.0F)};
    for (index i = 0; i + w <= quarter; i += w) {
      heed::kernel::unroll<4>(
          [&](auto n) HEED_INLINE_LAMBDA { sums[n] += vec::load_unaligned(p + n * quarter + i); });
    }
    kept_ = heed::kernel::sum_lanes(sums[0] + sums[1] + sums[2] + sums[3]);
  }

 private:
  std::vector<float> memory_;
  volatile float kept_ = 0;
};

template <class... Mechanisms>
double of_bandwidth(index heads, index kv_heads, index D) {
  decoder<float, Mechanisms...> cache(65536, heads, kv_heads, D);
  read_sweep sweep(cache.elements());
  return 1 / time_ratio([&] { cache.step(); }, [&] { sweep.run(); });
}

double half_against_float() {
  decoder<float> whole(65536, 8, 8, 64);
  decoder<heed::stored_as<float, heed::bfloat16>> half(65536, 8, 8, 64);
  return time_ratio([&] { whole.step(); }, [&] { half.step(); });
}

double two_threads() {
  heed::thread_pool pool(2);
  decoder<float> one(65536, 32, 8, 128), two(65536, 32, 8, 128, pool);
  return time_ratio([&] { one.step(); }, [&] { two.step(); }, 15, clock::wall);
}

}  // namespace

void add_decode(std::vector<entry>& list) {
  list.push_back(
      {"decode_softmax_h8_d64_s65536_of_bandwidth",
       "one query against a cache: rate of reading keys and values, as a part of a plain "
       "read of as much memory",
       [] { return of_bandwidth(8, 8, 64); }});
  list.push_back({"decode_fox_h8_d64_s65536_of_bandwidth", "the same with FoX",
                  [] { return of_bandwidth<heed::fox<float>>(8, 8, 64); }});
  list.push_back({"decode_path_h8_d64_s65536_of_bandwidth", "the same with PaTH",
                  [] { return of_bandwidth<heed::path<float>>(8, 8, 64); }});
  list.push_back({"decode_gqa_h32_kv8_d128_s65536_of_bandwidth",
                  "the same, 32 query heads on 8 key heads of size 128",
                  [] { return of_bandwidth(32, 8, 128); }});
  list.push_back({"decode_h8_d64_bf16_vs_f32", "time of a step with a float cache over bfloat16",
                  half_against_float});
  list.push_back({"decode_gqa_2threads_speedup",
                  "one thread's time over two threads', the shape "
                  "with 32 heads on 8",
                  two_threads});
}

}  // namespace ratios
