// Calls the code of both instruction sets; the AVX2 one where the processor has it.
#include <cstddef>
#include <vector>

void run_on_avx2(float* values, std::ptrdiff_t rows, std::ptrdiff_t columns);
void run_on_sse2(float* values, std::ptrdiff_t rows, std::ptrdiff_t columns);

int main() {
  std::vector<float> values(7 * 33, 1.0f);
  float expected = 3.0f;
  run_on_sse2(values.data(), 7, 33);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    run_on_avx2(values.data(), 7, 33);
    expected = 9.0f;
  }
  for (const float value : values) {
    if (value != expected) return 1;
  }
  return 0;
}
