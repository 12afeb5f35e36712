#include "run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "heed/layers/weights.hpp"

namespace layer_program {
namespace {

namespace fs = std::filesystem;

template <class T>
struct kind {
  const char* name;
  layer_ptr<T> (*make)(const case_folder&);
};
template <class T>
constexpr kind<T> kinds[] = {{"path", make_path<T>},
                             {"fox", make_fox<T>},
                             {"foxpro", make_foxpro<T>},
                             {"cope", make_cope<T>},
                             {"mta", make_mta<T>}};

// NAME_f32 in float and NAME in double, or whichever of the two there is.
template <class T>
fs::path stored(const case_folder& c, const std::string& name, const std::string& extension) {
  const fs::path single = c.folder() / (name + "_f32" + extension);
  const fs::path wide = c.folder() / (name + extension);
  const bool prefer_single = sizeof(T) == sizeof(float);
  return prefer_single == fs::exists(prefer_single ? single : wide) ? single : wide;
}

template <class T>
heed::io::npy_array read_tokens(const case_folder& c, const std::string& name,
                                const layer_shape& s) {
  const fs::path path = stored<T>(c, name, ".npy");
  heed::io::npy_array array = heed::io::read_npy(path);
  const std::vector<heed::index> expected = {s.B, s.T, s.model_dim};
  if (array.extents() != expected) {
    throw case_error(path.string() + ": shape is " + heed::io::shape_text(array.extents()) +
                     ", expected " + heed::io::shape_text(expected));
  }
  return array.as<T>();
}

layer_shape shape_of(const case_folder& c) {
  layer_shape s{c.extent("B"),       c.extent("T"),          c.extent("model_dim"),
                c.extent("n_heads"), c.extent("n_kv_heads"), c.extent("head_dim")};
  static_cast<void>(c.has("scale"));  // 1 / sqrt(head_dim), as the layers have it
  const heed::index most = std::numeric_limits<heed::index>::max() / 16;
  if (s.B > 0 && s.T > 0 && s.model_dim > most / s.B / s.T) {
    throw case_error((c.folder() / "case.txt").string() + ": x is too large to hold");
  }
  return s;
}

double largest(std::span<const double> values) {
  double most = 0;
  for (const double x : values) most = std::max(most, std::abs(x));
  return most;
}

template <class T>
difference compare(std::span<const T> found, std::span<const double> expected, double unit) {
  double worst = 0;
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const double error = std::abs(static_cast<double>(found[n]) - expected[n]);
    if (!(error <= worst)) worst = error;
    if (std::isnan(error)) return {error, error};
  }
  return {worst, worst == 0 ? 0 : worst / unit};
}

template <class F>
double timed(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One case in one type.
template <class T>
class run_type {
 public:
  run_type(const case_folder& c, const settings& s)
      : case_(c), settings_(s), shape_(shape_of(c)), layer_(load_layer<T>(c)) {
    check_prefill();
    x_ = read_tokens<T>(c, "x", shape_);
    if (s.grad) dy_ = read_tokens<T>(c, "dy", shape_);
    c.check_all_read();
    y_.resize(static_cast<std::size_t>(x_.size()));
    const std::optional<heed::io::npy_array> y =
        c.expected("y", {shape_.B, shape_.T, shape_.model_dim});
    if (y) expected_ = *y;
  }

  outcome run() {
    const bool single = sizeof(T) == sizeof(float);
    outcome o;
    o.shape = shape_;
    o.tolerance = settings_.tolerance.value_or(single ? 5e-6 : 1e-12);
    o.gradient_tolerance = settings_.tolerance.value_or(single ? 5e-5 : 1e-10);
    forward(o);
    if (settings_.grad) backward(o);
    if (settings_.prefill) decode(o, *settings_.prefill);
    o.y = {"y.npy", {shape_.B, shape_.T, shape_.model_dim}, std::move(y_)};
    return o;
  }

 private:
  using input = heed::tensor_view<const T, 3>;
  using output = heed::tensor_view<T, 3>;

  void check_prefill() const {
    if (!settings_.prefill) return;
    if (*settings_.prefill >= 1 && *settings_.prefill < std::max<heed::index>(2, shape_.T)) return;
    throw case_error(case_.folder().string() + ": --decode " + std::to_string(*settings_.prefill) +
                     ": expected 1 to T - 1 = " + std::to_string(shape_.T - 1));
  }
  input x() const { return x_.template view<T, 3>(); }
  output over(std::vector<T>& values) const {
    return {std::span<T>(values), {shape_.B, shape_.T, shape_.model_dim}};
  }
  std::optional<difference> error_of_y() const {
    if (!expected_) return std::nullopt;
    const auto expected = expected_->template values<double>();
    return compare<T>(y_, expected, largest(expected));
  }

  void forward(outcome& o) {
    layer_->forward(x(), over(y_));
    o.forward_seconds = timed(
        [&] { settings_.grad ? layer_->forward(x(), over(y_)) : layer_->infer(x(), over(y_)); });
    o.error = error_of_y();
  }
  void backward(outcome& o) {
    std::vector<T> dx(y_.size());
    layer_->zero_gradients();
    o.backward_seconds = timed([&] { layer_->backward(x(), dy_.template view<T, 3>(), over(dx)); });
    const auto list = layer_->parameters();
    const auto names = heed::layers::official_names(list, layer_->names());
    for (std::size_t n = 0; n < list.size(); ++n) {
      if (!list[n].learned) continue;
      o.parameter_gradients.push_back(
          {names[n],
           {list[n].shape.begin(), list[n].shape.end()},
           std::vector<T>(list[n].gradient.begin(), list[n].gradient.end())});
    }
    o.d_x = {"d_x.npy", {shape_.B, shape_.T, shape_.model_dim}, std::move(dx)};
    compare_gradients(o);
  }
  void compare_gradients(outcome& o) const {
    const auto d_x = case_.expected("d_x", o.d_x.extents());
    const fs::path path = case_.folder() / "grads.safetensors";
    std::optional<heed::io::safetensors> file;
    if (fs::exists(path)) file = heed::io::safetensors::open(path);
    double unit = d_x ? largest(d_x->template values<double>()) : 0;
    std::vector<std::vector<double>> expected;
    for (const outcome::tensor& g : o.parameter_gradients) {
      if (!file) continue;
      if (!std::ranges::equal(file->at(g.name).extents, g.shape)) {
        throw case_error(path.string() + ": tensor '" + g.name + "' has another shape");
      }
      expected.push_back(file->read<double>(g.name));
      unit = std::max(unit, largest(expected.back()));
    }
    o.gradients.push_back({"x", std::nullopt});
    if (d_x) {
      o.gradients[0].error = compare<T>(o.d_x.values<T>(), d_x->template values<double>(), unit);
    }
    for (std::size_t n = 0; n < o.parameter_gradients.size(); ++n) {
      const auto& values = std::get<std::vector<T>>(o.parameter_gradients[n].values);
      o.gradients.push_back({o.parameter_gradients[n].name, std::nullopt});
      if (file) o.gradients.back().error = compare<T>(std::span(values), expected[n], unit);
    }
  }
  // y from a prefill, then single tokens.
  void decode(outcome& o, heed::index prefill) {
    std::fill(y_.begin(), y_.end(), std::numeric_limits<T>::quiet_NaN());
    const auto tokens = [&](heed::index from, heed::index to) {
      layer_->decode(x().slice(1, from, to), over(y_).slice(1, from, to));
    };
    layer_->start(shape_.B);
    tokens(0, std::min(prefill, shape_.T));
    o.decode_seconds = timed([&] {
      for (heed::index t = prefill; t < shape_.T; ++t) tokens(t, t + 1);
    });
    o.decode_error = error_of_y();
  }

  const case_folder& case_;
  const settings& settings_;
  layer_shape shape_;
  layer_ptr<T> layer_;
  heed::io::npy_array x_, dy_;
  std::vector<T> y_;
  std::optional<heed::io::npy_array> expected_;
};

}  // namespace

template <class T>
layer_ptr<T> load_layer(const case_folder& c) {
  const std::string name = c.text("layer");
  for (const kind<T>& k : kinds<T>) {
    if (k.name != name) continue;
    layer_ptr<T> layer = k.make(c);
    heed::layers::load(layer->parameters(),
                       heed::io::safetensors::open(stored<T>(c, "params", ".safetensors")),
                       layer->names());
    return layer;
  }
  throw not_built("layer " + name + " is not built");
}
template layer_ptr<float> load_layer<float>(const case_folder&);
template layer_ptr<double> load_layer<double>(const case_folder&);

void write_gradients(const std::filesystem::path& path, const outcome& o) {
  std::vector<heed::io::safetensors_tensor> tensors;
  for (const outcome::tensor& g : o.parameter_gradients) {
    heed::io::safetensors_tensor t{g.name, g.shape, {}};
    std::visit([&](const auto& v) { t.elements = std::span(v); }, g.values);
    tensors.push_back(std::move(t));
  }
  heed::io::write_safetensors(path, tensors);
}

outcome run_case(const case_folder& c, const settings& s) {
  return s.type == heed::io::dtype::f32 ? run_type<float>(c, s).run()
                                        : run_type<double>(c, s).run();
}

}  // namespace layer_program
