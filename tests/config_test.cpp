#include "heed/config.hpp"

#include <type_traits>

#include "catch.hpp"

TEST_CASE("index is signed and 64 bits wide") {
  STATIC_REQUIRE(std::is_signed_v<heed::index>);
  STATIC_REQUIRE(sizeof(heed::index) == 8);
}

TEST_CASE("the ABI namespace names the version") {
#define HEED_TEXT_OF(name) #name
#define HEED_TEXT(name) HEED_TEXT_OF(name)
  const std::string expected =
      "v" + std::to_string(HEED_VERSION_MAJOR) + "_" + std::to_string(HEED_VERSION_MINOR) + "_";
  REQUIRE(std::string(HEED_TEXT(HEED_ABI)).rfind(expected, 0) == 0);
}

TEST_CASE("a shape_error is an invalid_argument with its text") {
  try {
    throw heed::shape_error("k: axis 3");
  } catch (const std::invalid_argument& error) {
    REQUIRE(std::string(error.what()) == "k: axis 3");
  }
}
