# Included by each project of a build with Vulkan. glslc 2026.4 reads memory that it never wrote when it converts an
# integer constant to a half float: float16_t(0) came out as 0, infinity or other values. With 0.0 it is 0.
if (PROJECT_NAME STREQUAL "ggml")
    file(GLOB shaders ${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-vulkan/vulkan-shaders/*.comp
        ${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-vulkan/vulkan-shaders/*.glsl)
    foreach (shader ${shaders})
        file(READ ${shader} text)
        string(REGEX REPLACE "(_TYPE|float16_t)\\(0\\)" "\\1(0.0)" sound "${text}")
        if (NOT sound STREQUAL text)
            file(WRITE ${shader} "${sound}")
        endif()
    endforeach()
endif()
