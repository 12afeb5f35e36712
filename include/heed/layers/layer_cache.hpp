// What a layer remembers while it decodes: the cache of its mechanisms, and the last rows that
// shifts and convolutions still read.
#pragma once

#include <array>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "heed/cache.hpp"
#include "heed/layers/state.hpp"

namespace heed::inline HEED_ABI {

template <class T, template <class> class... Parts>
class MultiHeadAttention;

}  // namespace heed::inline HEED_ABI

namespace heed::inline HEED_ABI::layers {

// KvCache of a tuple of mechanisms.
template <class Element, class Mechanisms>
struct cache_of;
template <class Element, class... Mechanisms>
struct cache_of<Element, std::tuple<Mechanisms...>> {
  using type = KvCache<Element, Mechanisms...>;
};

// Made by MultiHeadAttention::make_cache; looks at the parameters of that layer, which must stay
// where it is. Tape: the layer's, used again by every call.
template <class Tokens, class Tape, std::size_t Parts>
class layer_cache {
 public:
  using value_type = typename Tokens::value_type;
  using history_type = row_history<value_type>;

  layer_cache(Tokens tokens, history_type key, history_type value,
              std::array<history_type, Parts> parts)
      : tokens_(std::move(tokens)),
        key_(std::move(key)),
        value_(std::move(value)),
        parts_(std::move(parts)),
        all_(static_cast<std::size_t>(tokens_.shape().sequences)) {
    std::iota(all_.begin(), all_.end(), index{0});
  }

  index sequences() const noexcept { return tokens_.shape().sequences; }
  // Tokens that a sequence has had. Throws shape_error for a sequence that there is not, like
  // everything below.
  index length(index sequence) const { return tokens_.length(sequence); }
  // Takes back all tokens of a sequence.
  void reset(index sequence) {
    tokens_.reset(sequence);
    each_history([&](history_type& h) { h.reset(sequence); });
  }
  // Makes sequence `to` a copy of sequence `from`.
  void fork(index from, index to) {
    tokens_.fork(from, to);
    each_history([&](history_type& h) { h.copy(from, to); });
  }
  // The cache of keys, values and the mechanisms' tensors, to look at and to reserve room in.
  Tokens& tokens() noexcept { return tokens_; }
  const Tokens& tokens() const noexcept { return tokens_; }

 private:
  template <class, template <class> class...>
  friend class heed::MultiHeadAttention;

  static history_rows<value_type> history(history_type& h, std::span<const index> of) noexcept {
    if (h.depth == 0) return {};
    return {&h, of};
  }
  template <class F>
  void each_history(const F& f) {
    f(key_);
    f(value_);
    for (history_type& h : parts_) f(h);
  }

  Tokens tokens_;
  history_type key_, value_;
  std::array<history_type, Parts> parts_;
  std::vector<index> all_;
  Tape tape_;
};

}  // namespace heed::inline HEED_ABI::layers
