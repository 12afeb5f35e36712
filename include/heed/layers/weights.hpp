// A layer's parameters from safetensors files and into them, under the names of published code or
// heed's own.
//
//   layers::load(layer, "model.safetensors", layers::path_attention_names, "layers.3.attn.");
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "heed/io/safetensors.hpp"
#include "heed/io/safetensors_write.hpp"
#include "heed/layers/names.hpp"
#include "heed/layers/parameter.hpp"

namespace heed::inline HEED_ABI::layers {

// The official name of each parameter of a list, behind `prefix`.
template <class T>
std::vector<std::string> official_names(const std::vector<parameter_view<T>>& list,
                                        std::span<const parameter_name> table,
                                        std::string_view prefix = {}) {
  std::vector<std::string> own, official;
  for (const auto& p : list) own.push_back(p.name);
  for (const std::string& name : own) {
    official.push_back(std::string(prefix) + official_name(table, name, own));
  }
  return official;
}

// Fills parameters from the tensors of a file whose names begin with `prefix`; each must be there
// with the parameter's shape, and no other.
//
// Throws io::safetensors_error that names the tensor which is missing, has another shape or
// belongs to no parameter, or what is wrong with the file; no parameter has changed then.
template <class T>
void load(const std::vector<parameter_view<T>>& list, const io::safetensors& file,
          std::span<const parameter_name> table = {}, std::string_view prefix = {}) {
  const std::vector<std::string> names = official_names(list, table, prefix);
  const auto fail = [&](std::string_view tensor, const std::string& problem) {
    throw io::safetensors_error(file.name() + ": tensor '" + io::printable(tensor) + "' " +
                                problem);
  };
  for (std::size_t n = 0; n < names.size(); ++n) {
    const io::safetensors_entry* entry = file.find(names[n]);
    if (entry == nullptr) fail(names[n], "is missing");
    if (!std::ranges::equal(entry->extents, list[n].shape)) {
      fail(names[n], "has shape " + io::safetensors_detail::shape_text(entry->extents) +
                         ", expected " + io::safetensors_detail::shape_text(list[n].shape));
    }
    if (entry->dtype > io::safetensors_dtype::f64) {
      fail(names[n], "holds " + std::string(io::dtype_name(entry->dtype)) +
                         ", expected F16, BF16, F32 or F64");
    }
  }
  for (const io::safetensors_entry& entry : file.tensors()) {
    if (entry.name.starts_with(prefix) && std::ranges::find(names, entry.name) == names.end()) {
      fail(entry.name, "belongs to no parameter of the layer");
    }
  }
  for (std::size_t n = 0; n < names.size(); ++n) file.read<T>(names[n], list[n].value);
}
template <class Layer>
void load(Layer& layer, const std::filesystem::path& path,
          std::span<const parameter_name> table = {}, std::string_view prefix = {}) {
  load(layer.parameters(), io::safetensors::open(path), table, prefix);
}

// Writes all parameters, in their order. Throws io::safetensors_error where that fails; path then
// holds what it held before.
template <class T>
void save(const std::vector<parameter_view<T>>& list, const std::filesystem::path& path,
          std::span<const parameter_name> table = {}, std::string_view prefix = {}) {
  const std::vector<std::string> names = official_names(list, table, prefix);
  std::vector<io::safetensors_tensor> tensors;
  for (std::size_t n = 0; n < names.size(); ++n) {
    tensors.push_back({names[n],
                       {list[n].shape.begin(), list[n].shape.end()},
                       std::span<const T>(list[n].value)});
  }
  io::write_safetensors(path, tensors);
}
template <class Layer>
void save(Layer& layer, const std::filesystem::path& path,
          std::span<const parameter_name> table = {}, std::string_view prefix = {}) {
  save(layer.parameters(), path, table, prefix);
}
// The gradients of learned parameters that have been made room for (zero_gradients, backward).
template <class T>
void save_gradients(const std::vector<parameter_view<T>>& list, const std::filesystem::path& path,
                    std::span<const parameter_name> table = {}, std::string_view prefix = {}) {
  const std::vector<std::string> names = official_names(list, table, prefix);
  std::vector<io::safetensors_tensor> tensors;
  for (std::size_t n = 0; n < names.size(); ++n) {
    if (list[n].gradient.empty()) continue;
    tensors.push_back({names[n],
                       {list[n].shape.begin(), list[n].shape.end()},
                       std::span<const T>(list[n].gradient)});
  }
  io::write_safetensors(path, tensors);
}

}  // namespace heed::inline HEED_ABI::layers
