// What the reference computes with: one sequence as plain arrays, every pair of query and key
// written out.
#pragma once

#include <limits>
#include <vector>

#include "heed/options.hpp"
#include "heed/problem.hpp"

namespace heed::inline HEED_ABI::reference {

// A dense array of three axes.
template <class T>
class table {
 public:
  table() = default;
  table(index a, index b, index c, T value = T(0))
      : b_(b), c_(c), elements_(static_cast<std::size_t>(a * b * c), value) {}

  T& operator()(index a, index b, index c) { return elements_[at(a, b, c)]; }
  const T& operator()(index a, index b, index c) const { return elements_[at(a, b, c)]; }

 private:
  std::size_t at(index a, index b, index c) const {
    return static_cast<std::size_t>((a * b_ + b) * c_ + c);
  }
  index b_ = 0, c_ = 0;
  std::vector<T> elements_;
};

// One sequence on its way through the stages. Rows i and keys j count within the sequence;
// seq.first_query and seq.first_key lead back to the tensors of the call.
template <class T>
struct state {
  static constexpr T minus_infinity = -std::numeric_limits<T>::infinity();

  problem call;
  sequence seq;
  T scale = 1;

  table<T> caller_q;    // [Hq, T, D] as the caller gave it
  table<T> q, k;        // [Hq, T, D], [Hkv, S, D]; stages of place inputs change them
  table<T> v;           // [Hkv, S, Dv]
  table<char> visible;  // [Hq, T, S]
  // [Hq, T, S]: natural-log logits, -inf where invisible; after softmax probabilities, 0 there.
  // The driver puts -inf or 0 back after every stage, so that stages may write anything there.
  table<T> entries;
  std::vector<T> sink;  // [Hq]: a logit in the denominator only; -inf: none
  table<T> out;         // [Hq, T, Dv]
  table<T> lse;         // [1, Hq, T]

  index kv_head(index h) const { return h / call.group(); }
  index position(index i) const { return i + seq.position; }
};

// What a stage that mixes entries reads: invisible entries and logits of -inf are 0.
template <class T>
T read_entry(const state<T>& s, index h, index i, index j) {
  const T x = s.entries(h, i, j);
  return s.visible(h, i, j) && x != state<T>::minus_infinity ? x : T(0);
}

// One element of a view whose axes of extent 1 repeat.
template <class T>
const T& broadcast(const tensor_view<const T, 4>& view, index b, index h, index i, index j) {
  const auto at = [&](int axis, index n) { return view.extent(axis) == 1 ? index(0) : n; };
  return view(at(0, b), at(1, h), at(2, i), at(3, j));
}

// <q_i, x>, x given by its components.
template <class T, class Component>
T dot_query(const table<T>& q, index h, index i, index size, const Component& x) {
  T sum = 0;
  for (index c = 0; c < size; ++c) sum += q(h, i, c) * static_cast<T>(x(c));
  return sum;
}

}  // namespace heed::inline HEED_ABI::reference
