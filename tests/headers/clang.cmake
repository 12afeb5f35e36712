# FILE compiles with clang++ without a warning.
cmake_minimum_required(VERSION 3.23)
include(${COMPILER})
execute_process(COMMAND ${clang} -std=c++20 -fsyntax-only -march=native ${includes} ${warnings} -Werror
                        -DHEED_TEST_GOLDEN_DIR="" -DHEED_TEST_GOLDEN_LAYERS_DIR=""
                        -DHEED_ATTEND_PROGRAM="" -DHEED_LAYER_PROGRAM="" ${FILE}
                COMMAND_ERROR_IS_FATAL ANY)
