// New tokens on their way into a cache.
#pragma once

#include "heed/kernel/cache_lanes.hpp"

namespace heed::inline HEED_ABI::kernel {

// Tokens of one sequence: [0, count) of the views become tokens [from, from + count) of the store.
template <class T, class All>
struct new_tokens {
  token_store* store;
  index from, count;
  tensor_view<const T, 4> k, v;  // [1, count, Hkv, D|Dv]
  All stages;                    // with views of the new tokens' tensors, [1, count, ...]
  index dropped = 0;             // tokens that the store drops first
};

template <class T, class Arch, class Stored, class All>
class cache_append {
  using lanes = cache_lanes<T, Arch, Stored, All>;
  using list_type = typename lanes::list_type;
  using plans_type = decltype(plans_for(std::declval<const typename list_type::inputs_type&>(),
                                        std::declval<const plan_context<T, Arch>&>()));

 public:
  // `all`: the mechanisms as the cache holds them. Memory is taken here; nothing else can fail.
  cache_append(const new_tokens<T, All>& tokens, const All& all, const problem& p, const mask& m,
               workspace& memory)
      : tokens_(tokens),
        list_(all),
        problem_(with_keys(p, tokens.from + tokens.count)),
        mask_(m),
        inputs_{{}, tokens.k, tokens.v},
        context_{{problem_, sequence_, inputs_, memory}, mask_, tokens.from, problem_.S},
        rows_(memory.take<T>(block * p.D)) {
    sequence_.S = sequence_.key_end = problem_.S;
    sequence_.position = tokens.from;
    sequence_.before = tokens.store->before() + tokens.dropped;
    plans_ = std::construct_at(memory.take<plans_type>(1), plans_for(list_.inputs, context_));
    memory_ = &memory;
  }

  void run() const {
    for (index h = 0; h < problem_.Hkv; ++h) {
      append_keys(h);
      append_values(h);
    }
    std::size_t lane = lanes::tensors;
    for_each_token_tensor(tokens_.stages, problem_,
                          [&](const auto&, const char*, const auto& view, const auto& extents) {
                            append_rows(view, tokens_.store->template lane<T>(lane++) +
                                                  tokens_.from * product_of(extents));
                          });
    const All bound = lanes::bind(all_of(), *tokens_.store, problem_, problem_.S);
    const keep_context<T, Arch> kept{problem_, tokens_.from, problem_.S, tokens_.v, *memory_};
    for_each(bound, [&](const auto& stage) {
      if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::keep)) stage.keep(kept);
    });
    lanes::source_type::refresh(stage_list<All>(bound).scores, *tokens_.store, problem_, problem_.S,
                                *memory_);
  }

 private:
  static constexpr index block = 4 * cache_chunk;

  static problem with_keys(problem p, index S) noexcept {
    p.B = 1;
    p.T = 0;
    p.S = S;
    return p;
  }
  const All& all_of() const noexcept { return tokens_.stages; }

  // Keys after the input stages.
  void append_keys(index h) const {
    const auto& k = tokens_.k;
    const cached_keys<T, Arch, Stored> keys = lanes::keys_of(*tokens_.store, problem_);
    for (index a = 0; a < tokens_.count; a += block) {
      const index n = (std::min)(block, tokens_.count - a), key = tokens_.from + a;
      copy_rows<Arch>(k.pointer(index{0}, a, h, index{0}), k.stride(1), k.stride(3), n, problem_.D,
                      rows_, problem_.D);
      for_each_pair(list_.inputs, *plans_, [&](const auto& stage, const auto& plan) {
        if constexpr (has_hook<std::remove_cvref_t<decltype(stage)>>(hook::keys)) {
          if (is_active(stage)) plan.keys(h, key, key + n, rows_, problem_.D);
        }
      });
      lanes::source_type::store(list_.scores, *tokens_.store, keys, problem_, h, key, n, rows_);
    }
  }
  void append_values(index h) const {
    const auto& v = tokens_.v;
    const auto values = lanes::values_of(*tokens_.store, problem_, h);
    for (index j = 0; j < tokens_.count && problem_.Dv > 0; ++j) {
      const T* from = v.pointer(index{0}, j, h, index{0});
      Stored* to = values.at(0, tokens_.from + j);
      store_row(from, v.stride(3), problem_.Dv, to, values.row);
    }
  }
  static void store_row(const T* from, index step, index n, Stored* to, index ld) {
    if (step == 1) {
      store_as(from, to, n);
    } else {
      for (index d = 0; d < n; ++d) to[d] = static_cast<Stored>(from[d * step]);
    }
    for (index d = n; d < ld; ++d) to[d] = Stored();
  }
  template <int Rank>
  void append_rows(const tensor_view<const T, Rank>& view, T* to) const {
    for (index t = 0; t < tokens_.count; ++t) {
      if constexpr (Rank == 3) {
        for (index h = 0; h < view.extent(2); ++h) *to++ = view(0, t, h);
      } else {
        for (index h = 0; h < view.extent(2); ++h) {
          for (index d = 0; d < view.extent(3); ++d) *to++ = view(0, t, h, d);
        }
      }
    }
  }

  const new_tokens<T, All>& tokens_;
  list_type list_;
  problem problem_;
  const mask& mask_;
  call_inputs<T> inputs_;
  sequence sequence_;
  plan_context<T, Arch> context_;
  plans_type* plans_ = nullptr;
  workspace* memory_ = nullptr;
  T* rows_;
};

}  // namespace heed::inline HEED_ABI::kernel
