# deltatrain_library(NAME base SRCS a.cpp b.cpp DEPS tensor PRIVATE_DEPS fmt::fmt [SEPARATE])
#   One static library per folder of src/, alias deltatrain::NAME. DEPS are names of other folders, and
#   only those: they are the link graph that tests/policy compares with the include graph.
#   PRIVATE_DEPS are targets of libraries from outside. SEPARATE: never several files in one compilation.
# deltatrain_test(NAME base SRCS error_test.cpp DEPS base [LABELS slow])
#   One executable per folder of tests/, named test_NAME, every case registered with CTest.

add_library(deltatrain_flags INTERFACE)
target_compile_features(deltatrain_flags INTERFACE cxx_std_20)
target_compile_options(deltatrain_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wpedantic
  -Wno-missing-field-initializers -fno-math-errno>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees an overlapping copy in every "text" + std::string (its bug 105651).
  target_compile_options(deltatrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(DELTATRAIN_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Files that are compiled together are included by another, which makes GCC take them for headers.
  target_compile_options(deltatrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(DELTATRAIN_STATIC)
  target_link_options(deltatrain_flags INTERFACE -static-libstdc++ -static-libgcc)
endif()
if(DELTATRAIN_WERROR)
  target_compile_options(deltatrain_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
endif()
if(DELTATRAIN_SANITIZE)
  target_compile_options(deltatrain_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DELTATRAIN_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With the sanitizers' instructions in between, GCC takes members of <regex> for uninitialized.
    target_compile_options(deltatrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
  target_link_options(deltatrain_flags INTERFACE -fsanitize=${DELTATRAIN_SANITIZE})
endif()
if(DELTATRAIN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "DELTATRAIN_FUZZ needs clang++ (libFuzzer), got ${CMAKE_CXX_COMPILER}")
  endif()
  target_compile_options(deltatrain_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

function(deltatrain_library)
  cmake_parse_arguments(ARG "SEPARATE" "NAME" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target deltatrain_${ARG_NAME})
  add_library(${target} STATIC ${ARG_SRCS})
  add_library(deltatrain::${ARG_NAME} ALIAS ${target})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  list(TRANSFORM ARG_DEPS PREPEND deltatrain::)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE deltatrain_flags ${ARG_PRIVATE_DEPS})
  if(NOT ARG_SEPARATE)
    deltatrain_join_files(${target})
  endif()
endfunction()

# With DELTATRAIN_UNITY several files of TARGET are compiled as one: headers are read once for all of them.
function(deltatrain_join_files target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${DELTATRAIN_UNITY} UNITY_BUILD_BATCH_SIZE 6)
endfunction()

function(deltatrain_test)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;PRIVATE_DEPS;LABELS" ${ARGN})
  set(target test_${ARG_NAME})
  add_executable(${target} ${ARG_SRCS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  list(TRANSFORM ARG_DEPS PREPEND deltatrain::)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} ${ARG_PRIVATE_DEPS} deltatrain_test_support deltatrain_flags
    GTest::gtest GTest::gmock GTest::gtest_main fmt::fmt)
  # Tests are compiled more often than they are waited for.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)  # an empty list would swallow the next property
  endif()
  gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS "${ARG_LABELS}"
    ENVIRONMENT OMP_WAIT_POLICY=passive  # tests run side by side: waiting threads must not spin
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()
