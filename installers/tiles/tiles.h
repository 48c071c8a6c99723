// What the parts of ggml-tiles share: a product of weights in blocks of 32 values with columns in 8 bits.
//
// Nothing but C headers here: avx2.cpp and avx512.cpp are compiled for processors that may not be the one that
// runs, and an inline function of a C++ header compiled there could be the copy that the linker keeps.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tiles {

constexpr int BLOCK = 32;          // values that share one scale
constexpr int CHUNK_BLOCKS = 64;   // blocks of a row that are decoded at once: a panel of them stays in a core's cache
constexpr int PANEL_ROWS = 32;     // the most rows of a panel
constexpr int DECODED_ROWS = 8;    // rows that are decoded together
constexpr size_t PANEL_BYTES = size_t(PANEL_ROWS) * CHUNK_BLOCKS * (BLOCK + 2 * sizeof(float));

// Columns in 8 bits, one after the other: a scale for each block, and the sum of its values with the scale and without.
struct Columns {
    int64_t values;   // of a column
    int64_t blocks;   // of a column
    int8_t * q;
    float * scale;
    float * scaled_sum;
    int32_t * sum;
};

// How blocks of one type become bytes from 0 to 255: `decode` takes `count` blocks of eight rows, and writes them to
// a panel of `rows` rows, whose place for the first of the eight it is given.
// A weight is (byte - zero) * scale, or byte * scale + least.
struct Format {
    int ggml_type;
    size_t block_bytes;
    int zero;
    bool least;
    uint8_t widest;           // the largest byte there is
    int64_t least_columns;    // with fewer llama.cpp's own kernels are as fast. Measured: docs/log.md, "tiles for prompts"
    void (*decode)(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float * least);
};

struct Product {
    const Format * format;
    const uint8_t * weights;
    size_t row_bytes;
    int64_t rows;
    Columns columns;
    float * out;              // a column of `rows` values after the other
};

// One instruction set's kernels. `part` computes rows [first, first + panel_rows) of columns [from, to).
struct Kernels {
    const char * name;
    int panel_rows;
    const Format * (*format)(int ggml_type);   // null: it has none for this type
    void (*quantize)(const float * column, int64_t index, const Columns & columns);
    void (*part)(const Product & product, int64_t first, int64_t from, int64_t to, uint8_t * panel);
};

const Kernels & avx2();
const Kernels & avx512();

}  // namespace tiles
