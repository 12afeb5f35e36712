// FoX in a layer: where its forget gates come from.
//
//   full        log f_t,h = log sigmoid(<W_h, x_t> + b_h)
//   bias_only   log f_t,h = log sigmoid(b_h)
//   fixed       the same, and b is not learned
//   none        log f = 0
#pragma once

#include <tuple>

#include "heed/kernel/reverse.hpp"
#include "heed/layers/frame.hpp"
#include "heed/mechanisms/fox.hpp"

namespace heed::inline HEED_ABI::layers {

enum class forget_gate { full, bias_only, fixed, none };

template <class T>
struct fox_part {
  projection<T> logits;  // full: [heads, model_dim] and [heads]
  parameter<T> bias;     // bias_only and fixed: [heads]
  std::vector<T> open;   // none: [heads] zeros
  gate convention = gate::outside_scale;
  struct tape {
    buffer<T> z, log_f;  // [N, heads], or [1, heads] without tokens in it
    buffer<T> d_log_f;   // [N, heads]
  };

  fox_part() = default;
  // `fixed` takes its biases from decay times (fixed_gate_logits).
  fox_part(const layer_sizes& s, forget_gate kind, gate c = gate::outside_scale) : convention(c) {
    if (kind == forget_gate::full) logits = {s.model_dim, s.heads, true};
    if (kind == forget_gate::bias_only || kind == forget_gate::fixed) {
      bias = parameter<T>({s.heads});
      bias.learned = kind == forget_gate::bias_only;
    }
    if (kind == forget_gate::none) open.assign(static_cast<std::size_t>(s.heads), T(0));
  }

  // forget.weight, forget.bias.
  void each_parameter(const parameter_visitor<T>& f) {
    logits.each_parameter("forget", f);
    visit_parameter(f, "forget.bias", bias);
  }
  void check(const layer_sizes&) const {}
  row_history<T> history(index) const { return {}; }

  void forward(const tensor_view<const T, 2>& x, token_rows rows, tape& kept,
               const layer_context<T>& context, history_rows<T>) const {
    if (logits.exists()) {
      kept.z.resize(rows.count(), logits.out());
      logits.forward(x, kept.z.matrix(), context);
    } else if (bias.exists()) {
      kept.z.resize(1, bias.size());
      std::copy_n(bias.value.data(), bias.size(), kept.z.data());
    } else {
      return;
    }
    kept.log_f.resize(kept.z.rows(), kept.z.cols());
    log_sigmoid(std::as_const(kept.z).per_head(1, kept.z.rows()),
                kept.log_f.per_head(1, kept.z.rows()));
  }
  std::tuple<fox<T>> mechanisms(const tape& kept, token_rows rows) const {
    if (logits.exists()) return fox<T>{kept.log_f.per_head(rows.batch, rows.tokens), convention};
    const T* every_token = bias.exists() ? kept.log_f.data() : open.data();
    const index heads = bias.exists() ? bias.size() : static_cast<index>(open.size());
    return fox<T>{{every_token, {rows.batch, rows.tokens, heads}, {0, 0, 1}}, convention};
  }
  std::tuple<differentiated<fox<T>>> with_gradients(tape& kept, token_rows rows) {
    const fox<T> mechanism = std::get<0>(mechanisms(kept, rows));
    if (!logits.exists() && !(bias.exists() && bias.learned)) return with_grad(mechanism, {});
    kept.d_log_f.resize_zero(rows.count(), kept.z.cols());
    return with_grad(mechanism, {kept.d_log_f.per_head(rows.batch, rows.tokens)});
  }
  // dz = d log f (1 - sigmoid(z))
  void backward(const tensor_view<const T, 2>& x, token_rows rows, const tensor_view<T, 2>& dx,
                tape& kept, const layer_context<T>& context) {
    if (logits.exists()) {
      for (index n = 0; n < kept.z.size(); ++n) kept.d_log_f.data()[n] *= closed(kept.z.data()[n]);
      logits.backward(x, std::as_const(kept.d_log_f).matrix(), dx, context);
    } else if (bias.exists() && bias.learned) {
      bias.need_gradient();
      for (index h = 0; h < bias.size(); ++h) {
        double sum = 0;
        for (index n = 0; n < rows.count(); ++n) {
          sum += static_cast<double>(kept.d_log_f.row(n)[h]);
        }
        const auto at = static_cast<std::size_t>(h);
        bias.gradient[at] += static_cast<T>(sum) * closed(bias.value[at]);
      }
    }
  }

 private:
  // 1 - sigmoid(z)
  static T closed(T z) noexcept {
    return static_cast<T>(1 / (1 + std::exp(static_cast<double>(z))));
  }
};

}  // namespace heed::inline HEED_ABI::layers
