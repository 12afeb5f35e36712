// MultiHeadAttention: a whole layer, from hidden states to hidden states.
//
//   auto layer = layers::path_attention<float>({.model_dim = 512, .heads = 8});
//   layer.initialize(1);
//   layer.forward(x, y);                              // x, y [B, T, model_dim]
//
// A layer is a frame (layers/frame.hpp: projections to queries, keys and values, norms, shifts,
// gates and the output) around a list of parts (layers/rope_part.hpp says what a part is), each of
// which brings a mechanism with the parameters that it needs. Parts stand in the order in which
// their mechanisms apply. The published layers are aliases with tables of their official parameter
// names: layers/path_attention.hpp and its neighbours. There is no residual connection and no norm
// before the layer.
#pragma once

#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "heed/attend_grad.hpp"
#include "heed/layers/frame.hpp"
#include "heed/layers/layer_cache.hpp"
#include "heed/layers/rows.hpp"
#include "heed/mechanisms/kernel_init.hpp"

namespace heed::inline HEED_ABI {

// Options of a layer's calls; every field has a default.
template <class T>
struct layer_options {
  heed::mask mask = causal();
  executor_ref executor = {};           // who runs the tasks; default: the calling thread
  layers::product_ref<T> product = {};  // matrix products; default: Eigen's
  bool backward_follows = true;         // forward with a tape: false keeps less
};

template <class T, template <class> class... Parts>
class MultiHeadAttention {
 public:
  using value_type = T;
  using parts_type = std::tuple<Parts<T>...>;

  // What forward leaves for backward, and memory that calls use again. A tape belongs to one call
  // at a time; any number of them may be in use with one layer.
  struct tape {
    typename layers::layer_frame<T>::tape frame;
    std::tuple<typename Parts<T>::tape...> parts;
    heed::workspace memory;
    SavedForward<T> saved;
    layers::buffer<T> dy;  // where the caller's rows are not contiguous
    layers::written_rows<T> y, dx;
    layers::token_rows of;  // the call that it is of
    bool whole = false;     // and whether that left all that backward needs
  };

  // What decoding remembers. Element: T, or stored_as<T, bfloat16> and the like (cache.hpp).
  template <class Element = T>
  using cache = layers::layer_cache<
      typename layers::cache_of<Element,
                                decltype(std::tuple_cat(std::declval<const Parts<T>&>().mechanisms(
                                    std::declval<const typename Parts<T>::tape&>(),
                                    layers::token_rows{})...))>::type,
      tape, sizeof...(Parts)>;

  // Throws shape_error where a part does not fit the frame.
  explicit MultiHeadAttention(layers::layer_frame<T> frame, Parts<T>... parts)
      : frame_(std::move(frame)), parts_(std::move(parts)...) {
    each_part([&](const auto& part) { part.check(frame_.sizes); });
  }

  const layers::layer_sizes& sizes() const noexcept { return frame_.sizes; }
  layers::layer_frame<T>& frame() noexcept { return frame_; }
  parts_type& parts() noexcept { return parts_; }

  // Calls f(name, layers::parameter<T>&) for every parameter, in an order that never changes.
  void each_parameter(const layers::parameter_visitor<T>& f) {
    frame_.each_parameter(f);
    std::apply([&](auto&... part) { (part.each_parameter(f), ...); }, parts_);
  }
  // All parameters as a flat list, for optimisers. The spans are valid until the layer moves or
  // dies.
  std::vector<layers::parameter_view<T>> parameters() {
    std::vector<layers::parameter_view<T>> list;
    each_parameter([&](const std::string& name, layers::parameter<T>& p) {
      list.push_back({name, p.shape, p.value, p.gradient, p.learned});
    });
    return list;
  }
  // One of them. Throws shape_error when the layer has none of that name.
  layers::parameter_view<T> parameter(const std::string& name) {
    for (const auto& p : parameters()) {
      if (p.name == name) return p;
    }
    throw shape_error("heed: layer: has no parameter " + name);
  }
  // Sets all gradients to 0, and makes room for them.
  void zero_gradients() {
    each_parameter([](const std::string&, layers::parameter<T>& p) {
      p.need_gradient();
      std::fill(p.gradient.begin(), p.gradient.end(), T(0));
    });
  }
  // Random weights to begin training with: matrices N(0, 1 / in), tables N(0, 1 / head_dim); norms
  // 1, biases 0, MTA's kernels and mixes as they were built, the identity.
  void initialize(std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    each_parameter([&](const std::string&, layers::parameter<T>& p) {
      if (p.spread > 0) {
        init_normal(tensor_view<T, 1>(p.value.data(), {p.size()}), generator, p.spread);
      }
    });
  }

  // y = layer(x), both [B, T, model_dim] with any strides; y must not overlap x.
  //
  // Throws shape_error, before anything is written, when shapes do not fit.
  void forward(const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y,
               const layer_options<T>& options = {}) const {
    tape own;
    layer_options<T> once = options;
    once.backward_follows = false;
    forward(x, y, own, once);
  }
  // The same, with memory that is kept, and unless options say otherwise what backward needs.
  void forward(const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y, tape& kept,
               const layer_options<T>& options = {}) const {
    check_tokens("x", x);
    check_like("y", y, x);
    check_output("layer", {"y", y}, {{"x", x}});
    const layers::token_rows rows{x.extent(0), x.extent(1)};
    kept.whole = false;
    const layers::layer_context<T> context{options.executor, options.product};
    const tensor_view<const T, 2> in = layers::as_rows(x, kept.frame.x);
    project(in, rows, kept, context, options.backward_follows);
    const layers::layer_sizes& s = frame_.sizes;
    kept.frame.out.resize(rows.count(), s.features());
    kept.frame.lse.resize(rows.count(), s.heads);
    attend_options<T> how = attention_options(kept, options);
    if (options.backward_follows) {
      how.lse = kept.frame.lse.per_head(rows.batch, rows.tokens);
      how.saved = &kept.saved;
    }
    std::apply(
        [&](const auto&... m) {
          attend(queries(kept, rows), keys(kept, rows), values(kept, rows),
                 kept.frame.out.heads(rows.batch, rows.tokens, s.heads), how, m...);
        },
        mechanisms(kept, rows));
    frame_.finish(in, kept.y.begin(y), kept.frame, context, options.backward_follows);
    kept.y.finish(y);
    kept.of = rows;
    kept.whole = options.backward_follows;
  }

  // The gradients of sum(y * dy) of the forward call that left `kept`: dx [B, T, model_dim] is
  // overwritten (a view without data: not wanted), those of the parameters are added to what they
  // hold. Same x and options as forward. The tape is used up.
  //
  // Throws shape_error, before anything is written, when shapes do not fit.
  void backward(const tensor_view<const T, 3>& x, const tensor_view<const T, 3>& dy,
                const tensor_view<T, 3>& dx, tape& kept, const layer_options<T>& options = {}) {
    check_tokens("x", x);
    check_like("dy", dy, x);
    if (dx.data() != nullptr) {
      check_like("dx", dx, x);
      check_output("layer", {"dx", dx}, {{"x", x}, {"dy", dy}});
    }
    const layers::token_rows rows{x.extent(0), x.extent(1)};
    if (!kept.whole || kept.of.batch != rows.batch || kept.of.tokens != rows.tokens) {
      throw shape_error(
          "heed: layer: backward: the tape is not what forward left for these tokens");
    }
    kept.whole = false;
    const layers::layer_context<T> context{options.executor, options.product};
    const tensor_view<const T, 2> in = layers::as_rows(x, kept.frame.x);
    const tensor_view<const T, 2> given = layers::as_rows(dy, kept.dy);
    const tensor_view<T, 2> to = dx.data() != nullptr ? kept.dx.begin(dx) : tensor_view<T, 2>{};
    for (index r = 0; r < to.extent(0); ++r) std::fill_n(to.pointer(r, 0), to.extent(1), T(0));
    frame_.finish_backward(in, given, to, kept.frame, context);
    attend_backward(kept, rows, options);
    std::apply(
        [&](auto&... part) {
          std::apply([&](auto&... own) { (part.backward(in, rows, to, own, context), ...); },
                     kept.parts);
        },
        parts_);
    frame_.query.backward(in, rows, to, kept.frame.query, context);
    frame_.key.backward(in, rows, to, kept.frame.key, context);
    frame_.value.backward(in, rows, to, kept.frame.value, context);
    if (dx.data() != nullptr) kept.dx.finish(dx);
  }

  // An empty cache for some sequences, with room for `capacity` tokens of each: beyond it memory
  // grows. The layer must stay where it is while the cache is in use.
  //
  // Throws shape_error where the mask (of options) is not one that a KvCache takes.
  template <class Element = T>
  cache<Element> make_cache(index sequences, index capacity = 0,
                            const layer_options<T>& options = {}) const {
    const layers::layer_sizes& s = frame_.sizes;
    const tape none;
    cache_shape shape;
    shape.sequences = sequences;
    shape.heads = s.heads;
    shape.kv_heads = s.kv_heads;
    shape.head_size = s.head_dim;
    shape.capacity = capacity;
    const cache_options how{.mask = options.mask, .executor = options.executor};
    const auto shifted = [&](const layers::head_projection<T>& p) {
      return p.shift.exists() ? layers::row_history<T>(sequences, 1, p.features())
                              : layers::row_history<T>();
    };
    return std::apply(
        [&](const auto&... m) {
          using tokens = std::remove_cvref_t<decltype(std::declval<cache<Element>&>().tokens())>;
          return std::apply(
              [&](const auto&... part) {
                return cache<Element>(tokens(shape, how, m...), shifted(frame_.key),
                                      shifted(frame_.value), {part.history(sequences)...});
              },
              parts_);
        },
        mechanisms(none, {}));
  }

  // Goes on with new tokens: x and y [n, t, model_dim], t of each of the n sequences named (none
  // named: all of the cache, in order). A whole prompt is the first such call, single tokens are
  // the next; any chunks give the rows of y that forward gives on the whole, to rounding. Nothing
  // is allocated once the cache has room and has seen a call of this size, but for what the matrix
  // products take.
  //
  // Throws shape_error, before anything is written, when shapes do not fit or a sequence is not
  // there or named twice; std::bad_alloc.
  template <class Tokens>
  void decode(const tensor_view<const T, 3>& x, const tensor_view<T, 3>& y,
              layers::layer_cache<Tokens, tape, sizeof...(Parts)>& past,
              std::span<const index> sequences = {}, const layer_options<T>& options = {}) const {
    const std::span<const index> of = sequences.empty() ? past.all_ : sequences;
    check_tokens("x", x);
    check_like("y", y, x);
    check_output("layer", {"y", y}, {{"x", x}});
    check_sequences(of, x.extent(0), past.sequences());
    if (x.extent(0) == 0 || x.extent(1) == 0) return;
    tape& kept = past.tape_;
    const layers::token_rows rows{x.extent(0), x.extent(1)};
    const layers::layer_context<T> context{options.executor, options.product};
    const tensor_view<const T, 2> in = layers::as_rows(x, kept.frame.x);
    const cache_batch which{index_list(of)};
    frame_.query.forward(in, rows, kept.frame.query, context, false);
    frame_.key.forward(in, rows, kept.frame.key, context, false, past.history(past.key_, of));
    frame_.value.forward(in, rows, kept.frame.value, context, false, past.history(past.value_, of));
    each_part([&](const auto& part, auto& own,
                  auto& before) { part.forward(in, rows, own, context, past.history(before, of)); },
              kept.parts, past.parts_);
    std::apply(
        [&](const auto&... m) {
          past.tokens_.append(which, keys(kept, rows), values(kept, rows), m...);
        },
        mechanisms(kept, rows));
    kept.frame.out.resize(rows.count(), frame_.sizes.features());
    past.tokens_.attend(which, queries(kept, rows),
                        kept.frame.out.heads(rows.batch, rows.tokens, frame_.sizes.heads));
    frame_.finish(in, kept.y.begin(y), kept.frame, context, false);
    kept.y.finish(y);
  }

 private:
  static void check_sequences(std::span<const index> of, index entries, index sequences) {
    if (static_cast<index>(of.size()) != entries) {
      throw_axis_error("layer", "x", 0, "sequences", entries, std::to_string(of.size()));
    }
    for (std::size_t n = 0; n < of.size(); ++n) {
      if (of[n] < 0 || of[n] >= sequences) {
        throw shape_error("heed: layer: there is no sequence " + std::to_string(of[n]) + " of " +
                          std::to_string(sequences));
      }
      for (std::size_t m = 0; m < n; ++m) {
        if (of[m] == of[n]) {
          throw shape_error("heed: layer: sequence " + std::to_string(of[n]) + " is named twice");
        }
      }
    }
  }
  void check_tokens(const char* name, const tensor_view<const T, 3>& x) const {
    check_extents(
        "layer", name, x,
        {{{"batch", x.extent(0)}, {"tokens", x.extent(1)}, {"model_dim", frame_.sizes.model_dim}}});
  }
  template <class U>
  static void check_like(const char* name, const tensor_view<U, 3>& y,
                         const tensor_view<const T, 3>& x) {
    check_extents("layer", name, y,
                  {{{"batch", x.extent(0)}, {"tokens", x.extent(1)}, {"model_dim", x.extent(2)}}});
  }

  // f(part, its entry of each list) for all parts.
  template <class F, class... Lists>
  void each_part(const F& f, Lists&... lists) const {
    [&]<std::size_t... N>(std::index_sequence<N...>) {
      const auto one = [&](auto number) {
        f(std::get<decltype(number)::value>(parts_), std::get<decltype(number)::value>(lists)...);
      };
      (one(std::integral_constant<std::size_t, N>{}), ...);
    }
    (std::index_sequence_for<Parts<T>...>{});
  }

  // Everything before attention.
  void project(const tensor_view<const T, 2>& x, layers::token_rows rows, tape& kept,
               const layers::layer_context<T>& context, bool backward_follows) const {
    frame_.query.forward(x, rows, kept.frame.query, context, backward_follows);
    frame_.key.forward(x, rows, kept.frame.key, context, backward_follows);
    frame_.value.forward(x, rows, kept.frame.value, context, backward_follows);
    each_part([&](const auto& part,
                  auto& own) { part.forward(x, rows, own, context, layers::history_rows<T>{}); },
              kept.parts);
  }

  tensor_view<const T, 4> queries(tape& kept, layers::token_rows rows) const {
    return frame_.query.result(kept.frame.query).heads(rows.batch, rows.tokens, frame_.sizes.heads);
  }
  tensor_view<const T, 4> keys(tape& kept, layers::token_rows rows) const {
    return frame_.key.result(kept.frame.key).heads(rows.batch, rows.tokens, frame_.sizes.kv_heads);
  }
  tensor_view<const T, 4> values(tape& kept, layers::token_rows rows) const {
    return frame_.value.result(kept.frame.value)
        .heads(rows.batch, rows.tokens, frame_.sizes.kv_heads);
  }
  // What the parts put into attend's list.
  auto mechanisms(const tape& kept, layers::token_rows rows) const {
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return std::tuple_cat(std::get<N>(parts_).mechanisms(std::get<N>(kept.parts), rows)...);
    }
    (std::index_sequence_for<Parts<T>...>{});
  }
  auto mechanisms_with_gradients(tape& kept, layers::token_rows rows) {
    return [&]<std::size_t... N>(std::index_sequence<N...>) {
      return std::tuple_cat(std::get<N>(parts_).with_gradients(std::get<N>(kept.parts), rows)...);
    }
    (std::index_sequence_for<Parts<T>...>{});
  }
  static attend_options<T> attention_options(tape& kept, const layer_options<T>& options) {
    return {.mask = options.mask, .executor = options.executor, .workspace = &kept.memory};
  }

  // From kept.frame.gradient, the gradient of attention's output, to those of q, k and v and of
  // what the mechanisms read. They are added to what is there, so that parameters' own gradients
  // need no copy.
  void attend_backward(tape& kept, layers::token_rows rows, const layer_options<T>& options) {
    typename layers::layer_frame<T>::tape& f = kept.frame;
    const index B = rows.batch, tokens = rows.tokens, heads = frame_.sizes.heads;
    gradients<T> to;
    const auto take = [&](auto& own, index count) {
      own.gradient.resize_zero(rows.count(), count * frame_.sizes.head_dim);
      return own.gradient.heads(B, tokens, count);
    };
    to.q = take(f.query, heads);
    to.k = take(f.key, frame_.sizes.kv_heads);
    to.v = take(f.value, frame_.sizes.kv_heads);
    to.accumulate = true;
    attend_options<T> how = attention_options(kept, options);
    how.saved = &kept.saved;
    std::apply(
        [&](const auto&... m) {
          attend_grad(queries(kept, rows), keys(kept, rows), values(kept, rows),
                      f.out.heads(B, tokens, heads), f.lse.per_head(B, tokens),
                      f.gradient.heads(B, tokens, heads), to, how, m...);
        },
        mechanisms_with_gradients(kept, rows));
  }

  layers::layer_frame<T> frame_;
  parts_type parts_;
};

}  // namespace heed::inline HEED_ABI
