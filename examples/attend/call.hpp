// The call itself, in one element type with one list of mechanisms. Included only where a kind of
// case is built, so that each kind compiles on its own.
#pragma once

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "decode.hpp"
#include "heed/attend_grad.hpp"
#include "heed/parallel.hpp"
#include "run.hpp"

namespace attend_program {

// The product of extents. An extent of 0 elsewhere in the case lets a file claim any other extent,
// so what is allocated for is checked. Throws case_error.
inline std::size_t elements(const case_folder& c, std::initializer_list<heed::index> extents) {
  heed::index count = 1;
  for (const heed::index e : extents) {
    if (e > 1 && count > std::numeric_limits<heed::index>::max() / 16 / e) {
      throw case_error((c.folder() / "case.txt").string() + ": the output is too large to hold");
    }
    count *= e;
  }
  return static_cast<std::size_t>(count);
}

// What stands in memory for results: an element that nobody writes is a NaN in the result.
template <class T>
inline constexpr T unwritten = std::numeric_limits<T>::quiet_NaN();

// f(T{}) with the element type of the settings.
template <class F>
outcome for_type(heed::io::dtype type, F f) {
  return type == heed::io::dtype::f64 ? f(double{}) : f(float{});
}

// Where the gradients of a case's tensors go. Without settings::grad there are no gradients and the
// views have no data.
template <class T>
class gradient_places {
 public:
  explicit gradient_places(const settings& s) : wanted_(s.grad) {}

  // For with_grad: the gradient of a tensor of the mechanism, to be d_NAME.npy.
  template <int Rank>
  heed::tensor_view<T, Rank> of(const std::string& name, const heed::io::npy_array& tensor) {
    if (!wanted_) return {};
    places_.push_back({name, tensor.extents(), {}});
    std::vector<T>& values = places_.back().values;
    values.resize(static_cast<std::size_t>(tensor.size()), unwritten<T>);
    return {std::span<T>(values), tensor.template view<T, Rank>().extents()};
  }
  std::vector<gradient> take() {
    std::vector<gradient> all;
    for (place& p : places_) {
      all.push_back(
          {p.name, {"d_" + p.name + ".npy", std::move(p.extents), std::move(p.values)}, {}});
    }
    places_.clear();
    return all;
  }

 private:
  struct place {
    std::string name;
    std::vector<heed::index> extents;
    std::vector<T> values;
  };
  bool wanted_;
  std::vector<place> places_;
};

// Calls once() for a while: small cases are over before a clock says much.
template <class F>
timing time_calls(const settings& s, const F& once) {
  std::vector<double> seconds;
  double total = 0;
  do {
    const auto start = std::chrono::steady_clock::now();
    once();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    total += seconds.back();
  } while (s.timed && total < 0.02 && seconds.size() < 200);
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return {*middle, static_cast<int>(seconds.size())};
}

// A case in one element type: reads q, k and v, and with settings::grad dout, and refuses what the
// case asks for beyond what was read by now.
template <class T>
class attend_call {
 public:
  attend_call(const case_folder& c, const settings& s)
      : settings_(s),
        problem_(c.problem()),
        q_(c.tensor<T>("q", {problem_.B, problem_.T, problem_.Hq, problem_.D})),
        k_(c.tensor<T>("k", {problem_.B, problem_.S, problem_.Hkv, problem_.D})),
        v_(c.tensor<T>("v", {problem_.B, problem_.S, problem_.Hkv, problem_.Dv})),
        mask_(c.mask()),
        threads_(s.threads) {
    const std::vector<heed::index> rows = {problem_.B, problem_.T, problem_.Hq, problem_.Dv};
    if (s.grad) dout_ = c.tensor<T>("dout", rows);
    c.check_all_read();
    out_.resize(elements(c, {problem_.B, problem_.T, problem_.Hq, problem_.Dv}), unwritten<T>);
    lse_.resize(elements(c, {problem_.B, problem_.T, problem_.Hq}), unwritten<T>);
  }

  template <class... Mechanisms>
  void forward(const Mechanisms&... mechanisms) {
    forward_ = time_calls(settings_, [&] {
      heed::attend(view(q_), view(k_), view(v_), out(), options(), mechanisms...);
    });
    forward_.flops = 2 * static_cast<double>(problem_.D + problem_.Dv) * pairs();
  }
  // Behind forward. The gradients of q, k and v.
  template <class... Mechanisms>
  std::vector<gradient> backward(const Mechanisms&... mechanisms) {
    gradient_places<T> places(settings_);
    heed::gradients<T> to;
    to.q = places.template of<4>("q", q_);
    to.k = places.template of<4>("k", k_);
    to.v = places.template of<4>("v", v_);
    backward_ = time_calls(settings_, [&] {
      heed::attend_grad(view(q_), view(k_), view(v_), out(), options().lse, view(dout_), to,
                        options(), mechanisms...);
    });
    backward_.flops = static_cast<double>(6 * problem_.D + 4 * problem_.Dv) * pairs();
    return places.take();
  }
  outcome take() {
    const heed::problem& p = problem_;
    outcome o;
    o.problem = p;
    o.out = heed::io::npy_array("out.npy", {p.B, p.T, p.Hq, p.Dv}, std::move(out_));
    o.lse = heed::io::npy_array("lse.npy", {p.B, p.T, p.Hq}, std::move(lse_));
    o.forward = forward_;
    o.backward = backward_;
    return o;
  }

 protected:
  static heed::tensor_view<const T, 4> view(const heed::io::npy_array& array) {
    return array.template view<T, 4>();
  }
  heed::tensor_view<T, 4> out() {
    return {std::span<T>(out_), {problem_.B, problem_.T, problem_.Hq, problem_.Dv}};
  }
  heed::attend_options<T> options() {
    return {.mask = mask_,
            .scale = problem_.scale,
            .lse = {std::span<T>(lse_), {problem_.B, problem_.T, problem_.Hq}},
            .executor = threads_,
            .workspace = &scratch_,
            .tuning = settings_.tuning};
  }
  double pairs() const { return visible_pairs(problem_, mask_); }

  const settings& settings_;
  heed::problem problem_;
  heed::io::npy_array q_, k_, v_, dout_;
  heed::mask mask_;
  heed::thread_pool threads_;
  heed::workspace scratch_;
  std::vector<T> out_, lse_;
  timing forward_, backward_;
};

// Attends, and with settings::grad differentiates; `places` is what the mechanisms' with_grad were
// given.
template <class T, class... Mechanisms>
outcome attend(const case_folder& c, const settings& s, gradient_places<T>& places,
               const Mechanisms&... mechanisms) {
  if (s.decode) {
#ifdef ATTEND_WITHOUT_DECODE
    throw not_built("decoding is not built in");
#else
    return decode<T>(c, s, heed::without_grad(mechanisms)...);
#endif
  }
  attend_call<T> call(c, s);
  call.forward(mechanisms...);
  std::vector<gradient> gradients;
  if (s.grad) gradients = call.backward(mechanisms...);
  for (gradient& g : places.take()) gradients.push_back(std::move(g));
  outcome o = call.take();
  o.gradients = std::move(gradients);
  return o;
}

// The same for mechanisms that have no tensors of their own.
template <class T, class... Mechanisms>
outcome attend(const case_folder& c, const settings& s, const Mechanisms&... mechanisms) {
  gradient_places<T> places(s);
  return attend<T>(c, s, places, mechanisms...);
}

}  // namespace attend_program
