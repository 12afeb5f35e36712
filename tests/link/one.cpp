// Everything is included and used here and in two.cpp; the linker must find one definition of each.
#include <vector>

#include "heed/heed.hpp"

// Defined in two.cpp. Takes heed types: both files are built for one instruction set.
void attend_in_two(const heed::tensor_view<const float, 4>& qkv,
                   const heed::tensor_view<float, 4>& out);

int main() {
  const std::vector<float> qkv = {1, 2, 3, 4, 5, 6};
  std::vector<float> here(6, -1.0f), there(6, -2.0f);
  const heed::tensor_view<const float, 4> view(qkv.data(), {1, 3, 1, 2});
  heed::attend(view, view, view, heed::tensor_view<float, 4>(here.data(), {1, 3, 1, 2}),
               {.mask = heed::causal()});
  attend_in_two(view, heed::tensor_view<float, 4>(there.data(), {1, 3, 1, 2}));
  return here == there ? 0 : 1;
}
