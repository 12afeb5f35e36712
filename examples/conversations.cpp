// heed-conversations: several conversations of different lengths in one batch. They are continued
// together, one is forked to try another answer, one takes tokens back that a draft had guessed;
// in the end everything is held against attention over each conversation as a whole.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "heed/attend.hpp"
#include "heed/cache.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/rope.hpp"

namespace {

using heed::index;

constexpr index heads = 8, kv_heads = 2, head_size = 64;

// Where a model's projections would stand: numbers in [-1, 1) that depend on the token and its
// place alone.
float number(index token, index place, index which, index n) {
  auto x = static_cast<std::uint64_t>(((token * 31 + place) * 7 + which) * 4096 + n) + 1;
  x *= 0x9e3779b97f4a7c15U;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9U;
  return static_cast<float>(x >> 40) * 0x1p-23F - 1;
}

// Projections of tokens, one behind the other.
struct projections {
  std::vector<float> q, k, v, log_f;

  void add(index token, index place) {
    for (index n = 0; n < heads * head_size; ++n) q.push_back(number(token, place, 0, n));
    for (index n = 0; n < kv_heads * head_size; ++n) k.push_back(number(token, place, 1, n));
    for (index n = 0; n < kv_heads * head_size; ++n) v.push_back(number(token, place, 2, n));
    for (index n = 0; n < heads; ++n) log_f.push_back(0.02F * (number(token, place, 3, n) - 1));
  }
  index size() const { return static_cast<index>(q.size()) / (heads * head_size); }
  heed::tensor_view<const float, 4> rows(const std::vector<float>& x, index h) const {
    return {x.data(), {1, size(), h, head_size}};
  }
  heed::fox<float> gates() const {
    return {heed::tensor_view<const float, 3>(log_f.data(), {1, size(), heads})};
  }
};

// Conversations as lists of tokens, and the cache that remembers them.
class batch {
 public:
  explicit batch(index count) : said_(static_cast<std::size_t>(count)), rows_(said_.size()) {}

  // Says so many tokens in each of some conversations, all in one call.
  void say(const std::vector<std::int64_t>& who, const std::vector<index>& count) {
    projections fresh;
    std::vector<std::int64_t> cu{0};
    for (std::size_t n = 0; n < who.size(); ++n) {
      auto& tokens = said_[static_cast<std::size_t>(who[n])];
      for (index t = 0; t < count[n]; ++t) {
        tokens.push_back(next_++);
        fresh.add(tokens.back(), static_cast<index>(tokens.size()) - 1);
      }
      cu.push_back(fresh.size());
    }
    std::vector<float> out(fresh.q.size());
    cache_.append({who, cu}, fresh.rows(fresh.k, kv_heads), fresh.rows(fresh.v, kv_heads),
                  fresh.gates());
    cache_.attend({who, cu}, fresh.rows(fresh.q, heads),
                  heed::tensor_view<float, 4>(out.data(), {1, fresh.size(), heads, head_size}));
    for (std::size_t n = 0; n < who.size(); ++n) {
      auto& rows = rows_[static_cast<std::size_t>(who[n])];
      rows.insert(rows.end(), out.begin() + cu[n] * heads * head_size,
                  out.begin() + cu[n + 1] * heads * head_size);
    }
  }
  void fork(std::size_t from, std::size_t to) {
    cache_.fork(static_cast<index>(from), static_cast<index>(to));
    said_[to] = said_[from];
    rows_[to] = rows_[from];
  }
  void take_back(std::size_t who, index count) {
    cache_.rollback(static_cast<index>(who), count);
    said_[who].resize(said_[who].size() - static_cast<std::size_t>(count));
    rows_[who].resize(rows_[who].size() - static_cast<std::size_t>(count * heads * head_size));
  }

  void print(const char* what) const {
    std::printf("%-46s", what);
    for (index n = 0; n < static_cast<index>(said_.size()); ++n) {
      std::printf("%6td", cache_.length(n));
    }
    std::printf("   %.1f MB\n", static_cast<double>(cache_.bytes()) / 1048576);
  }
  // The largest difference of any row from attention over its conversation as a whole.
  double error() const {
    double worst = 0;
    for (std::size_t n = 0; n < said_.size(); ++n) {
      projections all;
      for (std::size_t t = 0; t < said_[n].size(); ++t) {
        all.add(said_[n][t], static_cast<index>(t));
      }
      std::vector<float> out(all.q.size());
      heed::attend(all.rows(all.q, heads), all.rows(all.k, kv_heads), all.rows(all.v, kv_heads),
                   heed::tensor_view<float, 4>(out.data(), {1, all.size(), heads, head_size}),
                   {.mask = heed::causal()}, heed::rope{}, all.gates());
      for (std::size_t i = 0; i < out.size(); ++i) {
        worst = std::max(worst,
                         std::abs(static_cast<double>(out[i]) - static_cast<double>(rows_[n][i])));
      }
    }
    return worst;
  }

 private:
  heed::KvCache<float, heed::rope, heed::fox<float>> cache_{
      {.sequences = 4, .heads = heads, .kv_heads = kv_heads, .head_size = head_size},
      {},
      heed::rope{},
      heed::fox<float>{}};
  std::vector<std::vector<index>> said_;
  std::vector<std::vector<float>> rows_;
  index next_ = 0;
};

}  // namespace

int main() {
  batch all(4);
  std::printf("%-46s%6s%6s%6s%6s\n", "tokens of conversation", "0", "1", "2", "3");
  all.say({0, 1, 2}, {300, 40, 7});
  all.print("three prompts in one call");
  for (int n = 0; n < 20; ++n) all.say({0, 1, 2}, {1, 1, 1});
  all.print("twenty tokens each, all in step");
  all.fork(1, 3);
  for (int n = 0; n < 5; ++n) all.say({1, 3}, {1, 1});
  all.print("1 forked to 3, and both go on");
  all.say({0}, {8});
  all.take_back(0, 5);
  all.print("a draft of 8 tokens in 0, of which 3 are kept");
  all.say({0, 1, 2, 3}, {1, 2, 3, 4});
  all.print("on they go, at different paces");
  const double error = all.error();
  std::printf("largest difference from whole conversations: %.1e\n", error);
  return error < 1e-5 ? 0 : 1;
}
