# find_package(epd): the targets epd::client (epd_client.h) and epd::program (epd_program.h), wherever this lies.
get_filename_component(_epd_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_epd_library client program)
  if(NOT TARGET epd::${_epd_library})
    add_library(epd::${_epd_library} SHARED IMPORTED)
    set_target_properties(epd::${_epd_library} PROPERTIES
      IMPORTED_LOCATION "${_epd_prefix}/lib/libepd_${_epd_library}.so"
      IMPORTED_SONAME "libepd_${_epd_library}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${_epd_prefix}/include")
  endif()
endforeach()
unset(_epd_library)
unset(_epd_prefix)
