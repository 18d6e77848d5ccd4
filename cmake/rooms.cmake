# deepinfer_room(name DEPS ...): the static library deepinfer_<name> from engine/<name>/**/*.cpp, and the
# test program <name>_test from the *_test.cpp files beside them. A folder engine/<name>/CMakeLists.txt,
# if present, is read after the targets exist and may add flags, definitions and libraries to them. With DEEPINFER_FUZZ
# there are no tests; instead each *_fuzz.cpp becomes a libFuzzer program (fuzz/run.sh).

# Linked statically or used as headers, so that a build runs on another machine (design.md section 5). Debian has no
# static fmt or spdlog: fmt is compiled here (cmake/fmt_static.cpp), spdlog is used header-only, in base/log.cpp alone.
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL REQUIRED)
find_path(SPDLOG_INCLUDE_DIR spdlog/spdlog.h REQUIRED)
find_path(FMT_INCLUDE_DIR fmt/format-inl.h REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)

# What every target of ours is compiled with. Results must not depend on the compiler's freedom:
# no contraction of a*b+c, no fast-math (design.md section 5).
add_library(deepinfer_flags INTERFACE)
target_compile_options(deepinfer_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-fast-math;-fno-math-errno;-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-unused-parameter;-Werror>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)  # GCC 12 warns falsely about concatenated strings (its bug 105651)
if(NOT DEEPINFER_SANITIZE)
  target_link_options(deepinfer_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()
target_include_directories(deepinfer_flags INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/engine")
target_link_libraries(deepinfer_flags INTERFACE Threads::Threads)
if(DEEPINFER_FUZZ)
  # Built with clang only for these programs; its warnings are not what the tree is kept clean of.
  target_compile_options(deepinfer_flags INTERFACE
    -O1 -g1 -Wno-everything -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
endif()
if(DEEPINFER_SANITIZE)
  target_compile_options(deepinfer_flags INTERFACE
    -fsanitize=${DEEPINFER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)  # false alarms in <regex> once the code is instrumented
  target_link_options(deepinfer_flags INTERFACE -fsanitize=${DEEPINFER_SANITIZE})
  if(DEEPINFER_SANITIZE STREQUAL "thread")
    # Asio's fences, which ThreadSanitizer does not see, stand beside mutexes, which it does.
    target_compile_options(deepinfer_flags INTERFACE -Wno-tsan)
  endif()
endif()

add_library(deepinfer_fmt STATIC "${CMAKE_CURRENT_LIST_DIR}/fmt_static.cpp")
target_link_libraries(deepinfer_fmt PRIVATE deepinfer_flags)
target_include_directories(deepinfer_fmt SYSTEM PUBLIC "${FMT_INCLUDE_DIR}")

function(deepinfer_room name)
  cmake_parse_arguments(ROOM "" "" "DEPS" ${ARGN})
  set(folder "${CMAKE_CURRENT_SOURCE_DIR}/engine/${name}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  if(NOT DEEPINFER_HAS_CUDA)
    # What decides without a device is compiled, and tested, everywhere.
    set(planning ${sources})
    list(FILTER planning INCLUDE REGEX "/backend/cuda/plan/")
    list(FILTER sources EXCLUDE REGEX "/backend/cuda/")
    list(APPEND sources ${planning})
  endif()
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cpp$")
  if(NOT sources)
    return()
  endif()
  set(libraries "")
  foreach(dependency ${ROOM_DEPS})
    if(dependency MATCHES "::")
      list(APPEND libraries ${dependency})
    elseif(TARGET deepinfer_${dependency})
      list(APPEND libraries deepinfer_${dependency})
    endif()
  endforeach()
  add_library(deepinfer_${name} STATIC ${sources})
  target_link_libraries(deepinfer_${name} PUBLIC deepinfer_flags ${libraries})
  if(DEEPINFER_FUZZ)
    foreach(source ${fuzzers})
      get_filename_component(fuzzer "${source}" NAME_WE)
      add_executable(${fuzzer} ${source})
      target_link_libraries(${fuzzer} PRIVATE deepinfer_${name})
      target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer,address,undefined)
    endforeach()
  elseif(tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE deepinfer_${name} GTest::gtest_main)
    target_compile_options(${name}_test PRIVATE -Wno-dangling-else)  # GoogleTest's macros under an if
    target_compile_definitions(${name}_test PRIVATE
      DEEPINFER_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}")
    gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 1200)
  endif()
  if(EXISTS "${folder}/CMakeLists.txt")
    add_subdirectory("${folder}")
  endif()
endfunction()
