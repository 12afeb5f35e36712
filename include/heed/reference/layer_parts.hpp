// The parts of layers as plain loops over one sequence of tokens, any scalar type; no code shared
// with heed/layers/.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "heed/reference/attend.hpp"

namespace heed::inline HEED_ABI::reference {

// Row t holds the features of token t; feature c of a row belongs to head c / D.
template <class T>
using token_list = std::vector<std::vector<T>>;

// A layer's parameters by name, row-major.
template <class T>
struct layer_tensor {
  std::vector<index> shape;
  std::vector<T> values;
};
template <class T>
using layer_tensors = std::map<std::string, layer_tensor<T>>;

// y_t = W x_t + b, W [out, in]. No bias: null.
template <class T>
token_list<T> linear(const token_list<T>& x, const layer_tensor<T>& weight,
                     const layer_tensor<T>* bias = nullptr) {
  const auto out = static_cast<std::size_t>(weight.shape[0]);
  const auto in = static_cast<std::size_t>(weight.shape[1]);
  token_list<T> y;
  for (const std::vector<T>& from : x) {
    std::vector<T> to(out);
    for (std::size_t o = 0; o < out; ++o) {
      T sum = bias != nullptr ? bias->values[o] : T(0);
      for (std::size_t i = 0; i < in; ++i) sum += weight.values[o * in + i] * from[i];
      to[o] = sum;
    }
    y.push_back(to);
  }
  return y;
}
// The parameters NAME.weight and, where it is there, NAME.bias.
template <class T>
token_list<T> linear(const token_list<T>& x, const layer_tensors<T>& p, const std::string& name) {
  const auto bias = p.find(name + ".bias");
  return linear(x, p.at(name + ".weight"), bias != p.end() ? &bias->second : nullptr);
}

// x_c <- weight x_c / sqrt(mean over the head of x^2 + eps); weight [D], or [heads D].
template <class T>
token_list<T> head_rms_norm(token_list<T> x, std::size_t heads, const layer_tensor<T>& weight,
                            double eps) {
  for (std::vector<T>& row : x) {
    const std::size_t D = row.size() / heads;
    for (std::size_t h = 0; h < heads; ++h) {
      T squares = 0;
      for (std::size_t d = 0; d < D; ++d) squares += row[h * D + d] * row[h * D + d];
      const T size = std::sqrt(squares / static_cast<T>(D) + static_cast<T>(eps));
      for (std::size_t d = 0; d < D; ++d) {
        const std::size_t c = h * D + d;
        row[c] *= weight.values[weight.values.size() == D ? d : c] / size;
      }
    }
  }
  return x;
}

// x <- x / sqrt(sum over the head of x^2 + eps)
template <class T>
token_list<T> head_directions(token_list<T> x, std::size_t heads, double eps) {
  for (std::vector<T>& row : x) {
    const std::size_t D = row.size() / heads;
    for (std::size_t h = 0; h < heads; ++h) {
      T squares = static_cast<T>(eps);
      for (std::size_t d = 0; d < D; ++d) squares += row[h * D + d] * row[h * D + d];
      for (std::size_t d = 0; d < D; ++d) row[h * D + d] /= std::sqrt(squares);
    }
  }
  return x;
}

template <class T>
T logistic(T x) {
  return 1 / (1 + std::exp(-x));
}

// f of every element.
template <class T, class F>
token_list<T> each(token_list<T> x, const F& f) {
  for (std::vector<T>& row : x) {
    for (T& value : row) value = f(value);
  }
  return x;
}
// f of every element and the one in the same place of y.
template <class T, class F>
token_list<T> each(token_list<T> x, const token_list<T>& y, const F& f) {
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] = f(x[t][c], y[t][c]);
  }
  return x;
}

// a_t r_(t-1) + (1 - a_t) r_t with a = sigmoid(logits), one for each head; r_(-1) = 0.
template <class T>
token_list<T> shift(const token_list<T>& r, const token_list<T>& logits) {
  token_list<T> y = r;
  for (std::size_t t = 0; t < r.size(); ++t) {
    const std::size_t D = r[t].size() / logits[t].size();
    for (std::size_t c = 0; c < r[t].size(); ++c) {
      const T a = logistic(logits[t][c / D]);
      y[t][c] = a * (t > 0 ? r[t - 1][c] : T(0)) + (1 - a) * r[t][c];
    }
  }
  return y;
}

// SiLU of u_t,c = bias_c + sum over m of weight_c,m r_(t - (W - 1) + m),c; weight [C, 1, W].
template <class T>
token_list<T> short_conv(const token_list<T>& r, const layer_tensor<T>& weight,
                         const layer_tensor<T>* bias) {
  const auto W = static_cast<std::size_t>(weight.shape[2]);
  token_list<T> y = r;
  for (std::size_t t = 0; t < r.size(); ++t) {
    for (std::size_t c = 0; c < r[t].size(); ++c) {
      T u = bias != nullptr ? bias->values[c] : T(0);
      for (std::size_t m = 0; m < W; ++m) {
        if (t + m + 1 >= W) u += weight.values[c * W + m] * r[t + m + 1 - W][c];
      }
      y[t][c] = u * logistic(u);
    }
  }
  return y;
}

// Rows as a view [1, tokens, heads, D] or, for one number a head, [1, tokens, heads].
template <class T>
class flat_tokens {
 public:
  explicit flat_tokens(const token_list<T>& x)
      : tokens_(static_cast<index>(x.size())),
        cols_(x.empty() ? 0 : static_cast<index>(x[0].size())) {
    for (const std::vector<T>& row : x) values_.insert(values_.end(), row.begin(), row.end());
  }
  tensor_view<const T, 4> heads(index count) const {
    return {values_.data(), {1, tokens_, count, cols_ / count}};
  }
  tensor_view<const T, 3> per_head() const { return {values_.data(), {1, tokens_, cols_}}; }

 private:
  index tokens_, cols_;
  std::vector<T> values_;
};

// Causal attention with a list of mechanisms: rows of heads side by side in and out.
template <class T, class... Mechanisms>
token_list<T> attention(const token_list<T>& q, const token_list<T>& k, const token_list<T>& v,
                        index heads, index kv_heads, const Mechanisms&... mechanisms) {
  const flat_tokens<T> fq(q), fk(k), fv(v);
  const tensor_view<const T, 4> values = fv.heads(kv_heads);
  const auto tokens = static_cast<index>(q.size());
  const index D = values.extent(3);
  std::vector<T> out(static_cast<std::size_t>(tokens * heads * D));
  attend<T>(fq.heads(heads), fk.heads(kv_heads), values,
            tensor_view<T, 4>(out.data(), {1, tokens, heads, D}), {.mask = causal()},
            mechanisms...);
  token_list<T> rows;
  for (index t = 0; t < tokens; ++t) {
    rows.emplace_back(out.begin() + t * heads * D, out.begin() + (t + 1) * heads * D);
  }
  return rows;
}

// y = layer(rows of one sequence), for all sequences of x and y [B, T, model_dim].
template <class T, class Layer>
void each_sequence(const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y,
                   const Layer& layer) {
  for (index b = 0; b < x.extent(0); ++b) {
    token_list<T> rows;
    for (index t = 0; t < x.extent(1); ++t) {
      rows.emplace_back();
      for (index c = 0; c < x.extent(2); ++c) rows.back().push_back(x(b, t, c));
    }
    const token_list<T> out = layer(rows);
    for (index t = 0; t < x.extent(1); ++t) {
      for (index c = 0; c < x.extent(2); ++c) {
        y(b, t, c) = out[static_cast<std::size_t>(t)][static_cast<std::size_t>(c)];
      }
    }
  }
}

}  // namespace heed::inline HEED_ABI::reference
