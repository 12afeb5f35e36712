// libFuzzer's entry: any bytes as a .safetensors file.
#include <cstddef>
#include <cstdint>

#include "fuzz/safetensors_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  heed_test::fuzz_safetensors(std::as_bytes(std::span(data, size)));
  return 0;
}
