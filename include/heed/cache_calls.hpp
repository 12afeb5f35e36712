// What KvCache does in its calls; part of cache.hpp.
#pragma once

#include "heed/cache.hpp"

namespace heed::inline HEED_ABI {

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
  for (index n = 0; n < shape_.sequences; ++n) {
    stores_.push_back(empty_store());
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
    detail::check_list("cu", which.cu, count + 1, "the sequences and 1");
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
  const auto refuse = [&](const std::string& why) {
    throw shape_error("heed: KvCache::attend: sequence " + std::to_string(at.sequence) + why);
  };
  if (at.count > s.length()) {
    refuse(" has " + std::to_string(s.length()) + " tokens, fewer than the " +
           std::to_string(at.count) + " rows asked for");
  }
  if (at.count == 0) return;
  const index first = s.before() + s.length() - at.count;  // token of the first row
  if (s.before() > 0 && first - older_ < s.before()) {
    refuse(
        ": the ring has dropped tokens that row 0 sees: ask for at most as "
        "many rows as were appended last");
  }
  const asked_rows& asked = asked_[at.sequence];
  const index needed = (std::max)(index{0}, first - above_);
  if (above_ > 0 && needed < first && (asked.begin > needed || asked.end < first)) {
    refuse(": rows " + std::to_string(needed) + " to " + std::to_string(first - 1) +
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
