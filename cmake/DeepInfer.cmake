# Options common to every target, and the functions that declare targets and tests.

add_library(deepinfer_options INTERFACE)
target_include_directories(deepinfer_options INTERFACE ${PROJECT_SOURCE_DIR}/include)
# One rounding per operation, whatever the instruction set (-ffp-contract=off): results must not depend on what the compiler fuses.
target_compile_options(deepinfer_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor;-Wno-psabi;-ffp-contract=off;-fno-math-errno;-g1>"
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>")
if(DEEPINFER_SANITIZE)
  target_compile_options(deepinfer_options INTERFACE
    -fsanitize=${DEEPINFER_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(deepinfer_options INTERFACE -fsanitize=${DEEPINFER_SANITIZE})
endif()
if(DEEPINFER_FUZZ)
  target_compile_options(deepinfer_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# deepinfer_library(NAME SOURCES a.cc ... DEPS target ...): the library of one folder of src/. What it may include is what
# it links; a header of a folder that is not in DEPS does not link.
function(deepinfer_library NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(deepinfer_${NAME} STATIC ${ARG_SOURCES})
  target_include_directories(deepinfer_${NAME} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(deepinfer_${NAME} PUBLIC deepinfer_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# deepinfer_test(NAME LABELS label ... SOURCES a_test.cc ... DEPS target ...): one executable; its cases run one by one in ctest.
function(deepinfer_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} deepinfer_testing GTest::gtest_main)
  # gtest_discover_tests takes one value a property, a list would be cut apart: labels become one, "invariance slow", which
  # -L and -LE find by either word.
  string(REPLACE ";" " " labels "${ARG_LABELS}")
  gtest_discover_tests(${NAME} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 900 LABELS "${labels}")
endfunction()

# deepinfer_timeout(SECONDS TEST...): for tests that drive the program from outside; a sanitizer makes it many times slower.
function(deepinfer_timeout SECONDS)
  if(DEEPINFER_SANITIZE)
    math(EXPR SECONDS "${SECONDS} * 6")
  endif()
  set_tests_properties(${ARGN} PROPERTIES TIMEOUT ${SECONDS})
endfunction()
