#include <cmath>
#include <cstdio>
#include <heed/heed.hpp>
#include <string>
#include <vector>

int main() {
  const std::string version = std::to_string(HEED_VERSION_MAJOR) + "." +
                              std::to_string(HEED_VERSION_MINOR) + "." +
                              std::to_string(HEED_VERSION_PATCH);
  if (version != EXPECTED_VERSION) {
    std::printf("the headers say %s, the package %s\n", version.c_str(), EXPECTED_VERSION);
    return 1;
  }

  // Zero queries weigh all visible keys alike: row i is the mean of values 0..i.
  constexpr heed::index T = 100;
  const std::vector<float> zeros(T, 0.0f);
  std::vector<float> values(T), out(T);
  for (std::size_t t = 0; t < T; ++t) values[t] = static_cast<float>(t);
  const heed::shape<4> shape = {1, T, 1, 1};
  heed::thread_pool pool(2);  // threads come with the target
  heed::attend(heed::tensor_view<const float, 4>(zeros.data(), shape),
               heed::tensor_view<const float, 4>(zeros.data(), shape),
               heed::tensor_view<const float, 4>(values.data(), shape),
               heed::tensor_view<float, 4>(out.data(), shape),
               {.mask = heed::causal(), .executor = pool});
  for (std::size_t t = 0; t < T; ++t) {
    if (!(std::abs(out[t] - 0.5f * static_cast<float>(t)) <= 1e-4f)) {
      std::printf("row %zu is %g\n", t, static_cast<double>(out[t]));
      return 2;
    }
  }
  return 0;
}
