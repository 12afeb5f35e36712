// Built twice, with MACHINE = avx2 and MACHINE = sse2 and the flags of each.
#include "heed/heed.hpp"

#define ATTEND_ON(machine) attend_on_##machine
#define ATTEND(machine) ATTEND_ON(machine)

// Causal attention of one head, all tensors [T, D]. No heed type is passed: those differ between
// the two objects.
void ATTEND(MACHINE)(const float* q, const float* k, const float* v, float* out, std::ptrdiff_t T,
                     std::ptrdiff_t D) {
  const heed::shape<4> shape = {1, T, 1, D};
  const auto input = [&](const float* data) {
    return heed::tensor_view<const float, 4>(data, shape);
  };
  heed::thread_pool pool(2);
  heed::attend(input(q), input(k), input(v), heed::tensor_view<float, 4>(out, shape),
               {.mask = heed::causal(), .executor = pool});
}
