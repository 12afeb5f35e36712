// KvCache: attention one token, or one chunk of tokens, at a time.
//
//   heed::KvCache<float> cache({.sequences = 2, .heads = 8, .head_size = 64});
//   cache.append({}, k, v);               // the prompts' tokens, [2, t, 8, 64]
//   cache.attend({}, q, out);             // their rows, [2, t, 8, 64]
//   cache.append(0, k, v);                // then tokens of the first, [1, 1, 8, 64]
//   cache.attend(0, q, out);              // and the rows of these tokens
//
// What attend gives for the newest tokens of a sequence is what heed::attend with the same mask and
// mechanisms gives for them among all tokens of the sequence, to rounding, in whatever chunks the
// tokens came. Sequences have lengths of their own.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "heed/cache_options.hpp"
#include "heed/checks.hpp"
#include "heed/kernel/cache_append.hpp"
#include "heed/kernel/cache_attend.hpp"
#include "heed/kernel/cache_stream.hpp"

namespace heed::inline HEED_ABI {

// A mechanism with the entries of tokens [from, to) of its tensors: what append takes of them.
// Throws shape_error for tokens that there are not.
template <class Mechanism>
Mechanism tokens_between(const Mechanism& mechanism, index from, index to) {
  Mechanism part = mechanism;
  if constexpr (!kernel::expands_to_stages<Mechanism>) {
    if constexpr (kernel::has_hook<Mechanism>(hook::tokens)) {
      Mechanism::tokens(part, problem{}, [&](const char*, auto& view, const auto&) {
        view = view.slice(1, from, to);
      });
    }
  }
  return part;
}

namespace detail {
template <class Element>
struct cache_element {
  using type = Element;
  using stored = Element;
};
template <class T, class Stored>
struct cache_element<stored_as<T, Stored>> {
  using type = T;
  using stored = Stored;
};
}  // namespace detail

// Keys, values and whatever else the mechanisms need of the past, for a batch of sequences. Element
// is float, double, or stored_as<float, bfloat16> and the like; arithmetic is in T.
//
// A mechanism's tensors that have an entry for each token (fox: log_f; path: w, beta; cope:
// gate_keys) come with the tokens, in append. All else that a mechanism holds is given at
// construction: embeddings, kernels, slopes, conventions; these views must stay good.
//
// Calls that throw change nothing. Not for use by two threads at the same time.
template <class Element, class... Mechanisms>
class KvCache {
 public:
  using value_type = typename detail::cache_element<Element>::type;
  using stored_type = typename detail::cache_element<Element>::stored;

 private:
  using T = value_type;
  using All = decltype(std::tuple_cat(kernel::expand(std::declval<const Mechanisms&>())...));
  using Arch = kernel::default_arch;
  using lanes = kernel::cache_lanes<T, Arch, stored_type, All>;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "heed: KvCache computes in float or double");

 public:
  // Throws shape_error for extents, a mask or mechanisms that do not fit together, std::bad_alloc.
  explicit KvCache(const cache_shape& shape, const cache_options& options = {},
                   const Mechanisms&... mechanisms);

  const cache_shape& shape() const noexcept { return shape_; }
  // Tokens that the sequence has had appended, dropped ones of a ring included. Throws shape_error
  // for a sequence that there is not, like everything below.
  index length(index sequence) const {
    const kernel::token_store& s = stores_[checked("length", sequence)];
    return s.before() + s.length();
  }
  // The oldest token that is still there: 0 without a ring.
  index oldest(index sequence) const { return stores_[checked("oldest", sequence)].before(); }
  // Bytes held for tokens, in use or not; scratch memory not counted.
  std::size_t bytes() const noexcept {
    std::size_t sum = 0;
    for (const kernel::token_store& s : stores_) sum += s.bytes();
    return sum;
  }
  // Tokens that a sequence can hold before it grows.
  index capacity(index sequence) const { return stores_[checked("capacity", sequence)].capacity(); }
  // Room for so many tokens of one sequence, or of each.
  void reserve(index sequence, index tokens) {
    stores_[checked("reserve", sequence)].reserve(within_limit("reserve", tokens));
  }
  void reserve(index tokens) {
    within_limit("reserve", tokens);
    for (kernel::token_store& s : stores_) s.reserve(tokens);
  }

  // Appends tokens: k [n, t, Hkv, D], v [n, t, Hkv, Dv], and for each mechanism that has tensors of
  // its own for each token a value of its type that holds them, [n, t, ...]; other members of these
  // values are not looked at. Input mechanisms (rope) go on counting positions. Nothing is
  // allocated while the tokens fit the capacity.
  //
  // Throws shape_error where the views do not fit, a mechanism's tensors are missing, or a sequence
  // would become longer than max_length; std::bad_alloc.
  template <class K, class V, class... New>
  void append(const cache_batch& which, const tensor_view<K, 4>& k, const tensor_view<V, 4>& v,
              const New&... tokens);

  // Rows of the newest tokens: q [n, t, Hq, D], out [n, t, Hq, Dv], lse [n, t, Hq] or no view. Row
  // i of a sequence's t belongs to token length - t + i. A mechanism that reads earlier rows (MTA's
  // convolutions) finds their queries in the cache: rows are to be asked for in order, every one.
  //
  // Throws shape_error where the views do not fit, a sequence has fewer than t tokens, a ring has
  // dropped what a row sees, or earlier rows have not been asked for; std::bad_alloc.
  template <class Q>
  void attend(const cache_batch& which, const tensor_view<Q, 4>& q, const tensor_view<T, 4>& out,
              const tensor_view<T, 3>& lse = {});

  // Takes back the newest tokens: all is as if they had never been. Throws shape_error for more
  // than there are, and where a ring has dropped tokens that would be seen again.
  void rollback(index sequence, index tokens);
  // The same, to a length.
  void truncate(index sequence, index length);
  // Takes back all tokens. Memory stays.
  void reset(index sequence) {
    const std::size_t n = checked("reset", sequence);
    stores_[n].clear();
    asked_[n] = {};
  }
  void reset() {
    for (index n = 0; n < shape_.sequences; ++n) reset(n);
  }
  // Makes sequence `to` a copy of sequence `from`: a shared prompt, a beam. Copies all that is
  // stored of it.
  void fork(index from, index to);

  // Writes all sequences. The stream can be read by a cache of the same shape, element types and
  // mechanisms, built for the same instruction set; what the mechanisms were given at construction
  // is not in it. Throws kernel::cache_stream_error, a std::runtime_error, where the stream fails.
  void save(std::ostream& to) const;
  // Becomes what save has written. Throws kernel::cache_stream_error where the stream ends too
  // early, or holds something else or another kind of cache; std::bad_alloc.
  void load(std::istream& from);

 private:
  // Tokens of one sequence in the views of a call.
  struct piece {
    std::size_t sequence;
    index batch, first, count;
  };
  // Tokens whose queries the cache has: rows above later ones.
  struct asked_rows {
    index begin = 0, end = 0;
  };

  std::size_t checked(const char* who, index sequence) const {
    if (sequence < 0 || sequence >= shape_.sequences) {
      throw shape_error(std::string("heed: KvCache::") + who + ": there is no sequence " +
                        std::to_string(sequence) + " of " + std::to_string(shape_.sequences));
    }
    return static_cast<std::size_t>(sequence);
  }
  index within_limit(const char* who, index tokens) const {
    if (tokens < 0 || (shape_.max_length > 0 && tokens > shape_.max_length)) {
      throw shape_error(std::string("heed: KvCache::") + who + ": " + std::to_string(tokens) +
                        " tokens, expected 0 to " +
                        (shape_.max_length > 0 ? std::to_string(shape_.max_length) + " (max_length)"
                                               : "any number"));
    }
    return tokens;
  }
  workspace& scratch() noexcept { return options_.workspace ? *options_.workspace : own_; }

  void check_shape();
  std::span<const piece> pieces_of(const char* who, const cache_batch& which, index entries,
                                   index tokens);
  template <int Rank, class U>
  static tensor_view<U, Rank> tokens_of(const tensor_view<U, Rank>& view, const piece& p) {
    return view.slice(0, p.batch, p.batch + 1).slice(1, p.first, p.first + p.count);
  }
  // Tokens that a ring may drop now.
  index droppable(const kernel::token_store& s) const noexcept {
    if (!shape_.ring) return 0;
    return (std::max)(index{0}, s.length() - older_ - shape_.spare) / granule_ * granule_;
  }
  template <class... New>
  All with_new(const New&... tokens) const;
  void make_room(std::span<const piece> pieces);
  kernel::cache_header header() const noexcept;
  kernel::token_store empty_store() const;
  asked_rows load_sequence(std::istream& from, kernel::token_store& to) const;
  void check_rows(const piece& at) const;
  void keep_queries(const piece& at, kernel::new_queries<T, All>& to);

  cache_shape shape_;
  cache_options options_;
  All all_;
  problem problem_;
  index above_ = 0;    // rows above that a row reads
  index older_ = 0;    // keys before a new token that its row reads, with a window
  index granule_ = 1;  // a ring drops multiples of this
  std::vector<kernel::token_store> stores_;
  std::vector<asked_rows> asked_;
  std::vector<piece> pieces_;
  std::vector<bool> named_;
  workspace own_;
};

}  // namespace heed::inline HEED_ABI

#include "heed/cache_calls.hpp"
#include "heed/cache_save.hpp"
