// CoPE in a layer: its table of positions, where the layer has them keys of their own for the
// gates, and relative positions beside it.
// Golovneva et al., Contextual Position Encoding, arXiv 2405.18719.
#pragma once

#include <tuple>

#include "heed/layers/frame.hpp"
#include "heed/mechanisms/cope.hpp"
#include "heed/mechanisms/relative.hpp"

namespace heed::inline HEED_ABI::layers {

struct cope_part_options {
  index positions = 64;  // columns of the table: counts 0 .. positions - 1
  bool table_per_head = false;
  cope_scale scale = cope_scale::divided;
  cope_gates gates = cope_gates::keys;
  bool gate_key_bias = true;
  index distances = 0;            // columns of the table of relative positions; 0: none
  bool extend_distances = false;  // keys beyond it use its farthest column instead of nothing
};

template <class T>
struct cope_part {
  parameter<T> embedding;  // [1|heads, D, positions]
  parameter<T> distances;  // [1, D, n]
  projection<T> gate_key;
  cope_part_options options;
  index kv_heads = 0;
  struct tape {
    buffer<T> gate_keys, d_gate_keys;  // [N, kv_heads D]
  };

  cope_part() = default;
  cope_part(const layer_sizes& s, const cope_part_options& o)
      : embedding({o.table_per_head ? s.heads : 1, s.head_dim, o.positions}, 0, spread(s)),
        options(o),
        kv_heads(s.kv_heads) {
    if (o.distances > 0) distances = parameter<T>({1, s.head_dim, o.distances}, 0, spread(s));
    if (o.gates == cope_gates::separate_keys) {
      gate_key = {s.model_dim, s.kv_features(), o.gate_key_bias};
    }
  }

  // positions, distances, gate_key.weight, gate_key.bias.
  void each_parameter(const parameter_visitor<T>& f) {
    visit_parameter(f, "positions", embedding);
    visit_parameter(f, "distances", distances);
    gate_key.each_parameter("gate_key", f);
  }
  void check(const layer_sizes& s) const {
    if (embedding.exists() && embedding.shape[1] == s.head_dim && kv_heads == s.kv_heads) return;
    throw shape_error("heed: cope_part: was made for a layer of other sizes");
  }
  row_history<T> history(index) const { return {}; }

  void forward(const tensor_view<const T, 2>& x, token_rows rows, tape& kept,
               const layer_context<T>& context, history_rows<T>) const {
    if (!gate_key.exists()) return;
    kept.gate_keys.resize(rows.count(), gate_key.out());
    gate_key.forward(x, kept.gate_keys.matrix(), context);
  }
  // The gates read the logits before relative positions are added.
  std::tuple<cope<T>, relative<T>> mechanisms(const tape& kept, token_rows rows) const {
    tensor_view<const T, 4> keys;
    if (gate_key.exists()) keys = kept.gate_keys.heads(rows.batch, rows.tokens, kv_heads);
    return {cope<T>(embedding.template view<3>(), options.scale, options.gates, keys),
            relative<T>{table(distances.template view<3>()), options.extend_distances}};
  }
  auto with_gradients(tape& kept, token_rows rows) {
    const auto list = mechanisms(kept, rows);
    cope_grad<T> to;
    embedding.need_gradient();
    distances.need_gradient();
    to.embedding = embedding.template gradient_view<3>();
    if (gate_key.exists()) {
      kept.d_gate_keys.resize_zero(rows.count(), gate_key.out());
      to.gate_keys = kept.d_gate_keys.heads(rows.batch, rows.tokens, kv_heads);
    }
    return std::tuple(with_grad(std::get<0>(list), to),
                      with_grad(std::get<1>(list), {table(distances.template gradient_view<3>())}));
  }
  void backward(const tensor_view<const T, 2>& x, token_rows, const tensor_view<T, 2>& dx,
                tape& kept, const layer_context<T>& context) {
    if (!gate_key.exists()) return;
    gate_key.backward(x, std::as_const(kept.d_gate_keys).matrix(), dx, context);
  }

 private:
  static double spread(const layer_sizes& s) noexcept {
    return 1 / std::sqrt(static_cast<double>(s.head_dim));
  }
  // [1, D, n] as [D, n].
  template <class U>
  static tensor_view<U, 2> table(const tensor_view<U, 3>& x) {
    if (x.data() == nullptr) return {};
    return {x.data(), {x.extent(1), x.extent(2)}};
  }
};

}  // namespace heed::inline HEED_ABI::layers
