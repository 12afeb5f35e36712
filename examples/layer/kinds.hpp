// The kinds of layers: each builds one from the arguments that case.txt holds for the published
// class. They throw case_error or heed::shape_error for arguments that make no layer.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "any_layer.hpp"
#include "common/case.hpp"

namespace heed::inline HEED_ABI::layers {
struct path_attention_options;
struct forgetting_attention_options;
struct forgetting_attention_layer_options;
struct cope_attention_options;
struct mta_attention_options;
}  // namespace heed::inline HEED_ABI::layers

namespace layer_program {

using cases::case_error;
using cases::case_folder;

template <class T>
using layer_ptr = std::unique_ptr<any_layer<T>>;

template <class T>
layer_ptr<T> make_path(const case_folder& c);
template <class T>
layer_ptr<T> make_fox(const case_folder& c);
template <class T>
layer_ptr<T> make_foxpro(const case_folder& c);
template <class T>
layer_ptr<T> make_cope(const case_folder& c);
template <class T>
layer_ptr<T> make_mta(const case_folder& c);

// The same from options of heed's.
template <class T>
layer_ptr<T> make_layer(const heed::layers::path_attention_options& o);
template <class T>
layer_ptr<T> make_layer(const heed::layers::forgetting_attention_options& o);
template <class T>
layer_ptr<T> make_layer(const heed::layers::forgetting_attention_layer_options& o);
template <class T>
layer_ptr<T> make_layer(const heed::layers::cope_attention_options& o);
template <class T>
layer_ptr<T> make_layer(const heed::layers::mta_attention_options& o);

// Arguments that say nothing about what the layer computes.
inline void skip(const case_folder& c, std::initializer_list<const char*> keys) {
  for (const char* key : keys) static_cast<void>(c.has(key));
}
// Arguments whose effect this program does not have: they must be off.
inline void must_be_off(const case_folder& c, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!c.has(key) || c.text(key) == "0" || c.text(key) == "0.0") continue;
    throw case_error((c.folder() / "case.txt").string() + ": " + key + "=" + c.text(key) +
                     " is not something that the layer can do");
  }
}
inline heed::index integer_or(const case_folder& c, const char* key, heed::index absent) {
  return c.has(key) ? c.extent(key) : absent;
}
inline double real_or(const case_folder& c, const char* key, double absent) {
  return c.has(key) ? c.real(key) : absent;
}

}  // namespace layer_program
