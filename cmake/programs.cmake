# What heed's own programs share: tests, examples and benchmarks. Nothing here reaches a user of
# heed::heed.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(HEED_CCACHE ccache)
mark_as_advanced(HEED_CCACHE)
if(HEED_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The tests use precompiled headers, which ccache takes only when told so.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime
      ${HEED_CCACHE})
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
set(heed_warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # gcc 12 reports its own AVX-512 intrinsics as reading what is not initialized (gcc PR 105593).
  set(heed_compiler_warnings -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

if(NOT TARGET heed::layers)
  message(FATAL_ERROR "heed's tests, examples and benchmarks need Eigen and nlohmann-json; without "
                      "them set HEED_BUILD_TESTS, HEED_BUILD_EXAMPLES and HEED_BUILD_BENCH to OFF")
endif()

# heed_program_options(TARGET [FLAG...]): warnings, and machine flags: those given, else those of
# HEED_NATIVE.
function(heed_program_options target)
  set(machine ${ARGN})
  if(NOT machine AND HEED_NATIVE)
    set(machine -march=native)
  endif()
  target_compile_options(${target} PRIVATE ${heed_warnings} ${heed_compiler_warnings} $<$<BOOL:${HEED_WERROR}>:-Werror>
                                           ${machine})
  target_link_libraries(${target} PRIVATE heed::layers)
endfunction()

# heed_program(PROGRAM MAIN [LIBRARY...]): a program of MAIN, a <name>.cpp of this directory; the files
# of a folder <name>/ beside it are further sources, compiled as PROGRAM-parts.
function(heed_program program main)
  cmake_path(GET main STEM name)
  file(GLOB parts CONFIGURE_DEPENDS ${name}/*.cpp)
  add_executable(${program} ${main})
  if(parts)
    heed_parts(${program}-parts ${CMAKE_CURRENT_SOURCE_DIR} ${parts})
    target_sources(${program} PRIVATE $<TARGET_OBJECTS:${program}-parts>)
  endif()
  heed_program_options(${program})
  target_link_libraries(${program} PRIVATE ${ARGN})
  target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
endfunction()

# heed_parts(LIBRARY FOLDER FILE...): objects of a program's further sources, which include from
# FOLDER. Flags for the machine may stand in the variable heed_parts_machine.
function(heed_parts library folder)
  add_library(${library} OBJECT ${ARGN})
  heed_program_options(${library} ${heed_parts_machine})
  target_include_directories(${library} PRIVATE ${folder})
endfunction()
