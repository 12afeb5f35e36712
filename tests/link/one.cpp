// Everything is included here and in two.cpp; the linker must find one definition of each.
#include "heed/heed.hpp"

heed::index seen_in_two(const heed::mask& mask);

int main() {
  const heed::index lengths[] = {5, 7};
  const heed::mask mask = heed::causal().window(3, 0).key_lengths(lengths);
  return seen_in_two(mask) == mask.key_length[1] ? 0 : 1;
}
