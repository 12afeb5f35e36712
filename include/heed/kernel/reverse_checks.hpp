// Where gradients go, and the checks of those places.
#pragma once

#include <string>
#include <vector>

#include "heed/checks.hpp"
#include "heed/kernel/reverse.hpp"

namespace heed::inline HEED_ABI {

// Where the gradients of a call's tensors go, each optional: a view without data is not computed
// and costs nothing. Those of the mechanisms' own tensors are listed with them: with_grad.
template <class T>
struct gradients {
  tensor_view<T, 4> q = {};  // [B, T, Hq, D]
  tensor_view<T, 4> k = {};  // [B, S, Hkv, D]
  tensor_view<T, 4> v = {};  // [B, S, Hkv, Dv]
  tensor_view<const T, 3> lse =
      {};                   // [B, T, Hq], an input: the gradient of the log-sum-exp, if any
  bool accumulate = false;  // add to what all the gradients hold, instead of overwriting it
};

namespace kernel {

template <class T>
struct grad_inputs {
  tensor_view<const T, 4> out, dout;
  tensor_view<const T, 3> lse;
};

template <class T, int Rank>
void set_zero(const tensor_view<T, Rank>& view, index offset = 0, int axis = 0) {
  if (view.empty()) return;
  const index count = view.extent(axis), step = view.stride(axis);
  if (axis == Rank - 1) {
    for (index i = 0; i < count; ++i) view.data()[offset + i * step] = T(0);
    return;
  }
  for (index i = 0; i < count; ++i) set_zero(view, offset + i * step, axis + 1);
}

// The views that a call reads and writes, checked.
template <class T>
class grad_checks {
 public:
  grad_checks(const call_inputs<T>& in, const grad_inputs<T>& given, const gradients<T>& g)
      : reads_{{"q", in.q},
               {"k", in.k},
               {"v", in.v},
               {"out", given.out},
               {"lse", given.lse},
               {"dout", given.dout},
               {"gradients.lse", g.lse}} {}

  template <class View, class Like>
  void add(const std::string& name, const View& view, const Like& like) {
    if (view.data() == nullptr && view.empty()) return;
    add(name, footprint(view), footprint(like));
  }
  // Throws shape_error where a gradient shares elements with another or with what is read.
  void finish() const {
    for (std::size_t n = 0; n < writes_.size(); ++n) {
      for (const named_view& read : reads_) refuse_overlap(n, read.memory, read.name);
      for (std::size_t m = 0; m < n; ++m) refuse_overlap(n, writes_[m], names_[m].c_str());
    }
  }

 private:
  void add(const std::string& name, const footprint& view, const footprint& like) {
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
      if (view.extents[axis] != like.extents[axis]) {
        throw shape_error("heed: attend_grad: " + name + ": axis " + std::to_string(axis) + " is " +
                          std::to_string(view.extents[axis]) + ", expected " +
                          std::to_string(like.extents[axis]));
      }
    }
    check_output("attend_grad", {name.c_str(), view}, {});
    reads_.push_back({"", like});
    names_.push_back(name);
    writes_.push_back(view);
  }
  void refuse_overlap(std::size_t n, const footprint& other, const char* name) const {
    if (writes_[n].empty || other.empty || !views_overlap(writes_[n], other)) return;
    throw shape_error("heed: attend_grad: " + names_[n] + " shares elements with " +
                      (*name == '\0' ? "a mechanism's tensor" : name) +
                      "; an output needs memory of its own");
  }
  std::vector<named_view> reads_;
  std::vector<std::string> names_;
  std::vector<footprint> writes_;
};

// f(name, gradient view, tensor) for every gradient that the list could have.
template <class Stage, class F>
void each_gradient(const Stage& stage, const F& f) {
  if constexpr (has_hook<Stage>(hook::gradients)) {
    if (is_active(stage)) stage.gradients(destination_of(stage), f);
  }
}

}  // namespace kernel

}  // namespace heed::inline HEED_ABI
