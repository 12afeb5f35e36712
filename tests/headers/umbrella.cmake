# heed.hpp needs xsimd and the standard library, and includes none of heed's optional headers.
cmake_minimum_required(VERSION 3.23)
include(${COMPILER})
execute_process(
  COMMAND ${compiler} -std=c++20 ${includes} -M ${HEADER}
  OUTPUT_VARIABLE files
  ERROR_VARIABLE errors
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "cannot list what heed.hpp includes:\n${errors}")
endif()
if(NOT files MATCHES "include/heed/config.hpp")
  message(FATAL_ERROR "this is not the list of what heed.hpp includes:\n${files}")
endif()
string(REGEX MATCHALL "[^ ]*(Eigen/|nlohmann/|heed/(eigen|multi_head)\\.hpp|heed/(layers|io)/)[^ \n]*"
                      extra "${files}")
if(extra)
  list(JOIN extra "\n  " extra)
  message(FATAL_ERROR "heed.hpp includes what it must not:\n  ${extra}")
endif()
