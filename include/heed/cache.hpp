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

#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "heed/checks.hpp"
#include "heed/kernel/cache_append.hpp"
#include "heed/kernel/cache_attend.hpp"

namespace heed::inline HEED_ABI {

// Element type of a KvCache that computes in T and stores keys and values as Stored.
template <class T, class Stored>
struct stored_as {};

// Extents of a cache.
struct cache_shape {
  index sequences = 1;
  index heads = 1;        // query heads
  index kv_heads = 0;     // a divisor of heads; 0: as many
  index head_size = 1;    // D
  index value_size = -1;  // Dv; -1: head_size
  index capacity = 0;     // tokens of each sequence that there is room for from the start
  index max_length = 0;   // tokens that a sequence may have; 0: no limit
  bool ring = false;      // with a window: tokens that no later row sees are dropped
  index spare = 64;       // with a ring: how many tokens rollback can take back, at least
};

// What all calls of a cache have in common.
struct cache_options {
  // causal(), with a window and always_visible where wanted; no lists, no view.
  heed::mask mask = causal();
  std::optional<double> scale = {};      // of q.k; default 1 / sqrt(D)
  executor_ref executor = {};            // who runs the tasks; default: the calling thread
  heed::workspace* workspace = nullptr;  // scratch that several caches may share, used by one call
                                         // at a time; default: one of its own
  heed::tuning tuning = {};
};

// The sequences of one call, and how the views of the call hold their tokens. A view's axis 0 has
// an entry for each sequence of the list, axis 1 as many tokens for all of them. Or, with `cu`,
// axis 0 has one entry and sequence n of the list has tokens [cu[n], cu[n+1]).
struct cache_batch {
  index_list sequences = {};  // each at most once; not given: all, in order
  index_list cu = {};         // [sequences + 1]
  index single = -1;          // one sequence, in place of a list

  cache_batch() = default;
  cache_batch(index sequence) : single(sequence) {}
  cache_batch(int sequence) : single(sequence) {}
  cache_batch(index_list list, index_list cu_tokens = {}) : sequences(list), cu(cu_tokens) {}
};

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

template <class Element, class... Mechanisms>
KvCache<Element, Mechanisms...>::KvCache(const cache_shape& shape, const cache_options& options,
                                         const Mechanisms&... mechanisms)
    : shape_(shape), options_(options), all_(std::tuple_cat(kernel::expand(mechanisms)...)) {
  check_shape();
  std::apply(
      []<class... Stages>(const Stages&...) {
        static_assert((kernel::check_stage<Stages, T, Arch>() && ...));
      },
      all_);
  // Tensors with an entry for each token come later: none yet.
  kernel::for_each_token_tensor(all_, problem_,
                                [&](auto&, const char*, auto& view, const auto& extents) {
                                  view = kernel::token_rows<const T>(nullptr, 0, extents);
                                });
  problem_.B = 1;
  kernel::for_each(all_,
                   [&](const auto& stage) { check_mechanism(stage, problem_, options_.mask); });
  using list_type = typename lanes::list_type;
  const list_type list(all_);
  kernel::check_pruning<list_type, typename lanes::source_type::rows_type>(list);
  above_ = list.logits_reach.rows_above + list.probs_reach.rows_above;
  older_ = options_.mask.left + above_;
  granule_ = lanes::source_type::granule(list.scores);
  const std::vector<kernel::lane_size> sizes = lanes::sizes(all_, problem_);
  for (index n = 0; n < shape_.sequences; ++n) {
    stores_.emplace_back(sizes, lanes::source_type::aside_bytes(problem_));
    stores_.back().reserve(shape_.capacity);
  }
  const auto count = static_cast<std::size_t>(shape_.sequences);
  asked_.resize(count);
  pieces_.reserve(count);
  named_.resize(count);
}

template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::check_shape() {
  const auto refuse = [](const char* what, index found, const std::string& expected) {
    throw shape_error(std::string("heed: KvCache: ") + what + ": is " + std::to_string(found) +
                      ", expected " + expected);
  };
  cache_shape& s = shape_;
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  if (s.value_size == -1) s.value_size = s.head_size;
  if (s.sequences < 0) refuse("sequences", s.sequences, "at least 0");
  if (s.heads < 1) refuse("heads", s.heads, "at least 1");
  if (s.kv_heads < 1 || s.heads % s.kv_heads != 0) {
    refuse("kv_heads", s.kv_heads, "a divisor of the " + std::to_string(s.heads) + " heads");
  }
  if (s.head_size < 1) refuse("head_size", s.head_size, "at least 1");
  if (s.value_size < 0) refuse("value_size", s.value_size, "at least 0");
  if (s.max_length < 0) refuse("max_length", s.max_length, "at least 0");
  if (s.spare < 0) refuse("spare", s.spare, "at least 0");
  within_limit("capacity", s.capacity);
  const mask& m = options_.mask;
  check_hides_newer_keys("KvCache", m);
  if (m.cu_q.given() || m.cu_k.given() || m.key_length.given() || m.key_start.given() ||
      m.query_start.given() || m.shown.data() != nullptr || m.align != alignment::bottom_right) {
    throw shape_error(
        "heed: KvCache: the mask holds lists, a view or another alignment; expected causal(), with "
        "window and always_visible where wanted");
  }
  if (s.ring && (m.left >= mask::unlimited || m.first_keys > 0)) {
    throw shape_error(
        "heed: KvCache: a ring drops what no later row sees: expected a mask with a window, and "
        "without always_visible");
  }
  problem_.Hq = s.heads;
  problem_.Hkv = s.kv_heads;
  problem_.D = s.head_size;
  problem_.Dv = s.value_size;
  problem_.scale = options_.scale.value_or(1 / std::sqrt(static_cast<double>(s.head_size)));
}

// The tokens of each sequence that a call names, checked against axes 0 and 1 of its views.
template <class Element, class... Mechanisms>
std::span<const typename KvCache<Element, Mechanisms...>::piece>
KvCache<Element, Mechanisms...>::pieces_of(const char* who, const cache_batch& which, index entries,
                                           index tokens) {
  const std::string name = std::string("KvCache::") + who;
  const bool single = which.single >= 0 || (!which.sequences.given() && which.single != -1);
  const index count = single                    ? 1
                      : which.sequences.given() ? which.sequences.size()
                                                : shape_.sequences;
  if (which.cu.given()) {
    if (entries != 1) throw_axis_error(name, "the views", 0, "batch", entries, "1 with cu");
    detail::check_cumulative("cu", which.cu, "tokens", tokens);
    detail::check_list("cu", which.cu, count + 1);
  } else if (entries != count) {
    throw_axis_error(name, "the views", 0, "sequences", entries, std::to_string(count));
  }
  pieces_.clear();
  named_.assign(named_.size(), false);
  for (index n = 0; n < count; ++n) {
    const std::size_t at = checked(who, single                    ? which.single
                                        : which.sequences.given() ? which.sequences[n]
                                                                  : n);
    if (named_[at]) {
      throw shape_error("heed: " + name + ": sequence " + std::to_string(at) + " is named twice");
    }
    named_[at] = true;
    if (which.cu.given()) {
      pieces_.push_back({at, 0, which.cu[n], which.cu[n + 1] - which.cu[n]});
    } else {
      pieces_.push_back({at, n, 0, tokens});
    }
  }
  return pieces_;
}

// The cache's mechanisms with the new tokens' tensors. The n-th value of a type belongs to the n-th
// mechanism of that type.
template <class Element, class... Mechanisms>
template <class... New>
typename KvCache<Element, Mechanisms...>::All KvCache<Element, Mechanisms...>::with_new(
    const New&... tokens) const {
  const auto given = std::tuple_cat(kernel::expand(tokens)...);
  All filled = all_;
  std::size_t stage_at = 0;
  kernel::for_each(filled, [&](auto& stage) {
    using Stage = std::remove_cvref_t<decltype(stage)>;
    std::size_t number = 0, n = 0;  // of stages of this type before it
    kernel::for_each(all_, [&](const auto& other) {
      number += n++ < stage_at && std::is_same_v<std::remove_cvref_t<decltype(other)>, Stage>;
    });
    ++stage_at;
    bool found = false;
    kernel::for_each(given, [&](const auto& value) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Stage>) {
        if (number-- == 0) {
          found = true;
          kernel::take_token_tensors(stage, value, problem_);
        }
      }
    });
    if (found) return;
    if constexpr (kernel::has_hook<Stage>(hook::tokens)) {
      Stage::tokens(stage, problem_, [&](const char* name, auto&, const auto&) {
        throw shape_error(std::string("heed: KvCache::append: ") + name +
                          " of the new tokens is missing: append(sequences, k, v, mechanism{...})");
      });
    }
  });
  return filled;
}

template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::make_room(std::span<const piece> pieces) {
  for (const piece& p : pieces) {
    kernel::token_store& s = stores_[p.sequence];
    within_limit("append", s.before() + s.length() + p.count);
  }
  for (const piece& p : pieces) {
    kernel::token_store& s = stores_[p.sequence];
    s.make_room(s.length() - droppable(s) + p.count);
  }
}

template <class Element, class... Mechanisms>
template <class K, class V, class... New>
void KvCache<Element, Mechanisms...>::append(const cache_batch& which, const tensor_view<K, 4>& k,
                                             const tensor_view<V, 4>& v, const New&... tokens) {
  static_assert(
      std::is_same_v<std::remove_const_t<K>, T> && std::is_same_v<std::remove_const_t<V>, T>,
      "heed: KvCache::append: k and v must have the cache's element type");
  problem p = problem_;
  p.B = k.extent(0);
  p.T = p.S = k.extent(1);
  const std::span<const piece> pieces = pieces_of("append", which, p.B, p.S);
  check_extents("KvCache::append", "k", k,
                {{{"sequences", p.B}, {"tokens", p.S}, {"key heads", p.Hkv}, {"head size", p.D}}});
  check_extents(
      "KvCache::append", "v", v,
      {{{"sequences", p.B}, {"tokens", p.S}, {"key heads", p.Hkv}, {"value head size", p.Dv}}});
  const All filled = with_new(tokens...);
  kernel::for_each(filled, [&](const auto& stage) {
    if constexpr (kernel::has_hook<std::remove_cvref_t<decltype(stage)>>(hook::tokens)) {
      check_mechanism(stage, p, options_.mask);
    }
  });
  make_room(pieces);
  workspace& memory = scratch();
  memory.reset();
  using append_type = kernel::cache_append<T, Arch, stored_type, All>;
  using tokens_type = kernel::new_tokens<T, All>;
  const auto count = static_cast<index>(pieces.size());
  auto* parts = memory.take<tokens_type>(count);
  auto* jobs = memory.take<append_type>(count);
  for (index n = 0; n < count; ++n) {
    const piece& at = pieces[static_cast<std::size_t>(n)];
    kernel::token_store& store = stores_[at.sequence];
    // Fits without dropping: the ring keeps what rollback may want.
    const index gone = store.length() + at.count > store.capacity() ? droppable(store) : 0;
    std::construct_at(parts + n,
                      tokens_type{&store, store.length() - gone, at.count,
                                  tokens_of(tensor_view<const T, 4>(k), at),
                                  tokens_of(tensor_view<const T, 4>(v), at), filled, gone});
    kernel::for_each_token_tensor(
        parts[n].stages, problem_,
        [&](auto&, const char*, auto& view, const auto&) { view = tokens_of(view, at); });
    std::construct_at(jobs + n, parts[n], all_, problem_, options_.mask, memory);
  }
  for (index n = 0; n < count; ++n) {
    if (parts[n].dropped > 0) parts[n].store->drop(parts[n].dropped);
    jobs[n].run();
    parts[n].store->set_length(parts[n].from + parts[n].count);
  }
}

template <class Element, class... Mechanisms>
template <class Q>
void KvCache<Element, Mechanisms...>::attend(const cache_batch& which, const tensor_view<Q, 4>& q,
                                             const tensor_view<T, 4>& out,
                                             const tensor_view<T, 3>& lse) {
  static_assert(std::is_same_v<std::remove_const_t<Q>, T>,
                "heed: KvCache::attend: q must have the cache's element type");
  const problem& p = problem_;
  const index entries = q.extent(0), rows = q.extent(1);
  const std::span<const piece> pieces = pieces_of("attend", which, entries, rows);
  check_extents(
      "KvCache::attend", "q", q,
      {{{"sequences", entries}, {"tokens", rows}, {"query heads", p.Hq}, {"head size", p.D}}});
  check_extents("KvCache::attend", "out", out,
                {{{"sequences", entries},
                  {"tokens", rows},
                  {"query heads", p.Hq},
                  {"value head size", p.Dv}}});
  if (lse.data() != nullptr || !lse.empty()) {
    check_extents("KvCache::attend", "lse", lse,
                  {{{"sequences", entries}, {"tokens", rows}, {"query heads", p.Hq}}});
  }
  check_output("KvCache::attend", {"out", out}, {{"q", q}, {"lse", lse}});
  check_output("KvCache::attend", {"lse", lse}, {{"q", q}});
  for (const piece& at : pieces) check_rows(at);
  workspace& memory = scratch();
  memory.reset();
  using call_type = kernel::cache_attend<T, Arch, stored_type, All>;
  using queries_type = kernel::new_queries<T, All>;
  auto* queries = memory.take<queries_type>(static_cast<index>(pieces.size()));
  index count = 0;
  for (const piece& at : pieces) {
    if (at.count == 0) continue;
    queries_type& to = *std::construct_at(
        queries + count++,
        queries_type{&stores_[at.sequence], at.count, 0, tokens_of(tensor_view<const T, 4>(q), at),
                     tokens_of(out, at),
                     lse.data() == nullptr ? tensor_view<T, 3>() : tokens_of(lse, at)});
    if (above_ > 0) keep_queries(at, to);
  }
  if (count > 0) {
    call_type(all_, problem_, options_.mask, options_.tuning, options_.executor, memory)
        .run(queries, count);
  }
}

// That the cache has what the rows of a piece read.
template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::check_rows(const piece& at) const {
  const kernel::token_store& s = stores_[at.sequence];
  const std::string name = "heed: KvCache::attend: sequence " + std::to_string(at.sequence);
  if (at.count > s.length()) {
    throw shape_error(name + " has " + std::to_string(s.length()) + " tokens, fewer than the " +
                      std::to_string(at.count) + " rows asked for");
  }
  if (at.count == 0) return;
  const index first = s.before() + s.length() - at.count;  // token of the first row
  if (s.before() > 0 && first - older_ < s.before()) {
    throw shape_error(name +
                      ": the ring has dropped tokens that row 0 sees: ask for at most as "
                      "many rows as were appended last");
  }
  const asked_rows& asked = asked_[at.sequence];
  const index needed = (std::max)(index{0}, first - above_);
  if (above_ > 0 && needed < first && (asked.begin > needed || asked.end < first)) {
    throw shape_error(name + ": rows " + std::to_string(needed) + " to " +
                      std::to_string(first - 1) +
                      " have not been asked for, whose queries the mechanisms read");
  }
}

// The rows read queries above them: they and the new ones lie in the store.
template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::keep_queries(const piece& at,
                                                   kernel::new_queries<T, All>& to) {
  const kernel::token_store& s = stores_[at.sequence];
  const index from = s.length() - at.count, row = problem_.Hq * problem_.D;
  T* kept = s.template lane<T>(kernel::cache_lane::queries);
  for (index t = 0; t < at.count; ++t) {
    T* line = kept + (from + t) * row;
    for (index h = 0; h < problem_.Hq; ++h) {
      for (index d = 0; d < problem_.D; ++d) *line++ = to.q(0, t, h, d);
    }
  }
  asked_rows& asked = asked_[at.sequence];
  const index first = s.before() + from;
  if (first < asked.begin || first > asked.end) asked.begin = first;
  asked.end = s.before() + s.length();
  to.above = (std::min)(above_, from);
  to.rows = at.count + to.above;
  to.q = tensor_view<const T, 4>(kept + (from - to.above) * row,
                                 {1, to.rows, problem_.Hq, problem_.D});
}

template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::rollback(index sequence, index tokens) {
  const std::size_t n = checked("rollback", sequence);
  kernel::token_store& s = stores_[n];
  if (tokens < 0 || tokens > s.before() + s.length()) {
    throw shape_error("heed: KvCache::rollback: " + std::to_string(tokens) +
                      " tokens of sequence " + std::to_string(sequence) + ", which has " +
                      std::to_string(s.before() + s.length()));
  }
  const index left = s.length() - tokens;
  if (s.before() > 0 && left < older_) {
    throw shape_error("heed: KvCache::rollback: " + std::to_string(tokens) +
                      " tokens of sequence " + std::to_string(sequence) +
                      ": the ring has dropped tokens that would be seen again");
  }
  s.set_length(left);
  asked_rows& asked = asked_[n];
  asked.end = (std::min)(asked.end, s.before() + left);
  asked.begin = (std::min)(asked.begin, asked.end);
}

template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::truncate(index sequence, index length) {
  const index now = this->length(sequence);
  if (length < 0 || length > now) {
    throw shape_error("heed: KvCache::truncate: to " + std::to_string(length) +
                      " tokens, expected 0 to " + std::to_string(now));
  }
  rollback(sequence, now - length);
}

template <class Element, class... Mechanisms>
void KvCache<Element, Mechanisms...>::fork(index from, index to) {
  const std::size_t source = checked("fork", from), target = checked("fork", to);
  if (source == target) return;
  stores_[target].copy_from(stores_[source]);
  asked_[target] = asked_[source];
}

}  // namespace heed::inline HEED_ABI
