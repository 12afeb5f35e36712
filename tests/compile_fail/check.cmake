# FILE must not compile, and the compiler must say why. Its comments "// expect: REGEX" and
# "// flags: FLAG..." name the message and further flags.
cmake_minimum_required(VERSION 3.23)
include(${COMPILER})
file(STRINGS ${FILE} expect REGEX "^// expect: " LIMIT_COUNT 1)
string(REGEX REPLACE "^// expect: " "" expect "${expect}")
if(expect STREQUAL "")
  message(FATAL_ERROR "${FILE} has no line '// expect: REGEX'")
endif()
file(STRINGS ${FILE} flags REGEX "^// flags: " LIMIT_COUNT 1)
string(REGEX REPLACE "^// flags: " "" flags "${flags}")
separate_arguments(flags UNIX_COMMAND "${flags}")

execute_process(
  COMMAND ${compiler} -std=c++20 -fsyntax-only ${includes} ${flags} ${FILE}
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output
  RESULT_VARIABLE status)
if(status EQUAL 0)
  message(FATAL_ERROR "${FILE} compiles")
endif()
# The compiler quotes the source, whose own comment would match.
string(REPLACE "// expect: ${expect}" "" output "${output}")
if(NOT output MATCHES "${expect}")
  message(FATAL_ERROR "${FILE} fails to compile, but not with '${expect}':\n${output}")
endif()
