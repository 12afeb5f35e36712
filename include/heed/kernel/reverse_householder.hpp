// The adjoints of a chunk's compact form (householder.hpp). Behind V = -W and Z = [Y | M]:
//
//   scores     q k_j + q V_i M_j         a query at the start     q + q V_i Y
//   ends       k_j + V^T M_j             matrix                   I + V^T Y
//
// gradients of K, V and Z are collected, and at the end that of Z becomes more of K and V and that
// of beta: (I - N) Z = R, with N = -stril(beta V V^T), R = [-beta V | -stril(beta V K^T)].
#pragma once

#include "heed/kernel/householder.hpp"
#include "heed/kernel/reverse_dot.hpp"

namespace heed::inline HEED_ABI::kernel {

// One chunk as the way back multiplies with it, in rows of tokens: gradients with the same names
// are added to.
template <class T>
struct chunk_rows {
  T* keys;     // [tokens][padded_D]
  T* minus_w;  // [tokens][padded_D]
  T* beta;     // [tokens]
  T* solved;   // Z: [tokens][ld]; of the chunk itself transposed, [ld][padded_tokens]
};

// pass_tokens of one token, x <- x - beta v (v.x): dx becomes the gradient of what x was, and what
// v and beta get is added unless dv is null. Where dx is 0 nothing is read.
template <class T>
void pass_token_grad(const T* v, T beta, index D, const T* x, T* dx, T* dv, T* dbeta) {
  bool any = false;
  for (index d = 0; d < D; ++d) any = any || dx[d] != 0;
  if (!any) return;
  T along = 0, slope = 0;
  for (index d = 0; d < D; ++d) {
    along += v[d] * x[d];
    slope += v[d] * dx[d];
  }
  if (dv != nullptr) {
    for (index d = 0; d < D; ++d) dv[d] -= beta * (along * dx[d] + slope * x[d]);
    *dbeta -= along * slope;
  }
  for (index d = 0; d < D; ++d) dx[d] -= beta * slope * v[d];
}

// Everything that one chunk's way back takes beside its arrays.
template <class T, class Arch>
class chunk_adjoint {
 public:
  chunk_adjoint(const chunk_shape<T, Arch>& shape, workspace& memory) : shape_(shape) {
    const index C = shape.tokens, Cp = shape.padded_tokens(), Dp = shape.padded_D();
    packed_ =
        memory.take<T>(packed_columns_size<Arch, T>((std::max)(C, shape.D), (std::max)(C, Dp)));
    factors_ = memory.take<T>(C * Cp);
    products_ = memory.take<T>(C * Cp);
    crossed_ = memory.take<T>(C * Cp);
    sums_ = memory.take<T>(C * Dp);
    newest_first_ = memory.take<T>(C * shape.ld());
    stack_ = memory.take<T>((C + 1) * shape.D);
  }

  // carry_to_chunk_end, ends = K^T + V^T M: dK += dends, dM += V dends^T, dV += M dends.
  void carry_grad(const chunk_rows<T>& chunk, const T* dends, const chunk_rows<T>& to) {
    const index C = shape_.tokens, D = shape_.D, Dp = shape_.padded_D(), ld = shape_.ld();
    for (index n = 0; n < C * Dp; ++n) to.keys[n] += dends[n];
    pack_columns<Arch>(dends, Dp, index{1}, C, D, packed_);
    add_times_packed(chunk.minus_w, packed_, to.solved + Dp, ld, C);
    add_product_transposed<Arch>(false, chunk.solved + Dp * shape_.padded_tokens(),
                                 shape_.padded_tokens(), dends, Dp, to.minus_w, Dp, C, D, C);
  }
  // form_chunk_matrix, P = I + V^T Y: dV += Y dP^T, dY += V dP. dmatrix is the transpose of dP.
  void matrix_grad(const chunk_rows<T>& chunk, const T* dmatrix, const chunk_rows<T>& to) {
    const index C = shape_.tokens, D = shape_.D, Dp = shape_.padded_D(), ld = shape_.ld();
    add_product_transposed<Arch>(false, chunk.solved, shape_.padded_tokens(), dmatrix, Dp,
                                 to.minus_w, Dp, C, D, D);
    // Packed columns of dP^T's rows are dP.
    pack_columns<Arch>(dmatrix, Dp, index{1}, D, D, packed_);
    add_times_packed(chunk.minus_w, packed_, to.solved, ld, D);
  }

  // solve_chunk: to.solved is used up. `minus_w` of the chunk as packed columns.
  void solve_grad(const chunk_rows<T>& chunk, const T* minus_w, const chunk_rows<T>& to) {
    const index C = shape_.tokens, D = shape_.D, Dp = shape_.padded_D();
    const index Cp = shape_.padded_tokens(), ld = shape_.ld();
    // (I - N)^T dR = dZ, newest row first: then it is a lower triangle again.
    times_packed<Arch>(chunk.minus_w, Dp, minus_w, D, products_, Cp, C, C);  // V V^T
    for (index r = 0; r < C; ++r) {
      const index s = C - 1 - r;
      for (index n = 0; n < r; ++n) {  // of token u = C - 1 - n > s
        const index u = C - 1 - n;
        factors_[r * Cp + n] = -chunk.beta[u] * products_[u * Cp + s];
      }
      const T* from = to.solved + s * ld;
      T* line = newest_first_ + r * ld;
      for (index c = 0; c < ld; ++c) line[c] = from[c];
      for (index c = Dp + s; c < ld; ++c) line[c] = T(0);  // M has no such elements
    }
    solve_unit_lower<Arch>(factors_, Cp, newest_first_, ld, C, ld);
    // dN = stril(dR Z^T), and of dR only what R has.
    product<Arch>(newest_first_, ld, chunk.solved, Cp, crossed_, Cp, C, C, ld, start::zero);
    for (index r = 0; r < C; ++r) {
      T *of_keys = newest_first_ + r * ld + Dp, *of_w = crossed_ + r * Cp;
      for (index t = C - 1 - r; t < Cp; ++t) of_keys[t] = of_w[t] = T(0);
    }
    // Everything in which beta_s is a factor: -beta_s v_s (dR^Y + stril(dR^M) K + dN V)_s.
    for (index r = 0; r < C; ++r) {
      for (index d = 0; d < Dp; ++d) sums_[r * Dp + d] = newest_first_[r * ld + d];
    }
    product<Arch>(newest_first_ + Dp, ld, chunk.keys, Dp, sums_, Dp, C, D, C, start::add);
    product<Arch>(crossed_, Cp, chunk.minus_w, Dp, sums_, Dp, C, D, C, start::add);
    for (index r = 0; r < C; ++r) {
      const index s = C - 1 - r;
      const T* v = chunk.minus_w + s * Dp;
      T *sum = sums_ + r * Dp, *dv = to.minus_w + s * Dp, dbeta = 0;
      for (index d = 0; d < D; ++d) {
        dbeta -= v[d] * sum[d];
        dv[d] -= chunk.beta[s] * sum[d];
        sum[d] = -chunk.beta[s] * v[d];
      }
      to.beta[s] += dbeta;
    }
    add_product_transposed<Arch>(false, newest_first_ + Dp, ld, sums_, Dp, to.keys, Dp, C, D, C);
    add_product_transposed<Arch>(false, crossed_, Cp, sums_, Dp, to.minus_w, Dp, C, D, C);
  }

  // Token by token, for chunks that are not finite. Key j at the chunk's end has gradient `dend`.
  void pass_key_grad(const chunk_rows<T>& chunk, index j, const T* dend, const chunk_rows<T>& to) {
    const index C = shape_.tokens, D = shape_.D, Dp = shape_.padded_D();
    T* dx = stack_ + C * D;
    bool any = false;
    for (index d = 0; d < D; ++d) {
      dx[d] = dend[d];
      any = any || dend[d] != 0;
    }
    if (!any) return;
    // stack_[s]: the key before it passes token s.
    for (index d = 0; d < D && j + 1 < C; ++d) stack_[(j + 1) * D + d] = chunk.keys[j * Dp + d];
    for (index s = j + 1; s + 1 < C; ++s) copy_passed(chunk, s, s + 1);
    for (index s = C - 1; s > j; --s) {
      pass_token_grad(chunk.minus_w + s * Dp, chunk.beta[s], D, stack_ + s * D, dx,
                      to.minus_w + s * Dp, to.beta + s);
    }
    for (index d = 0; d < D; ++d) to.keys[j * Dp + d] += dx[d];
  }
  // A query of token `newest` that reads each key and then passes its token, back to the chunk's
  // start: dq holds the gradient of what comes out there, and becomes that of the query. dscores[s]
  // is the gradient of the score with key s. Nothing is collected where to.keys is null.
  void pass_query_grad(const chunk_rows<T>& chunk, index newest, const T* query, const T* dscores,
                       T* dq, const chunk_rows<T>& to) {
    const index D = shape_.D, Dp = shape_.padded_D();
    for (index d = 0; d < D; ++d) stack_[newest * D + d] = query[d];
    for (index s = newest; s > 0; --s) copy_passed(chunk, s, s - 1);
    for (index s = 0; s <= newest; ++s) {
      const T* x = stack_ + s * D;
      const bool collect = to.keys != nullptr;
      pass_token_grad(chunk.minus_w + s * Dp, chunk.beta[s], D, x, dq,
                      collect ? to.minus_w + s * Dp : nullptr, collect ? to.beta + s : nullptr);
      const T slope = dscores[s];
      if (slope == 0) continue;
      for (index d = 0; d < D; ++d) dq[d] += slope * chunk.keys[s * Dp + d];
      for (index d = 0; d < D && collect; ++d) to.keys[s * Dp + d] += slope * x[d];
    }
  }

 private:
  // stack_[to] = H_s stack_[s]
  void copy_passed(const chunk_rows<T>& chunk, index s, index to) {
    const index D = shape_.D;
    for (index d = 0; d < D; ++d) stack_[to * D + d] = stack_[s * D + d];
    pass_tokens(chunk.minus_w, shape_.padded_D(), chunk.beta, s, s + 1, D, stack_ + to * D);
  }
  // c[tokens x cols] += a[tokens x D] times packed columns.
  void add_times_packed(const T* a, const T* packed, T* c, index ldc, index cols) {
    constexpr index strip = strip_width<T, Arch>;
    const index D = shape_.D;
    for (index at = 0; at < cols; at += strip) {
      product<Arch>(a, shape_.padded_D(), packed + at * D, strip, c + at, ldc, shape_.tokens,
                    (std::min)(strip, cols - at), D, start::add);
    }
  }

  chunk_shape<T, Arch> shape_;
  T *packed_, *factors_, *products_, *crossed_, *sums_;
  T* newest_first_;  // dR, [tokens][ld]
  T* stack_;         // [tokens + 1][D]
};

}  // namespace heed::inline HEED_ABI::kernel
