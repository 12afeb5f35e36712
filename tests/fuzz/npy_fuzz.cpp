// libFuzzer's entry: any bytes as a .npy file.
#include <cstddef>
#include <cstdint>

#include "fuzz/npy_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heed_test::fuzz_npy(std::as_bytes(std::span(data, size)));
  return 0;
}
