# Every library that deltatrain uses, with the reason it is here. All of them come from the
# distribution (tools/setup.sh); nothing is fetched during a build.

if(DELTATRAIN_STATIC)
  # Archives alone. The distributions have none of fmt, whose headers do without, nor of simdjson and oneDNN, in whose
  # place code of our own works (docs/decisions/009-static-program.md).
  set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(OPENSSL_USE_STATIC_LIBS ON)
endif()

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)  # threads of the CPU backend, shared with oneDNN

# Text formatting, compiled once to keep its header light; recipes; lines of JSON in raw text.
if(DELTATRAIN_STATIC)
  find_path(DELTATRAIN_FMT_INCLUDE fmt/format.h REQUIRED)
  add_library(fmt::fmt INTERFACE IMPORTED)
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1
    INTERFACE_INCLUDE_DIRECTORIES ${DELTATRAIN_FMT_INCLUDE})
  find_path(DELTATRAIN_YAML_INCLUDE yaml-cpp/yaml.h REQUIRED)
  find_library(DELTATRAIN_YAML_LIBRARY yaml-cpp REQUIRED)
  add_library(yaml-cpp INTERFACE)
  target_include_directories(yaml-cpp SYSTEM INTERFACE ${DELTATRAIN_YAML_INCLUDE})
  target_link_libraries(yaml-cpp INTERFACE ${DELTATRAIN_YAML_LIBRARY})
else()
  find_package(fmt REQUIRED)
  find_package(yaml-cpp REQUIRED)
  find_package(simdjson REQUIRED)
endif()
find_package(CLI11 REQUIRED)          # command line, included by src/cli only
find_package(nlohmann_json REQUIRED)  # config.json, tokenizer.json, state.json
find_package(ZLIB REQUIRED)           # .gz input
find_package(OpenSSL REQUIRED COMPONENTS Crypto)  # SHA-256 of written files
find_package(Boost 1.74 REQUIRED)     # Beast and Asio, headers alone: HTTP, included by one file of src/serve

find_path(DELTATRAIN_ZSTD_INCLUDE zstd.h REQUIRED)
find_library(DELTATRAIN_ZSTD_LIBRARY zstd REQUIRED)  # .zst input
find_path(DELTATRAIN_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(DELTATRAIN_XXHASH_LIBRARY xxhash REQUIRED)  # checksums of checkpoint tensors
if(NOT DELTATRAIN_STATIC)
  find_path(DELTATRAIN_DNNL_INCLUDE dnnl.h REQUIRED)
  find_library(DELTATRAIN_DNNL_LIBRARY dnnl REQUIRED)  # dense products of the CPU backend
  add_library(deltatrain_dnnl INTERFACE)
  target_include_directories(deltatrain_dnnl SYSTEM INTERFACE ${DELTATRAIN_DNNL_INCLUDE})
  target_link_libraries(deltatrain_dnnl INTERFACE ${DELTATRAIN_DNNL_LIBRARY})
endif()
find_path(DELTATRAIN_PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(DELTATRAIN_PCRE2_LIBRARY pcre2-8 REQUIRED)  # word patterns of tokenizers without a matcher of ours

add_library(deltatrain_pcre2 INTERFACE)
target_include_directories(deltatrain_pcre2 SYSTEM INTERFACE ${DELTATRAIN_PCRE2_INCLUDE})
target_link_libraries(deltatrain_pcre2 INTERFACE ${DELTATRAIN_PCRE2_LIBRARY})
add_library(deltatrain_zstd INTERFACE)
target_include_directories(deltatrain_zstd SYSTEM INTERFACE ${DELTATRAIN_ZSTD_INCLUDE})
target_link_libraries(deltatrain_zstd INTERFACE ${DELTATRAIN_ZSTD_LIBRARY})
add_library(deltatrain_xxhash INTERFACE)
target_include_directories(deltatrain_xxhash SYSTEM INTERFACE ${DELTATRAIN_XXHASH_INCLUDE})
target_link_libraries(deltatrain_xxhash INTERFACE ${DELTATRAIN_XXHASH_LIBRARY})

# Optional: without it there are no PNG pictures.
find_path(DELTATRAIN_CAIRO_INCLUDE cairo.h PATH_SUFFIXES cairo)
if(DELTATRAIN_CAIRO_INCLUDE)
  # PNG pictures of curves. Headers alone: it is opened when the first picture is drawn, since it brings thirty other
  # libraries, which training on a bare machine does not need.
  add_library(deltatrain_cairo INTERFACE)
  target_include_directories(deltatrain_cairo SYSTEM INTERFACE ${DELTATRAIN_CAIRO_INCLUDE})
  target_link_libraries(deltatrain_cairo INTERFACE ${CMAKE_DL_LIBS})
else()
  message(STATUS "PNG: no Cairo found, not built in")
endif()

set(Protobuf_USE_STATIC_LIBS ON)
find_package(Protobuf QUIET)  # event files for TensorBoard, optional; 0.6 MB of the lite library
if(NOT Protobuf_FOUND OR NOT TARGET protobuf::protoc)
  message(STATUS "TensorBoard: no protobuf with protoc found, not built in")
endif()

if(DELTATRAIN_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})
endif()

if(DELTATRAIN_STATIC AND DELTATRAIN_ARROW STREQUAL "AUTO")
  set(DELTATRAIN_ARROW OFF)
elseif(DELTATRAIN_STATIC AND DELTATRAIN_ARROW)
  message(FATAL_ERROR "DELTATRAIN_STATIC: expected DELTATRAIN_ARROW=OFF (there are no archives of it), got ${DELTATRAIN_ARROW}")
endif()
include(arrow)  # Parquet input; a build without it refuses such files by name

if(DELTATRAIN_TESTS)
  find_package(GTest REQUIRED)
endif()
