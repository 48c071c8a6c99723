# How llama.cpp is built for Tessera, beyond its options: llama.cpp's build includes this file as
# CMAKE_PROJECT_llama.cpp_INCLUDE, after llama-cpp-python has set its own values.

# libllama-common serves llama.cpp's own programs. Tessera loads libllama, libmtmd and ggml, and these do not need it.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "Build llama.cpp common library" FORCE)

# GCC and Clang define __ARM_NEON on 64-bit ARM; llama.cpp's tiles of attention ask for __ARM_NEON__, which is that of
# 32 bits, and have 2 by 2 vectors without it instead of 4 by 4. Source: ggml-cpu/simd-gemm.h; adr/0038.
if (CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$" AND NOT MSVC)
    add_compile_definitions(__ARM_NEON__=1)
endif()
