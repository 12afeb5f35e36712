# heed::layers: heed::heed and what heed/eigen.hpp, heed/multi_head.hpp, heed/layers/ and heed/io/
# include besides. Defined where Eigen and nlohmann-json are there; heed.hpp needs neither.
# heed_global_targets: makes what is found here visible to the directories above.
if(NOT TARGET heed::layers)
  set(heed_found)
  if(NOT TARGET Eigen3::Eigen)
    find_package(Eigen3 CONFIG QUIET)
    list(APPEND heed_found Eigen3::Eigen)
  endif()
  if(NOT TARGET nlohmann_json::nlohmann_json)
    find_package(nlohmann_json CONFIG QUIET)
    list(APPEND heed_found nlohmann_json::nlohmann_json)
  endif()
  if(TARGET Eigen3::Eigen AND TARGET nlohmann_json::nlohmann_json)
    add_library(heed::layers INTERFACE IMPORTED)
    target_link_libraries(heed::layers INTERFACE heed::heed Eigen3::Eigen
                                                 nlohmann_json::nlohmann_json)
    if(heed_global_targets)
      set_target_properties(heed::layers ${heed_found} PROPERTIES IMPORTED_GLOBAL TRUE)
    endif()
  endif()
endif()
