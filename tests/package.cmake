# What a user's CMake does with heed: a consumer project built in the three ways of the README.
set(prefix ${CMAKE_CURRENT_BINARY_DIR}/prefix)

# heed_consumer_test(WAY FIXTURE [-DNAME=VALUE...])
function(heed_consumer_test way)
  set(build ${CMAKE_CURRENT_BINARY_DIR}/consumer/${way})
  add_test(
    NAME package/${way}
    COMMAND
      ${CMAKE_CTEST_COMMAND} --build-and-test ${CMAKE_CURRENT_SOURCE_DIR}/consumer ${build}
      --build-generator ${CMAKE_GENERATOR} --build-options -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
      -DCMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH} -DHEED_WAY=${way} -DHEED_VERSION=${PROJECT_VERSION}
      ${ARGN} --test-command ${build}/consumer)
  set_tests_properties(package/${way} PROPERTIES LABELS package)
endfunction()

if(HEED_INSTALL)
  add_test(NAME package/install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix
                                        ${prefix})
  set_tests_properties(package/install PROPERTIES LABELS package FIXTURES_SETUP heed_installed)
  heed_consumer_test(find_package -Dheed_ROOT=${prefix})
  set_tests_properties(package/find_package PROPERTIES FIXTURES_REQUIRED heed_installed)
endif()
heed_consumer_test(add_subdirectory -DHEED_SOURCE=${PROJECT_SOURCE_DIR})
heed_consumer_test(fetch_content -DHEED_SOURCE=${PROJECT_SOURCE_DIR})
