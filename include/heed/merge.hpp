// merge: joins attention over parts of the keys.
//
//   heed::attend(q, k_a, v_a, out_a, {.mask = mask_a, .lse = lse_a});     // wherever these keys
//   are heed::attend(q, k_b, v_b, out_b, {.mask = mask_b, .lse = lse_b});     // and those
//   heed::merge(out_a, lse_a, out_b, lse_b);    // out_a, lse_a: over both
//
// With Z_n = e^lse_n of part n, natural logarithms,
//
//   lse = log sum over n of Z_n,   out = sum over n of (Z_n / e^lse) out_n
//
// which is exact but for rounding: the building block of attention whose keys lie on several
// machines, in several caches, or in several calls. A part that a row sees no key of has out 0 and
// lse -inf; it changes nothing, not a bit. The parts of a row need not see the same number of keys.
//
// What may be merged: results of softmax over disjoint keys, each logit as it would be over all
// keys. Sinks count in one of the parts only. Stages that act after softmax, norms and gates of the
// output, and convolutions and CoPE, which read beside their key, do not split: list the mechanisms
// and the call is refused.
#pragma once

#include <cmath>
#include <span>
#include <string>

#include "heed/checks.hpp"
#include "heed/kernel/pipeline.hpp"

namespace heed::inline HEED_ABI {

// One part's results: out [B, T, Hq, Dv], lse [B, T, Hq].
template <class T>
struct partial {
  tensor_view<T, 4> out;
  tensor_view<T, 3> lse;
};

namespace kernel {

// out_a, lse_a become those of both parts, for one row of `n` values.
template <class T>
void merge_row(T* a, index step_a, T& lse_a, const T* b, index step_b, T lse_b, index n) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  if (lse_b == -infinity) return;
  if (lse_a == -infinity) {
    for (index d = 0; d < n; ++d) a[d * step_a] = b[d * step_b];
    lse_a = lse_b;
    return;
  }
  const double x = static_cast<double>(lse_a), y = static_cast<double>(lse_b);
  const double top = x > y ? x : y;
  const double of_a = std::exp(x - top), of_b = std::exp(y - top), sum = of_a + of_b;
  const T share_a = static_cast<T>(of_a / sum), share_b = static_cast<T>(of_b / sum);
  for (index d = 0; d < n; ++d) {
    a[d * step_a] = share_a * a[d * step_a] + share_b * b[d * step_b];
  }
  lse_a = static_cast<T>(top + std::log(sum));
}

template <class Out, class Lse, class Like>
void check_partial(const char* which, const Out& out, const Lse& lse, const Like& like) {
  check_extents("merge", which, out,
                {{{"batch", like.extent(0)},
                  {"queries", like.extent(1)},
                  {"query heads", like.extent(2)},
                  {"value head size", like.extent(3)}}});
  check_extents(
      "merge", (std::string(which) + "'s lse").c_str(), lse,
      {{{"batch", like.extent(0)}, {"queries", like.extent(1)}, {"query heads", like.extent(2)}}});
}

}  // namespace kernel

// Throws shape_error, in a sentence, where results with one of these mechanisms are not to be
// merged.
template <class... Mechanisms>
void check_mergeable(const Mechanisms&... mechanisms) {
  kernel::for_each(std::tuple_cat(kernel::expand(mechanisms)...), [](const auto& stage) {
    if (kernel::joins(stage)) return;
    throw shape_error(
        "heed: merge: a mechanism of the list acts after softmax or reads beside its key: results "
        "over parts of the keys cannot be joined");
  });
}

// (out, lse) becomes the result over the keys of both. (out_b, lse_b) stays as it is. The
// mechanisms of the calls, where there were any, are checked as in check_mergeable.
//
// Throws shape_error where extents differ or views share memory.
template <class T, class U, class V, class... Mechanisms>
void merge(const tensor_view<T, 4>& out, const tensor_view<T, 3>& lse,
           const tensor_view<U, 4>& out_b, const tensor_view<V, 3>& lse_b,
           const Mechanisms&... mechanisms) {
  static_assert(
      std::is_same_v<std::remove_const_t<U>, T> && std::is_same_v<std::remove_const_t<V>, T>,
      "heed: merge: all views must have one element type, and those that are written "
      "must not be const");
  check_mergeable(mechanisms...);
  const tensor_view<const T, 4> b(out_b);
  const tensor_view<const T, 3> b_lse(lse_b);
  kernel::check_partial("the first part", out, tensor_view<const T, 3>(lse), out);
  kernel::check_partial("another part", tensor_view<const T, 4>(b), b_lse,
                        tensor_view<const T, 4>(out));
  check_output("merge", {"out", out}, {{"lse", lse}, {"out_b", b}, {"lse_b", b_lse}});
  check_output("merge", {"lse", lse}, {{"out_b", b}, {"lse_b", b_lse}});
  const index n = out.extent(3);
  for (index i = 0; i < out.extent(0); ++i) {
    for (index t = 0; t < out.extent(1); ++t) {
      for (index h = 0; h < out.extent(2); ++h) {
        T* to = n > 0 ? out.pointer(i, t, h, index{0}) : nullptr;
        const T* from = n > 0 ? b.pointer(i, t, h, index{0}) : nullptr;
        kernel::merge_row(to, out.stride(3), lse(i, t, h), from, b.stride(3), b_lse(i, t, h), n);
      }
    }
  }
}

// The result over the keys of all parts, joined in their order. Of no parts it is that of no keys:
// out 0, lse -inf. out and lse may be those of the first part.
//
// Throws shape_error like merge of two; then nothing has been written.
template <class T, class... Mechanisms>
void merge(std::span<const partial<const T>> parts, const tensor_view<T, 4>& out,
           const tensor_view<T, 3>& lse, const Mechanisms&... mechanisms) {
  check_mergeable(mechanisms...);
  const tensor_view<const T, 4> like(out);
  kernel::check_partial("the result", like, tensor_view<const T, 3>(lse), like);
  for (const partial<const T>& p : parts) {
    kernel::check_partial("a part", p.out, p.lse, like);
    if (&p == parts.data() && p.out.data() == out.data() && p.lse.data() == lse.data()) continue;
    check_output("merge", {"out", out}, {{"lse", lse}, {"a part's out", p.out}, {"lse", p.lse}});
    check_output("merge", {"lse", lse}, {{"a part's out", p.out}, {"lse", p.lse}});
  }
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const bool in_place = !parts.empty() && parts[0].out.data() == out.data();
  const index n = out.extent(3);
  for (index i = 0; i < out.extent(0); ++i) {
    for (index t = 0; t < out.extent(1); ++t) {
      for (index h = 0; h < out.extent(2); ++h) {
        T* to = n > 0 ? out.pointer(i, t, h, index{0}) : nullptr;
        if (!in_place) {
          for (index d = 0; d < n; ++d) to[d * out.stride(3)] = T(0);
          lse(i, t, h) = -infinity;
        }
        for (std::size_t k = in_place ? 1 : 0; k < parts.size(); ++k) {
          const partial<const T>& p = parts[k];
          kernel::merge_row(to, out.stride(3), lse(i, t, h),
                            n > 0 ? p.out.pointer(i, t, h, index{0}) : nullptr, p.out.stride(3),
                            p.lse(i, t, h), n);
        }
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI
