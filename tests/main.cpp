// The entry point that the test programs share; compiled once, since it holds all of Catch2.
#define CATCH_CONFIG_RUNNER
#include "catch.hpp"

int main(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
