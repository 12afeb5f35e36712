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

// Extents of what a chunk of tokens is stored in. Keys and -w are packed as columns, Y and M stand
// side by side, one row a token.
template <class T, class Arch>
struct chunk_shape {
  static constexpr index strip = strip_width<T, Arch>;

  index D, tokens;

  index padded_D() const noexcept { return round_up(D, width<T, Arch>); }
  index padded_tokens() const noexcept { return round_up(tokens, width<T, Arch>); }
  index ld() const noexcept { return padded_D() + padded_tokens(); }
  index columns_size() const noexcept { return packed_columns_size<Arch, T>(tokens, D); }
  index solved_size() const noexcept { return tokens * ld(); }
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
  T* solved;   // [tokens][ld]: Y, then M
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

// Fills chunk.solved from rows [tokens][padded_D] of -w and from chunk.keys and chunk.minus_w.
// scratch: [tokens][padded_tokens].
template <class T, class Arch>
void solve_chunk(const chunk_shape<T, Arch>& shape, const chunk_data<T>& chunk, const T* minus_w,
                 const T* beta, T* scratch) {
  const index ld = shape.ld(), Dp = shape.padded_D(), Cp = shape.padded_tokens();
  for (index a = 0; a < shape.tokens; a += triangular_block) {
    const index b = (std::min)(shape.tokens, a + triangular_block);
    const index cols = (std::min)(Cp, round_up(b, width<T, Arch>));
    const T* rows = minus_w + a * Dp;
    times_packed<Arch>(rows, Dp, chunk.minus_w, shape.D, scratch + a * Cp, Cp, b - a, cols);
    times_packed<Arch>(rows, Dp, chunk.keys, shape.D, chunk.solved + a * ld + Dp, ld, b - a, cols);
  }
  for (index s = 0; s < shape.tokens; ++s) {
    const T factor = -beta[s];
    T *n = scratch + s * Cp, *y = chunk.solved + s * ld, *m = y + Dp;
    for (index t = 0; t < s; ++t) {
      n[t] *= factor;
      m[t] *= factor;
    }
    for (index t = s; t < Cp; ++t) m[t] = T(0);
    for (index d = 0; d < Dp; ++d) y[d] = minus_w[s * Dp + d] * factor;
  }
  solve_unit_lower<Arch>(scratch, Cp, chunk.solved, ld, shape.tokens, Dp, Cp);
}

// Whether every element of Y is finite: false when some w or beta of the chunk is not.
template <class T, class Arch>
bool solved_is_finite(const chunk_shape<T, Arch>& shape, const T* solved) {
  vec<T, Arch> sum(T(0));
  for (index s = 0; s < shape.tokens; ++s) {
    for (index d = 0; d < shape.padded_D(); d += width<T, Arch>) {
      sum = xsimd::fma(load_vec<Arch>(solved + s * shape.ld() + d), vec<T, Arch>(T(0)), sum);
    }
  }
  return xsimd::all(sum == vec<T, Arch>(T(0)));
}

// A row at token `newest` of a chunk that is not finite, token by token: x, its query, ends at the
// chunk's start, and scores[s] are those of keys s <= newest. `lines` holds for each token -w and
// beta, [tokens][ld()], in place of Y and M.
template <class Arch, class T>
void pass_chunk_backwards(const chunk_shape<T, Arch>& shape, const T* keys, const T* lines,
                          index newest, T* x, T* scores) {
  constexpr index strip = strip_width<T, Arch>;
  for (index s = newest; s >= 0; --s) {
    const T* key = keys + s / strip * strip * shape.D + s % strip;
    T sum = 0;
    for (index d = 0; d < shape.D; ++d) sum += x[d] * key[d * strip];
    scores[s] = sum;
    const T* line = lines + s * shape.ld();
    pass_tokens(line, shape.ld(), line + shape.padded_D(), 0, 1, shape.D, x);
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
    add_packed_product<Arch>(chunk.minus_w, shape.D, j, shape.tokens,
                             chunk.solved + shape.padded_D() + j, shape.ld(),
                             ends + (j - within) * shape.D + within, strip, shape.D,
                             (std::min)(group, shape.padded_tokens() - j));
  }
}

// The chunk's transformation I - W^T Y, [D][padded_D].
template <class T, class Arch>
void form_chunk_matrix(const chunk_shape<T, Arch>& shape, const chunk_data<T>& chunk, T* matrix) {
  const index Dp = shape.padded_D();
  for (index n = 0; n < shape.matrix_size(); ++n) matrix[n] = T(0);
  for (index d = 0; d < shape.D; ++d) matrix[d * Dp + d] = T(1);
  add_packed_product<Arch>(chunk.minus_w, shape.D, 0, shape.tokens, chunk.solved, shape.ld(),
                           matrix, Dp, shape.D, shape.D);
}

}  // namespace heed::inline HEED_ABI::kernel
