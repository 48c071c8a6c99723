# How llama.cpp is built for Tessera, beyond its options: llama.cpp's build includes this file as
# CMAKE_PROJECT_llama.cpp_INCLUDE, after llama-cpp-python has set its own values.

# libllama-common serves llama.cpp's own programs. Tessera loads libllama, libmtmd and ggml, and these do not need it.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "Build llama.cpp common library" FORCE)
