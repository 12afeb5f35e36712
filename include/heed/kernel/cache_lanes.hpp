// What a cache of one list of mechanisms keeps of each token, and where.
#pragma once

#include <array>

#include "heed/kernel/cached_keys.hpp"
#include "heed/kernel/stage_list.hpp"

namespace heed::inline HEED_ABI::kernel {

// f(stage, name, view, extents) for every tensor that has an entry for each token.
template <class All, class F>
void for_each_token_tensor(All& all, const problem& p, const F& f) {
  for_each(all, [&](auto& stage) {
    using Stage = std::remove_cvref_t<decltype(stage)>;
    if constexpr (has_hook<Stage>(hook::tokens)) {
      Stage::tokens(stage, p, [&](const char* name, auto& view, const auto& extents) {
        f(stage, name, view, extents);
      });
    }
  });
}

// The views of one stage that `from` holds; T's const views both.
template <class Stage>
void take_token_tensors(Stage& to, const Stage& from, const problem& p) {
  if constexpr (has_hook<Stage>(hook::tokens)) {
    int at = 0;
    Stage::tokens(to, p, [&](const char*, auto& view, const auto&) {
      int n = 0;
      Stage::tokens(from, p, [&](const char*, const auto& other, const auto&) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(other)>,
                                     std::remove_cvref_t<decltype(view)>>) {
          if (n == at) view = other;
        }
        ++n;
      });
      ++at;
    });
  }
}

template <std::size_t Rank>
index product_of(const std::array<index, Rank>& extents) noexcept {
  index n = 1;
  for (const index e : extents) n *= e;
  return n;
}

// A view [1, count, extents...] of contiguous rows, one a token.
template <class T, std::size_t Rank>
auto token_rows(T* data, index count, const std::array<index, Rank>& extents) {
  constexpr int rank = static_cast<int>(Rank) + 2;
  shape<rank> all{1, count};
  for (std::size_t axis = 0; axis < Rank; ++axis) all[axis + 2] = extents[axis];
  return tensor_view<T, rank>(data, all);
}

// The lanes of a token_store: keys, values, queries (where rows read rows above), those of the
// source of scores, one for every tensor of a mechanism and one for what a mechanism keeps.
template <class T, class Arch, class Stored, class All>
struct cache_lanes {
  using list_type = stage_list<All>;
  using source_type = typename list_type::scores_type::template cached_source<T, Arch, Stored>;
  using keys_type = cached_keys<T, Arch, Stored>;
  using values_type = cached_values<T, Arch, Stored>;
  static constexpr std::size_t tensors = cache_lane::scores + source_type::lanes;

  static std::vector<lane_size> sizes(const All& all, const problem& p) {
    const list_type list(all);
    const auto bytes = [](index elements, std::size_t size) {
      return static_cast<std::size_t>(cache_chunk * elements) * size;
    };
    const auto heads = static_cast<std::size_t>(p.Hkv);
    std::vector<lane_size> sizes(tensors);
    sizes[cache_lane::keys] = {bytes(p.D, sizeof(Stored)), heads};
    sizes[cache_lane::values] = {bytes(values_type::row_size(p.Dv), sizeof(Stored)), heads};
    if (keeps_queries(list)) sizes[cache_lane::queries] = {bytes(p.Hq * p.D, sizeof(T))};
    for (std::size_t n = 0; n < source_type::lanes; ++n) {
      sizes[cache_lane::scores + n] = {source_type::chunk_bytes(p, n)};
    }
    All copy = all;
    for_each_token_tensor(copy, p, [&](auto&, const char*, auto&, const auto& extents) {
      sizes.push_back({bytes(product_of(extents), sizeof(T))});
    });
    for_each(all, [&](const auto& stage) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::keep)) {
        sizes.push_back({stage.kept_bytes(p)});
      }
    });
    return sizes;
  }
  static bool keeps_queries(const list_type& list) noexcept {
    return list.logits_reach.rows_above + list.probs_reach.rows_above > 0;
  }

  static keys_type keys_of(const token_store& s, const problem& p) noexcept {
    return {s.template lane<Stored>(cache_lane::keys), s.capacity() * p.D, p.D};
  }
  static values_type values_of(const token_store& s, const problem& p, index kv_head) noexcept {
    const index row = values_type::row_size(p.Dv), head = s.capacity() * row;
    return {s.template lane<Stored>(cache_lane::values) + kv_head * head, head, row};
  }
  // The mechanisms with views of what the store holds.
  static All bind(const All& all, const token_store& s, const problem& p, index count) {
    All bound = all;
    std::size_t lane = tensors;
    for_each_token_tensor(bound, p, [&](auto&, const char*, auto& view, const auto& extents) {
      view = token_rows(static_cast<const T*>(s.template lane<T>(lane++)), count, extents);
    });
    for_each(bound, [&](auto& stage) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::keep)) {
        stage.kept = s.template lane<std::byte>(lane++);
      }
    });
    return bound;
  }
};

}  // namespace heed::inline HEED_ABI::kernel
