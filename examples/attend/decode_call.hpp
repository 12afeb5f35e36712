// Decoding a case: the whole of it through a cache. Included only where lists of mechanisms are
// built.
#pragma once

#include "call.hpp"
#include "heed/cache.hpp"

namespace attend_program {

template <class T>
class decode_call : public attend_call<T> {
 public:
  decode_call(const case_folder& c, const settings& s) : attend_call<T>(c, s) {}

  // Tokens [0, first) in one go, then one by one.
  template <class... Mechanisms>
  void run(heed::index first, const Mechanisms&... mechanisms) {
    const heed::problem& p = this->problem_;
    heed::KvCache<T, Mechanisms...> cache({.sequences = p.B,
                                           .heads = p.Hq,
                                           .kv_heads = p.Hkv,
                                           .head_size = p.D,
                                           .value_size = p.Dv,
                                           .capacity = p.T},
                                          {.mask = this->mask_,
                                           .scale = p.scale,
                                           .executor = this->threads_,
                                           .workspace = &this->scratch_},
                                          mechanisms...);
    const auto take = [&](heed::index from, heed::index to) {
      const auto part = [&](const auto& view) { return view.slice(1, from, to); };
      cache.append({}, part(this->view(this->k_)), part(this->view(this->v_)),
                   heed::tokens_between(mechanisms, from, to)...);
      cache.attend({}, part(this->view(this->q_)), part(this->out()), part(this->options().lse));
    };
    this->forward_ = time_calls(this->settings_, [&] {
      cache.reset();
      take(0, first);
      for (heed::index t = first; t < p.T; ++t) take(t, t + 1);
    });
    this->forward_.flops = 2 * static_cast<double>(p.D + p.Dv) * this->pairs();
  }
};

template <class T, class... Mechanisms>
outcome decode_list(const case_folder& c, const settings& s, const Mechanisms&... mechanisms) {
  decode_call<T> call(c, s);
  call.run(*s.decode, mechanisms...);
  return call.take();
}

// decode_list() for one type and one list.
#define ATTEND_DECODE(T, ...) \
  template outcome decode_list<T>(const case_folder&, const settings& __VA_OPT__(, ) __VA_ARGS__);

}  // namespace attend_program
