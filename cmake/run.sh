#!/bin/sh
# Everything from a bare clone to a result:
#   sh cmake/run.sh demo   builds for speed and runs the golden cases, with a table of errors and times
#   sh cmake/run.sh test   builds and runs every test
# What is missing is installed by apt on Debian and Ubuntu, and named on other systems.
set -eu
cd "$(dirname "$0")/.."

# has_header FILE: some usual or named include folder holds it.
has_header() {
  for prefix in $(echo "${CMAKE_PREFIX_PATH:-}" | tr ':;' '  ') /usr /usr/local /opt/homebrew; do
    for folder in include include/eigen3; do
      if [ -e "$prefix/$folder/$1" ]; then return 0; fi
    done
  done
  return 1
}
has_program() { command -v "$1" >/dev/null 2>&1; }

# need NAME PACKAGE TEST...: notes what is missing when TEST fails, by NAME and by Debian package.
missing=
packages=
need() {
  name=$1 package=$2
  shift 2
  "$@" && return
  missing="${missing:+$missing, }$name"
  packages="$packages $package"
}
has_compiler() { [ -n "${CXX:-}" ] || has_program c++; }
has_catch() { has_header catch2/catch.hpp || has_header catch2/catch_all.hpp; }

set_up() {
  need "a C++20 compiler" g++ has_compiler
  need "cmake 3.23 or newer" cmake has_program cmake
  need ninja ninja-build has_program ninja
  need "xsimd 8.1 or newer" libxsimd-dev has_header xsimd/xsimd.hpp
  need "Eigen 3.4 or newer" libeigen3-dev has_header Eigen/Core
  need nlohmann-json nlohmann-json3-dev has_header nlohmann/json.hpp
  if [ "$1" = test ]; then
    need Catch2 catch2 has_catch
  fi
  [ -n "$missing" ] || return 0

  root=
  [ "$(id -u)" = 0 ] || root=sudo
  if ! has_program apt-get || { [ -n "$root" ] && ! has_program sudo; }; then
    echo "heed: please install what is missing and run this again: $missing." >&2
    exit 1
  fi
  echo "heed: installing$packages"
  # shellcheck disable=SC2086
  $root env DEBIAN_FRONTEND=noninteractive sh -ec '
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends "$@" >/dev/null' apt $packages
}

jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# quiet LOG COMMAND...: runs COMMAND; shows what it wrote only when it fails.
quiet() {
  log=$1
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 && return
  cat "$log" >&2
  exit 1
}

demo() {
  set_up demo
  programs=heed-attend
  [ ! -e examples/layer.cpp ] || programs="$programs heed-layer"
  echo "heed: building $programs in build/release, which takes some minutes"
  quiet build/release/configure.log cmake --preset release -DHEED_BUILD_BENCH=OFF
  # shellcheck disable=SC2086
  quiet build/release/build.log cmake --build --preset release --target $programs
  status=0
  build/release/examples/heed-attend --all tests/golden || status=$?
  if [ -e examples/layer.cpp ]; then
    build/release/examples/heed-layer --all tests/golden_layers || status=$?
  fi
  return $status
}

tests() {
  set_up test
  set --
  # Where nobody watches, a warning is an error, and clang++ has its say too.
  if [ -n "${CI:-}" ]; then
    set -- -DHEED_WERROR=ON
    ! has_program clang++ || set -- "$@" -DHEED_CLANG_CHECK=ON
  fi
  cmake --preset dev "$@"
  cmake --build --preset dev
  ctest --preset dev -j "$jobs"
}

case "${1:-}" in
  demo) demo ;;
  test) tests ;;
  *)
    echo "usage: sh cmake/run.sh demo|test" >&2
    exit 2
    ;;
esac
