# What compilers and linkers make of the headers.

# Which of xsimd and Eigen a header includes, through whatever headers of heed.
function(heed_foreign header result)
  get_property(found GLOBAL PROPERTY heed_foreign_${header})
  if(NOT found)
    set(found heed)
    set_property(GLOBAL PROPERTY heed_foreign_${header} ${found})  # some include each other
    file(STRINGS ${PROJECT_SOURCE_DIR}/include/${header} lines REGEX "^#include ")
    foreach(line IN LISTS lines)
      if(line MATCHES "<(xsimd|Eigen)/")
        list(APPEND found ${CMAKE_MATCH_1})
      elseif(line MATCHES "\"(heed/.+)\"")
        heed_foreign(${CMAKE_MATCH_1} more)
        list(APPEND found ${more})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
    set_property(GLOBAL PROPERTY heed_foreign_${header} ${found})
  endif()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Each header alone, as the first thing that a translation unit includes, and once more. xsimd and
# Eigen take longer to parse than most of heed: those that include them share that. It hides nothing:
# what a header holds itself comes after all that it includes.
set(header_units)
set(xsimd_units)
set(xsimd_Eigen_units)
foreach(header IN LISTS headers)
  cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/include OUTPUT_VARIABLE name)
  cmake_path(REPLACE_EXTENSION name .cpp OUTPUT_VARIABLE unit)
  cmake_path(ABSOLUTE_PATH unit BASE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/headers)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${name}\"\n#include \"${name}\"\n")
  heed_foreign(${name} foreign)
  if(NOT xsimd IN_LIST foreign)
    list(APPEND header_units ${unit})
  elseif(Eigen IN_LIST foreign)
    list(APPEND xsimd_Eigen_units ${unit})
  else()
    list(APPEND xsimd_units ${unit})
  endif()
endforeach()

# All headers together after windows.h, which without NOMINMAX leaves macros min and max behind it.
# The headers of others come before that: libstdc++ would remove the macros, xsimd cannot bear them.
set(foreign)
set(own)
foreach(header IN LISTS headers)
  file(STRINGS ${header} lines REGEX "^#include <")
  list(APPEND foreign ${lines})
  cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/include)
  list(APPEND own "#include \"${header}\"")
endforeach()
list(REMOVE_DUPLICATES foreign)
list(FILTER foreign EXCLUDE REGEX "omp\\.h")
list(JOIN foreign "\n" foreign)
list(JOIN own "\n" own)
file(
  CONFIGURE
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/headers/after_windows.cpp
  CONTENT
    "@foreign@
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
@own@
#if !defined(min) || !defined(max)
#error \"the macros are gone, so this file shows nothing\"
#endif
"
  @ONLY)
list(APPEND header_units ${CMAKE_CURRENT_BINARY_DIR}/headers/after_windows.cpp)

add_library(heed_headers_alone OBJECT ${header_units})
add_library(heed_headers_xsimd OBJECT ${xsimd_units})
add_library(heed_headers_xsimd_Eigen OBJECT ${xsimd_Eigen_units})
target_precompile_headers(heed_headers_xsimd PRIVATE <xsimd/xsimd.hpp>)
target_precompile_headers(heed_headers_xsimd_Eigen PRIVATE <xsimd/xsimd.hpp> <Eigen/Core>)
foreach(library IN ITEMS heed_headers_alone heed_headers_xsimd heed_headers_xsimd_Eigen)
  heed_program_options(${library})
  target_compile_options(${library} PRIVATE -O0)
endforeach()

if(HEED_CLANG_CHECK)
  find_program(HEED_CLANGXX clang++ REQUIRED)
endif()

# For the tests that call a compiler themselves: where headers lie. Include folders that are not
# heed's are system folders, as they are for a user; naming /usr/include would reorder it.
set(folders $<TARGET_PROPERTY:heed_headers_alone,INCLUDE_DIRECTORIES>)
set(folders $<REMOVE_DUPLICATES:$<FILTER:${folders},EXCLUDE,^${PROJECT_SOURCE_DIR}/include$|^/usr/include$>>)
file(
  GENERATE
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/compiler.cmake
  CONTENT
    "set(compiler [[${CMAKE_CXX_COMPILER}]])
set(clang [[${HEED_CLANGXX}]])
set(includes [[-I${PROJECT_SOURCE_DIR}/include;-I${CMAKE_CURRENT_SOURCE_DIR};-I${PROJECT_SOURCE_DIR}/examples;\
$<$<BOOL:${folders}>:-isystem$<JOIN:${folders},;-isystem>>]])
set(warnings [[${heed_warnings}]])
")

# heed_script_test(NAME SCRIPT [-DNAME=VALUE...]): a CMake script that knows the compiler.
function(heed_script_test name label script)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -DCOMPILER=${CMAKE_CURRENT_BINARY_DIR}/compiler.cmake
                                ${ARGN} -P ${CMAKE_CURRENT_SOURCE_DIR}/${script})
  set_tests_properties(${name} PROPERTIES LABELS ${label} SKIP_REGULAR_EXPRESSION "^skipped: ")
endfunction()

heed_script_test(headers/umbrella_stays_small headers headers/umbrella.cmake
                 -DHEADER=${PROJECT_SOURCE_DIR}/include/heed/heed.hpp)

file(GLOB files CONFIGURE_DEPENDS compile_fail/*.cpp)
foreach(file IN LISTS files)
  cmake_path(GET file STEM name)
  heed_script_test(headers/compile_fail/${name} headers compile_fail/check.cmake -DFILE=${file})
endforeach()

# Two translation units that include everything link into one program.
add_executable(heed-link link/one.cpp link/two.cpp)
heed_program_options(heed-link)
add_test(NAME headers/link COMMAND heed-link)
set_tests_properties(headers/link PROPERTIES LABELS headers)

# So do two of different instruction sets, and each keeps its own code. The one for AVX2 comes first
# on the link line: what the linker merges, it takes from there.
if("v3" IN_LIST HEED_TEST_MACHINES)
  foreach(machine IN ITEMS avx2 sse2)
    add_library(heed_link_${machine} OBJECT link/machine.cpp)
    target_compile_definitions(heed_link_${machine} PRIVATE MACHINE=${machine})
  endforeach()
  heed_program_options(heed_link_avx2 -mavx2 -mfma)
  heed_program_options(heed_link_sse2 -march=x86-64 -msse2)
  add_executable(heed-link-machines link/machines.cpp $<TARGET_OBJECTS:heed_link_avx2>
                                    $<TARGET_OBJECTS:heed_link_sse2>)
  heed_program_options(heed-link-machines -march=x86-64)
  add_test(NAME headers/link_machines COMMAND heed-link-machines)
  set_tests_properties(headers/link_machines PROPERTIES LABELS headers)

  heed_script_test(
    headers/link_keeps_baseline headers link/check_machines.cmake -DOBJDUMP=${CMAKE_OBJDUMP}
    -DBASELINE=$<TARGET_OBJECTS:heed_link_sse2> -DOTHER=$<TARGET_OBJECTS:heed_link_avx2>
    -DPROGRAM=$<TARGET_FILE:heed-link-machines> "-DINCLUDE=.")
endif()

# A second compiler's view: every header, and of what heed's programs instantiate every mechanism
# forward and backward, a cache, a layer, and the benchmarks, which the tests do not build.
if(HEED_CLANG_CHECK)
  file(GLOB sources CONFIGURE_DEPENDS ../examples/attend/*.cpp ../examples/common/*.cpp
       ../examples/layer/path.cpp ../bench/*/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/decode_(cope|mta|plain)\\.cpp$")
  foreach(file IN LISTS sources ITEMS ${CMAKE_CURRENT_BINARY_DIR}/headers/after_windows.cpp)
    cmake_path(GET file STEM name)
    cmake_path(GET file PARENT_PATH folder)
    cmake_path(GET folder STEM folder)
    heed_script_test(clang/${folder}/${name} clang headers/clang.cmake -DFILE=${file})
  endforeach()
endif()
