# Adds our backend for prompts and attention to those of ggml: llama.cpp's build includes this file as CMAKE_PROJECT_ggml_INCLUDE.
# It is for x86-64 with compilers that know GCC's options; elsewhere it is left out, and nothing depends on it.
# With mingw-w64 it becomes a DLL for a ggml that Microsoft's compiler built: what lies between them is plain C.
function(tessera_add_tiles)
    if (NOT GGML_BACKEND_DL OR MSVC OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
        return()
    endif()
    find_package(OpenMP COMPONENTS CXX)
    if (NOT OpenMP_CXX_FOUND)
        message(STATUS "ggml-tiles is left out: its threads need OpenMP")
        return()
    endif()
    set(here ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
    ggml_add_backend_library(ggml-tiles
        ${here}/ggml-tiles.cpp ${here}/multiply.cpp ${here}/attend.cpp ${here}/avx2.cpp ${here}/avx512.cpp)
    set_source_files_properties(${here}/avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    set_source_files_properties(${here}/avx512.cpp PROPERTIES
        COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni")
    target_include_directories(ggml-tiles PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
    if (MINGW)
        # Everything of the compiler goes into the DLL: a Windows with Microsoft's libraries has none of it.
        target_compile_options(ggml-tiles PRIVATE -fopenmp -Wa,-muse-unaligned-vector-move)
        target_link_options(ggml-tiles PRIVATE -fopenmp -static)
    else()
        target_link_libraries(ggml-tiles PRIVATE OpenMP::OpenMP_CXX)
    endif()
endfunction()

# When ggml's own folder is done, its function for backends and its libraries are there.
cmake_language(DEFER CALL tessera_add_tiles)
