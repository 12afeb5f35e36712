#include "random_problem.hpp"

namespace heed_test {

random_problem::random_problem(std::uint64_t seed, const random_limits& limits) : random(seed) {
  draw_shape(limits);
  draw_mask(limits);
  q = tensor<4>({call.B, call.T, call.Hq, call.D});
  k = tensor<4>({call.B, call.S, call.Hkv, call.D});
  v = tensor<4>({call.B, call.S, call.Hkv, call.Dv});
  if (random.chance(0.5)) poison_padding();
}

std::string random_problem::text() const {
  const auto n = [](index x) { return std::to_string(x); };
  return "B=" + n(call.B) + " T=" + n(call.T) + " S=" + n(call.S) + " Hq=" + n(call.Hq) +
         " Hkv=" + n(call.Hkv) + " D=" + n(call.D) + " Dv=" + n(call.Dv) + " mask " +
         n(static_cast<index>(kind)) + (mask.is_causal ? " causal" : "") +
         (mask.align == heed::alignment::top_left ? " top_left" : "");
}

void random_problem::draw_shape(const random_limits& limits) {
  static constexpr std::array<index, 8> sizes{1, 2, 3, 5, 8, 16, 17, 37};
  call.B = random.integer(1, 3);
  call.T = random.integer(random.chance(0.05) ? 0 : 1, limits.longest);
  call.S = call.T;
  if (limits.short_queries && random.chance(0.5)) {
    call.S = random.integer(random.chance(0.05) ? 0 : 1, limits.longest);
  }
  const index m = limits.heads_multiple;
  call.Hq = m * random.integer(1, m >= 4 ? 2 : 6 / m);
  do call.Hkv = random.integer(1, call.Hq);
  while (call.Hq % call.Hkv != 0);
  call.D = random.pick(sizes);
  call.Dv = limits.values_like_keys ? call.D : random.pick(sizes);
  call.scale = 1 / std::sqrt(static_cast<double>(call.D));
}

void random_problem::draw_mask(const random_limits& limits) {
  static constexpr std::array all{mask_kind::causal,        mask_kind::none,
                                  mask_kind::top_left,      mask_kind::window,
                                  mask_kind::causal_window, mask_kind::always_visible,
                                  mask_kind::padded,        mask_kind::query_starts,
                                  mask_kind::packed,        mask_kind::boolean_view};
  kind = random.pick(all);
  const bool newer = limits.newer_keys && random.chance(0.3);
  if (!newer) mask = heed::causal();
  const index left = random.integer(0, call.S + 1), right = random.integer(0, 4);
  switch (kind) {
    case mask_kind::none:
      if (limits.newer_keys) mask = heed::full();
      break;
    case mask_kind::causal:
      break;
    case mask_kind::top_left:
      mask = mask.top_left();
      break;
    case mask_kind::window:
      mask = mask.window(left, right);
      break;
    case mask_kind::causal_window:
      mask = heed::window(left, 0);
      break;
    case mask_kind::always_visible:
      mask = mask.window(left, right).always_visible(random.integer(0, 5));
      break;
    case mask_kind::padded:
      draw_padding();
      break;
    case mask_kind::query_starts:
      draw_starts();
      break;
    case mask_kind::packed:
      draw_pieces(limits);
      break;
    case mask_kind::boolean_view:
      draw_view();
      break;
  }
}

void random_problem::draw_padding() {
  for (index b = 0; b < call.B; ++b) {
    lengths_.push_back(random.integer(0, call.S));
    starts_.push_back(static_cast<std::int32_t>(random.integer(0, call.S)));
  }
  if (random.chance(0.7)) mask = mask.key_lengths(lengths_);
  if (random.chance(0.7)) mask = mask.key_starts(starts_);
}

void random_problem::draw_starts() {
  for (index b = 0; b < call.B; ++b) {
    lengths_.push_back(random.integer(0, std::max<index>(0, call.S - call.T + 2)));
  }
  mask = mask.query_starts(lengths_);
}

// 1 to 4 pieces, empty ones among them.
void random_problem::draw_pieces(const random_limits& limits) {
  call.B = 1;
  lengths_ = {0};
  starts_ = {0};
  const index pieces = random.integer(1, 4);
  for (index n = 0; n < pieces; ++n) {
    const index queries = random.integer(0, limits.longest / 2);
    const index keys = limits.short_queries ? random.integer(0, limits.longest / 2) : queries;
    lengths_.push_back(lengths_.back() + queries);
    starts_.push_back(starts_.back() + static_cast<std::int32_t>(keys));
  }
  call.T = lengths_.back();
  call.S = starts_.back();
  mask = mask.packed(lengths_, starts_);
}

void random_problem::draw_view() {
  const heed::shape<4> extents{random.chance(0.5) ? 1 : call.B, random.chance(0.5) ? 1 : call.Hq,
                               random.chance(0.3) ? 1 : call.T, random.chance(0.2) ? 1 : call.S};
  const index size = extents[0] * extents[1] * extents[2] * extents[3];
  shown_ = std::make_unique<bool[]>(static_cast<std::size_t>(size + 1));
  for (index n = 0; n < size; ++n) shown_[static_cast<std::size_t>(n)] = random.chance(0.7);
  mask = mask.visible(heed::tensor_view<const bool, 4>(shown_.get(), extents));
}

// NaN into keys and values that padding hides from every row.
void random_problem::poison_padding() {
  if (k.repeats() || v.repeats()) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (index b = 0; b < call.B; ++b) {
    const index begin = mask.key_start.given() ? mask.key_start[b] : 0;
    const index end = mask.key_length.given() ? mask.key_length[b] : call.S;
    for (index j = 0; j < call.S; ++j) {
      if (j >= begin && j < end) continue;
      for (index h = 0; h < call.Hkv; ++h) {
        for (index c = 0; c < call.D; ++c) k.set(nan, b, j, h, c);
        for (index c = 0; c < call.Dv; ++c) v.set(nan, b, j, h, c);
      }
    }
  }
}

random_problem causal_problem(std::uint64_t seed, const heed::problem& call) {
  random_problem x(seed, {.newer_keys = false});
  x.call = call;
  x.mask = heed::causal();
  x.q = twin<4>({1, call.T, call.Hq, call.D}, layout::heads_outside);
  x.k = twin<4>({1, call.S, call.Hkv, call.D}, layout::fused);
  x.v = twin<4>({1, call.S, call.Hkv, call.Dv}, layout::every_second);
  for (twin<4>* tensor : {&x.q, &x.k, &x.v}) tensor->fill([&] { return x.random.normal(); });
  return x;
}

}  // namespace heed_test
