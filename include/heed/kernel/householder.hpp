// Products of Householder transformations over a chunk of tokens, in compact form.
//
// With H_s = I - beta_s w_s w_s^T, W the rows w_s of a chunk and stril the strict lower triangle,
//
//   H_i ... H_(j+1) restricted to a chunk:  q^T H_i ... H_(j+1) k_j
//     = q k_j - tril(q W^T)_i M_j,          M = X stril(W K^T)      (scores inside the chunk)
//   q^T H_i ... H_first = q - tril(q W^T)_i Y,  Y = X W             (a query at the chunk's start)
//   H_last ... H_(j+1) k_j = k_j - W^T M_j                          (a key at the chunk's end)
//   H_last ... H_first = I - W^T Y                                  (the whole chunk)
//
// where X = (I + stril(beta W W^T))^-1 beta is never formed: Y and M come from one substitution.
// Where |w| = 1 and beta is in [0, 2], the entries of X are at most 4 in size and nothing grows.
#pragma once

#include "heed/kernel/pack.hpp"
#include "heed/kernel/triangular.hpp"

namespace heed::inline HEED_ABI::kernel {

// Extents of what a chunk of tokens is stored in. Keys and -w are packed as columns; Y and M have
// one row a token.
template <class T, class Arch>
struct chunk_shape {
  static constexpr index strip = strip_width<T, Arch>;

  index D, tokens;

  index padded_D() const noexcept { return round_up(D, width<T, Arch>); }
  index padded_tokens() const noexcept { return round_up(tokens, width<T, Arch>); }
  index ld() const noexcept { return padded_D() + padded_tokens(); }
  index columns_size() const noexcept { return packed_columns_size<Arch, T>(tokens, D); }
  index y_size() const noexcept { return tokens * padded_D(); }
  index m_size() const noexcept { return tokens * padded_tokens(); }
  index matrix_size() const noexcept { return D * padded_D(); }
};

// x <- H_s x for s = begin .. end - 1, with minus_w the rows -w_s. Exact about what it reads: for
// chunks whose other tokens are not finite.
template <class T>
void pass_tokens(const T* minus_w, index ldw, const T* beta, index begin, index end, index D,
                 T* x) {
  for (index s = begin; s < end; ++s) {
    const T* w = minus_w + s * ldw;
    T along = 0;
    for (index d = 0; d < D; ++d) along += w[d] * x[d];
    along *= beta[s];
    for (index d = 0; d < D; ++d) x[d] -= along * w[d];
  }
}

// Numbers smaller than this share of what they started from become 0. Long walks shrink queries and
// keys without end, and arithmetic with subnormal numbers, or with numbers whose products are,
// takes several times as long. What a logit loses is far below the rounding of its row's other
// logits.
template <class T>
inline constexpr T dust = sizeof(T) == 4 ? T(0x1p-56) : T(0x1p-480);

// to[i] = from[i], and 0 where it is smaller than `least`; n is a multiple of the width. from and
// to may be the same. Nothing becomes 0 where `least` is NaN.
template <class Arch, class T>
void copy_without_dust(const T* from, T* to, index n, T least) {
  using v = vec<T, Arch>;
  for (index i = 0; i < n; i += width<T, Arch>) {
    const v x = load_vec<Arch>(from + i);
    store_vec<Arch>(to + i, xsimd::select(xsimd::abs(x) < v(least), v(T(0)), x));
  }
}
// The `least` of n numbers as they start; n is a multiple of the width.
template <class Arch, class T>
T dust_of(const T* from, index n) {
  using v = vec<T, Arch>;
  v most(T(0));
  for (index i = 0; i < n; i += width<T, Arch>) {
    most = larger(most, xsimd::abs(load_vec<Arch>(from + i)));
  }
  const T largest = largest_lane(most);
  return largest <= (std::numeric_limits<T>::max)() ? largest * dust<T> : T(0);
}

// One chunk's stored arrays.
template <class T>
struct chunk_data {
  T* keys;     // packed columns: the caller's keys, after the input stages
  T* minus_w;  // packed columns: -w
  // Of a chunk that is not finite: rows of -w in y, and in m the betas.
  T* y;  // [tokens][padded_D]
  T* m;  // [tokens][padded_tokens]

  operator chunk_data<const T>() const noexcept { return {keys, minus_w, y, m}; }
};

// C[rows x cols] += A B[depth x cols] with A [rows x depth] stored as packed columns, from column
// `from` of A and row `from` of B on.
template <class Arch, class T>
void add_packed_product(const T* a, index D, index from, index depth, const T* b, index ldb, T* c,
                        index ldc, index rows, index cols) {
  constexpr index strip = strip_width<T, Arch>;
  for (index s = from; s < depth;) {
    const index within = s % strip;
    const index n = (std::min)(strip - within, depth - s);
    product<Arch>(a + (s - within) * D + within, strip, b + s * ldb, ldb, c, ldc, rows, cols, n,
                  start::add);
    s += n;
  }
}

// C[rows x cols] = A[rows x D] B, with B [D x cols] stored as packed columns.
template <class Arch, class T>
void times_packed(const T* a, index lda, const T* b, index D, T* c, index ldc, index rows,
                  index cols) {
  constexpr index strip = strip_width<T, Arch>;
  for (index s = 0; s < cols; s += strip) {
    product<Arch>(a, lda, b + s * D, strip, c + s, ldc, rows, (std::min)(strip, cols - s), D,
                  start::zero);
  }
}

// Fills chunk.y and chunk.m from rows [tokens][padded_D] of -w and from chunk.keys and
// chunk.minus_w. scratch: [tokens][padded_tokens].
template <class T, class Arch>
void solve_chunk(const chunk_shape<T, Arch>& shape, const chunk_data<T>& chunk, const T* minus_w,
                 const T* beta, T* scratch) {
  const index C = shape.tokens, Dp = shape.padded_D(), Cp = shape.padded_tokens();
  for (index s = 0; s < C; ++s) {
    const vec<T, Arch> factor(-beta[s]);
    for (index d = s * Dp; d < (s + 1) * Dp; d += width<T, Arch>) {
      store_vec<Arch>(chunk.y + d, load_vec<Arch>(minus_w + d) * factor);
    }
  }
  // Lower triangles, up to whole vectors.
  const auto times = [&](const T* columns, T* to) {
    for (index a = 0; a < C; a += triangular_block) {
      const index b = (std::min)(C, a + triangular_block);
      times_packed<Arch>(chunk.y + a * Dp, Dp, columns, shape.D, to + a * Cp, Cp, b - a, b);
    }
  };
  times(chunk.minus_w, scratch);
  times(chunk.keys, chunk.m);
  for (index s = 0; s < C; ++s) {
    for (index t = s; t < Cp; ++t) chunk.m[s * Cp + t] = T(0);
  }
  solve_unit_lower<Arch>(scratch, Cp, chunk.y, Dp, C, Dp);
  solve_unit_lower<Arch>(scratch, Cp, chunk.m, Cp, C, Cp, true);
}

// A row at token `newest` of a chunk that is not finite, token by token: x, its query, ends at the
// chunk's start, and scores[s] are those of keys s <= newest.
template <class Arch, class T>
void pass_chunk_backwards(const chunk_shape<T, Arch>& shape, const chunk_data<const T>& chunk,
                          index newest, T* x, T* scores) {
  constexpr index strip = strip_width<T, Arch>;
  for (index s = newest; s >= 0; --s) {
    const T* key = chunk.keys + s / strip * strip * shape.D + s % strip;
    T sum = 0;
    for (index d = 0; d < shape.D; ++d) sum += x[d] * key[d * strip];
    scores[s] = sum;
    pass_tokens(chunk.y, shape.padded_D(), chunk.m, s, s + 1, shape.D, x);
  }
}

// The chunk's keys at its end, as packed columns: K^T - W^T M.
template <class T, class Arch>
void carry_to_chunk_end(const chunk_shape<T, Arch>& shape, const chunk_data<T>& chunk, T* ends) {
  constexpr index strip = strip_width<T, Arch>;
  constexpr index group = strip / 2;
  for (index n = 0; n < shape.columns_size(); ++n) ends[n] = chunk.keys[n];
  for (index j = 0; j < shape.tokens; j += group) {
    const index within = j % strip;
    add_packed_product<Arch>(chunk.minus_w, shape.D, j, shape.tokens, chunk.m + j,
                             shape.padded_tokens(), ends + (j - within) * shape.D + within, strip,
                             shape.D, (std::min)(group, shape.padded_tokens() - j));
  }
}

// The chunk's transformation I - W^T Y, [D][padded_D].
template <class T, class Arch>
void form_chunk_matrix(const chunk_shape<T, Arch>& shape,
                       const std::type_identity_t<chunk_data<const T>>& chunk, T* matrix) {
  const index Dp = shape.padded_D();
  for (index n = 0; n < shape.matrix_size(); ++n) matrix[n] = T(0);
  for (index d = 0; d < shape.D; ++d) matrix[d * Dp + d] = T(1);
  add_packed_product<Arch>(chunk.minus_w, shape.D, 0, shape.tokens, chunk.y, Dp, matrix, Dp,
                           shape.D, shape.D);
}

}  // namespace heed::inline HEED_ABI::kernel
