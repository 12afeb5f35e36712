// PaTH: position encoding by accumulated Householder transformations.
//
//   L_ij = scale q_i^T H_p H_(p-1) ... H_(j+1) k_j,   H_s = I - beta_s w_s w_s^T,   p = p_i
//
// The product takes the query's own token and leaves out the key's; equivalently the key is carried
// forward in time, k <- k - beta_s (w_s . k) w_s for s = j + 1 .. p. w and beta are indexed by key
// position and belong to key heads; tokens outside [0, S) have H = I. Keys that a window, a padding
// or a view hides still stand between others: their transformations count. w is used as given, not
// normalised. Defined for keys not newer than the query.
//
// Cost: as the dot product per score, and D^2 operations a token for each level of a tree of blocks
// and each block passed on the way (kernel/path_blocks.hpp).
// Yang et al., PaTH Attention, arXiv 2505.16381.
#pragma once

#include <cmath>

#include "heed/checks.hpp"
#include "heed/concepts.hpp"
#include "heed/kernel/cached_path.hpp"
#include "heed/kernel/path_source.hpp"
#include "heed/kernel/reverse_path.hpp"

namespace heed::inline HEED_ABI {

// The gradients of w [B, S, Hkv, D] and beta [B, S, Hkv].
template <class T>
struct path_grad {
  tensor_view<T, 4> w = {};
  tensor_view<T, 3> beta = {};
};

template <class T>
struct path {
  static constexpr place where = place::scores;
  static constexpr hook hooks = hook::check | hook::tokens | hook::gradients;
  using gradient_type = path_grad<T>;

  tensor_view<const T, 4> w;     // [B, S, Hkv, D]
  tensor_view<const T, 3> beta;  // [B, S, Hkv], in [0, 2] where the result shall not grow
  // Tokens in a chunk, and in a block of chunks (rounded up to a power of two of them); 0: heed's
  // choice. Results do not depend on them but for rounding.
  index chunk = 0, block = 0;

  template <class U, class Arch, class Stored>
  using cached_source = kernel::cached_path<U, Arch, Stored, path>;

  // Throws shape_error unless w is [B, S, Hkv, D], beta [B, S, Hkv], and the sizes are >= 0.
  void check(const problem& p) const {
    check_extents("path", "w", w,
                  {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}, {"head size", p.D}}});
    check_extents("path", "beta", beta, {{{"batch", p.B}, {"keys", p.S}, {"key heads", p.Hkv}}});
    if (chunk < 0 || block < 0) {
      throw shape_error("heed: path: chunk and block: are " + std::to_string(chunk) + " and " +
                        std::to_string(block) + ", expected at least 0");
    }
  }
  template <class Self, class F>
  static void tokens(Self& m, const problem& p, const F& f) {
    f("path.w", m.w, shape<2>{p.Hkv, p.D});
    f("path.beta", m.beta, shape<1>{p.Hkv});
  }
  // Throws shape_error for a mask that shows keys newer than the query.
  void check(const problem&, const mask& m) const { check_hides_newer_keys("path", m); }

  template <class Arch, class Loader>
  auto source(const kernel::source_context<T, Arch>& context, const Loader& loader) const {
    return kernel::path_source<T, Arch, Loader, path>(*this, context, loader);
  }
  // source: L_ij = q_i^T H_p ... H_(j+1) k_j. Its rows move queries; the gradient moves theirs
  // back.
  template <class Arch, class Source, class Loader>
  auto source_gradient(const Source& source, const path_grad<T>& d,
                       const kernel::source_context<T, Arch>& context, const Loader&) const {
    return kernel::path_gradient<T, Arch, Source>(source, context, d.w, d.beta);
  }

  template <class F>
  void gradients(const path_grad<T>& d, const F& f) const {
    f("path.w", d.w, w);
    f("path.beta", d.beta, beta);
  }
};
template <class T, class U>
path(tensor_view<T, 4>, tensor_view<U, 3>) -> path<std::remove_const_t<T>>;
template <class T, class U>
path(tensor_view<T, 4>, tensor_view<U, 3>, index) -> path<std::remove_const_t<T>>;
template <class T, class U>
path(tensor_view<T, 4>, tensor_view<U, 3>, index, index) -> path<std::remove_const_t<T>>;
template <class T>
path_grad(tensor_view<T, 4>, tensor_view<T, 3>) -> path_grad<T>;

// Makes directions of projections: to = from / sqrt(sum over D of from^2 + eps), as PaTH's layer
// does. A row of zeros stays zero: its transformation is the identity. from and to may be the same
// tensor.
//
// Throws shape_error unless their extents are equal and to can be written.
template <class U, class T>
void path_directions(const tensor_view<U, 4>& from, const tensor_view<T, 4>& to,
                     double eps = 1e-6) {
  check_extents("path_directions", "to", to,
                {{{"batch", from.extent(0)},
                  {"keys", from.extent(1)},
                  {"key heads", from.extent(2)},
                  {"head size", from.extent(3)}}});
  check_output("path_directions", {"to", to}, {});
  for (index b = 0; b < from.extent(0); ++b) {
    for (index t = 0; t < from.extent(1); ++t) {
      for (index h = 0; h < from.extent(2); ++h) {
        double sum = eps;
        for (index d = 0; d < from.extent(3); ++d) {
          const auto x = static_cast<double>(from(b, t, h, d));
          sum += x * x;
        }
        const double factor = 1 / std::sqrt(sum);
        for (index d = 0; d < from.extent(3); ++d) {
          to(b, t, h, d) = static_cast<T>(static_cast<double>(from(b, t, h, d)) * factor);
        }
      }
    }
  }
}

// Makes step sizes of projections: beta = 2 sigmoid(logit), [B, S, Hkv], between 0 (identity) and 2
// (reflection). logits and beta may be the same tensor.
//
// Throws shape_error unless their extents are equal and beta can be written.
template <class U, class T>
void path_betas(const tensor_view<U, 3>& logits, const tensor_view<T, 3>& beta) {
  check_extents(
      "path_betas", "beta", beta,
      {{{"batch", logits.extent(0)}, {"keys", logits.extent(1)}, {"key heads", logits.extent(2)}}});
  check_output("path_betas", {"beta", beta}, {});
  for (index b = 0; b < logits.extent(0); ++b) {
    for (index t = 0; t < logits.extent(1); ++t) {
      for (index h = 0; h < logits.extent(2); ++h) {
        const auto x = static_cast<double>(logits(b, t, h));
        beta(b, t, h) = static_cast<T>(2 / (1 + std::exp(-x)));
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI
