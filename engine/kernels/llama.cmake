# How llama.cpp is built for Tessera, beyond its options: llama.cpp's build includes this file as
# CMAKE_PROJECT_llama.cpp_INCLUDE, after llama-cpp-python has set its own values.

# libllama-common serves llama.cpp's own programs. Tessera loads libllama, libmtmd and ggml, and these do not need it.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "Build llama.cpp common library" FORCE)

# Almost all of the time to compile one of libmtmd's 45 small model files is for the headers they share: 16 together
# take 2 s instead of 16. llama.cpp does so with libllama's. The other files define macros of their own.
function(tessera_batch_mtmd)
    if (NOT TARGET mtmd)
        return()
    endif()
    get_target_property(folder mtmd SOURCE_DIR)
    get_target_property(sources mtmd SOURCES)
    list(FILTER sources EXCLUDE REGEX "^models/|^/")
    list(TRANSFORM sources PREPEND ${folder}/)
    set_source_files_properties(${sources} TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# What runs only while a model loads, or never with Tessera, is compiled with less optimization: a third less time.
# llama-model.cpp and ggml-backend-meta.cpp also run for each token: with them answers took 0.9 % more processor time.
function(tessera_optimize_less target)
    if (NOT TARGET ${target} OR MSVC)
        return()
    endif()
    get_target_property(folder ${target} SOURCE_DIR)
    list(TRANSFORM ARGN PREPEND ${folder}/ OUTPUT_VARIABLE sources)
    set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS -O1)
endfunction()

function(tessera_shorten_build)
    tessera_batch_mtmd()
    tessera_optimize_less(mtmd clip.cpp)
    tessera_optimize_less(llama llama-arch.cpp llama-chat.cpp llama-io.cpp llama-mmap.cpp llama-model-loader.cpp
        llama-model-saver.cpp llama-quant.cpp)
    tessera_optimize_less(ggml-base ggml-opt.cpp gguf.cpp)
    tessera_optimize_less(ggml-rpc ggml-rpc.cpp transport.cpp)
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL tessera_shorten_build)

# GCC and Clang define __ARM_NEON on 64-bit ARM; llama.cpp's tiles of attention ask for __ARM_NEON__, which is that of
# 32 bits, and have 2 by 2 vectors without it instead of 4 by 4. Source: ggml-cpu/simd-gemm.h; adr/0038.
if (CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$" AND NOT MSVC)
    add_compile_definitions(__ARM_NEON__=1)
endif()
