// Built twice, with MACHINE = avx2 and MACHINE = sse2 and the flags of each.
#include "heed/heed.hpp"

#define RUN_ON(machine) run_on_##machine
#define RUN(machine) RUN_ON(machine)

// values[i] *= 3 on two threads. Takes and returns no heed type: those differ between the two.
void RUN(MACHINE)(float* values, std::ptrdiff_t rows, std::ptrdiff_t columns) {
  const heed::tensor_view<float, 2> view(values, {rows, columns});
  const auto row_task = [&](heed::index row, heed::index) {
    for (heed::index column = 0; column < columns; ++column) view(row, column) *= 3.0f;
  };
  heed::thread_pool pool(2);
  pool.parallel_for(rows, row_task);
}
