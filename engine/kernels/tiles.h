// What the parts of ggml-tiles share: products of weights in blocks of 32 values with columns in 8 bits, and attention.
//
// Nothing but C headers here: avx2.cpp and avx512.cpp are compiled for processors that may not be the one that
// runs, and an inline function of a C++ header compiled there could be the copy that the linker keeps. What is
// marked INLINE has no copy.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define INLINE inline __attribute__((always_inline))

namespace tiles {

constexpr int BLOCK = 32;          // values that share one scale
constexpr int CHUNK_BLOCKS = 64;   // blocks of a row that are decoded at once: a panel of them stays in a core's cache
constexpr int PANEL_ROWS = 32;     // the most rows of a panel
constexpr int DECODED_ROWS = 8;    // rows that are decoded together
constexpr size_t PANEL_BYTES = size_t(PANEL_ROWS) * CHUNK_BLOCKS * (BLOCK + 2 * sizeof(float));

// Columns in 8 bits, one after the other: a scale for each block, and the sum of its values with the scale. Sums of
// products of a block begin with what takes the zero of the weights off; those of its second half with the other.
struct Columns {
    int64_t values;   // of a column
    int64_t blocks;   // of a column
    int8_t * q;
    float * scale;
    float * scaled_sum;
    int32_t * starts;
    int zero;         // of the weights
    bool halves;      // their blocks are Weight::HALVES
};

// What a weight is beside its byte and its scale.
enum class Weight {
    ZERO,     // (byte - zero) * scale
    LEAST,    // byte * scale + least
    HALVES,   // (byte - zero) * scale in the first half of a block, (byte - zero) * least in the second
    SIGNED,   // ZERO of a byte that is too wide for its instruction set's sums: in kernel.h only
};

// How blocks of one type become bytes from 0 to 255: `decode` takes `count` blocks of eight rows, and writes them to
// a panel of `rows` rows, whose place for the first of the eight it is given. Where llama.cpp rewrote the weights, the
// eight rows lie in one: `of[0]` is where their first block begins.
struct Format {
    int ggml_type;
    size_t group_bytes;       // of `group` blocks of one row, which lie together
    int group;
    Weight weight;
    int zero;
    uint8_t widest;           // the largest byte there is
    bool rewritten;
    int64_t least_columns;    // with fewer llama.cpp's own kernels are as fast. Measured: docs/log.md, "tiles for prompts"
    void (*decode)(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float * least);
};

struct Product {
    const Format * format;
    const uint8_t * weights;
    size_t row_bytes;
    int64_t rows;
    Columns columns;
    const int64_t * places;   // of each column in `out`; null: its own
    float * out;              // a column of `rows` values after the other

    INLINE float * out_of(int64_t column) const { return out + (places ? places[column] : column) * rows; }
};

constexpr int ATTEND_CELLS = 64;      // cells of a tile: a bit each in one word
constexpr int ATTEND_STRIPS = 4;      // the most strips of rows that share the unpacked cells of a tile
constexpr int HEADS_AT_ONCE = 4;      // the most heads of a row that take each cell together
constexpr float FAR = -1e30f;         // less than any score, but a number: what no cell has raised yet

// A row of a cache's type as floats; null: it has 16-bit floats.
typedef void (*FloatsOf)(const void * row, float * out, int64_t count);

// Attention as ggml's GGML_OP_FLASH_ATTN_EXT has it. Bytes are those from one position or cell to the next, from one
// head, from one stream.
struct Attention {
    const uint8_t * queries;
    const uint8_t * keys;
    const uint8_t * values;
    const uint8_t * mask;      // 16-bit floats that are added to the scores, times a head's slope; null: none
    const float * sinks;       // a score of each head that no cell has; null: none
    const float * slopes;      // of each head; null: 1
    float * out;               // [stream][position][head][value width]
    int64_t query_bytes[3], key_bytes[3], value_bytes[3];
    int64_t mask_bytes[2];     // from one position, from one stream
    FloatsOf key_floats, value_floats;
    int64_t key_width, value_width, cells, positions, heads, key_heads, streams;
    float scale;
    float softcap;             // scores are bounded by it; 0: they are not

    INLINE const uint16_t * mask_row(int64_t stream, int64_t position) const {
        return (const uint16_t *) (mask + position * mask_bytes[0] + stream * mask_bytes[1]);
    }

    INLINE float slope(int64_t head) const { return slopes ? slopes[head] : 1.0f; }

    // What a head's sums of values are multiplied by in the end: `most` is its largest score, `total` the sum of
    // exponentials. No cell at all gives zeros.
    INLINE float share(int64_t head, float most, float total) const {
        float by = 1.0f;
        if (sinks) {
            const float now = most > sinks[head] ? most : sinks[head];
            by = __builtin_expf(most - now);
            total = total * by + __builtin_expf(sinks[head] - now);
        }
        return total == 0.0f ? 0.0f : by / total;
    }
};

struct Seen {
    int64_t cells, tiles;
};

// One instruction set's kernels.
struct Kernels {
    const char * name;
    int panel_rows;
    const Format * (*format)(int ggml_type, bool rewritten);   // null: it has none for this type
    void (*quantize)(const float * column, int64_t index, const Columns & columns);
    // Rows [first, first + panel_rows) of columns [from, to).
    void (*part)(const Product & product, int64_t first, int64_t from, int64_t to, uint8_t * panel);

    int strip;                                        // rows (a head of a position each) of a strip
    Seen (*seen)(const Attention & attention, int64_t stream, int64_t from, int64_t to);
    int64_t (*row_floats)(const Attention & attention);     // memory that `row` needs
    // `count` heads from `head` on that share keys, at one position, with cells [from, to). Of each head its values,
    // then of each head the largest score and the sum of exponentials.
    void (*row)(const Attention & attention, int64_t stream, int64_t head, int count, int64_t position, int64_t from,
                int64_t to, float * memory, float * out);
    int64_t (*strip_floats)(const Attention & attention);   // memory that `strips` needs
    // All heads that share keys `head`, at positions [from, to): at most ATTEND_STRIPS strips of rows.
    void (*strips)(const Attention & attention, int64_t stream, int64_t head, int64_t from, int64_t to, float * memory);
};

const Kernels & avx2();
const Kernels & avx512();

}  // namespace tiles
