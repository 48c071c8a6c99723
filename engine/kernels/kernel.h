// The product of a panel of rows with columns, written once for all instruction sets. Included inside an unnamed
// namespace after the file has defined: ROWS and COLS (or COLS_OF_HALVES) of a tile, AT_ONCE rows in each of its VECTORS,
// types of vectors and their operations. `dot` adds products of four bytes, GROUPS (or GROUPS_OF_HALVES) times between `opened`
// and `closed`, which bytes up to WIDEST (or WIDEST_OF_HALVES) allow; `dot_signed` takes weights without their zero.

// Rounded to 16 bits, which hold nothing larger than 65504.
static inline float as_half(float x) {
    return x < 65504.0f ? _cvtsh_ss(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)) : x;
}

// A column's values in 8 bits: the scale of a block is its largest magnitude by 127, rounded to 16 bits as in ggml's
// Q8_0 and Q8_1. Sums of blocks are not rounded: one above 65504 would become infinite, as in Q8_1 but not in Q8_K.
static void quantize_column(const float * column, int64_t index, const Columns & columns) {
    int8_t * q = columns.q + index * columns.values;
    const int64_t first = index * columns.blocks;
    for (int64_t b = 0; b < columns.blocks; b++, column += BLOCK, q += BLOCK) {
        __m256 x[4];
        __m256i largest = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            x[i] = _mm256_loadu_ps(column + 8 * i);
            // As integers, what is no number is larger than all numbers.
            const __m256i size = _mm256_and_si256(_mm256_castps_si256(x[i]), _mm256_set1_epi32(0x7fffffff));
            largest = _mm256_max_epi32(largest, size);
        }
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        const float most = _mm_cvtss_f32(_mm_castsi128_ps(four));
        const float scale = as_half(most - most == 0.0f ? most / 127.0f : most - most);
        const __m256 by = _mm256_set1_ps(most > 0.0f ? 127.0f / most : 0.0f);
        __m256i whole[4];
        for (int i = 0; i < 4; i++) {
            whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], by));
        }
        const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        _mm256_storeu_si256((__m256i *) q, bytes);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
        sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
        const int one = _mm256_extract_epi32(sums, 0), other = _mm256_extract_epi32(sums, 4);
        columns.starts[2 * (first + b)] = -columns.zero * (columns.halves ? one : one + other);
        columns.starts[2 * (first + b) + 1] = -columns.zero * other;
        columns.scale[first + b] = scale;
        columns.scaled_sum[first + b] = scale * float(one + other);
    }
}

struct Panel {
    const uint8_t * bytes;
    const float * scale;
    const float * least;
    int64_t first;      // its first row
    int64_t block;      // where the chunk begins
    int count;          // blocks of the chunk
    int64_t rows;       // of the panel that exist
};

// Adds the products of `count` groups of four values of N columns, the first of them at `q`, to `dots`.
template <int N, int AT_A_TIME>
INLINE static void multiply_groups(Ints (&dots)[VECTORS][N], int count, const uint8_t *& bytes, const int8_t * q, int64_t next) {
    for (int some = 0; some < count; some += AT_A_TIME) {
        Dots more[VECTORS][N];
        // GCC leaves the loops of wide tiles as they are otherwise, and keeps their sums in memory.
        #pragma GCC unroll 8
        for (int group = some; group < some + AT_A_TIME; group++) {
            Bytes w[VECTORS];
            for (int v = 0; v < VECTORS; v++, bytes += 4 * AT_ONCE) {
                w[v] = load_bytes(bytes);
            }
            for (int j = 0; j < N; j++) {
                const Bytes four = four_values(q + j * next + 4 * group);
                for (int v = 0; v < VECTORS; v++) {
                    more[v][j] = dot(group == some ? opened(dots[v][j]) : more[v][j], w[v], four);
                }
            }
        }
        for (int v = 0; v < VECTORS; v++) {
            for (int j = 0; j < N; j++) {
                dots[v][j] = closed(dots[v][j], more[v][j]);
            }
        }
    }
}

// The same for weights with a sign.
template <int N>
INLINE static void multiply_signed(Ints (&dots)[VECTORS][N], int zero, const uint8_t *& bytes, const int8_t * q, int64_t next) {
    for (int group = 0; group < BLOCK / 4; group++) {
        for (int v = 0; v < VECTORS; v++, bytes += 4 * AT_ONCE) {
            const Bytes w = without_zero(load_bytes(bytes), zero);
            for (int j = 0; j < N; j++) {
                dots[v][j] = dot_signed(dots[v][j], w, four_values(q + j * next + 4 * group));
            }
        }
    }
}

template <int N, Weight KIND>
static void tile(const Product & product, const Panel & panel, int64_t column) {
    const Columns & columns = product.columns;
    Floats sum[VECTORS][N];
    for (int j = 0; j < N; j++) {
        for (int v = 0; v < VECTORS; v++) {
            sum[v][j] = panel.block ? load_rows(product.out_of(column + j) + panel.first, panel.rows, v) : none();
        }
    }
    const int8_t * q = columns.q + column * columns.values + panel.block * BLOCK;
    const int64_t at = column * columns.blocks + panel.block;
    const uint8_t * bytes = panel.bytes;
    for (int b = 0; b < panel.count; b++, q += BLOCK) {
        Ints dots[VECTORS][N];
        for (int j = 0; j < N; j++) {
            const int64_t i = at + j * columns.blocks + b;
            const Ints start = begin(KIND == Weight::ZERO || KIND == Weight::HALVES ? columns.starts[2 * i] : 0);
            for (int v = 0; v < VECTORS; v++) {
                dots[v][j] = start;
            }
        }
        if constexpr (KIND == Weight::HALVES) {
            multiply_groups<N, GROUPS_OF_HALVES>(dots, BLOCK / 8, bytes, q, columns.values);
            Floats first[VECTORS][N];
            for (int v = 0; v < VECTORS; v++) {
                const Floats scale = load(panel.scale + b * ROWS + v * AT_ONCE);
                for (int j = 0; j < N; j++) {
                    first[v][j] = times(as_floats(dots[v][j]), scale);
                    dots[v][j] = begin(columns.starts[2 * (at + j * columns.blocks + b) + 1]);
                }
            }
            multiply_groups<N, GROUPS_OF_HALVES>(dots, BLOCK / 8, bytes, q + BLOCK / 2, columns.values);
            for (int v = 0; v < VECTORS; v++) {
                const Floats scale = load(panel.least + b * ROWS + v * AT_ONCE);
                for (int j = 0; j < N; j++) {
                    const Floats both = fused(as_floats(dots[v][j]), scale, first[v][j]);
                    sum[v][j] = fused(both, all(columns.scale[at + j * columns.blocks + b]), sum[v][j]);
                }
            }
            continue;
        }
        if constexpr (KIND == Weight::SIGNED) {
            multiply_signed<N>(dots, product.format->zero, bytes, q, columns.values);
        } else {
            multiply_groups<N, GROUPS>(dots, BLOCK / 4, bytes, q, columns.values);
        }
        for (int v = 0; v < VECTORS; v++) {
            const Floats scale = load(panel.scale + b * ROWS + v * AT_ONCE);
            const Floats least = load(panel.least + b * ROWS + v * AT_ONCE);
            for (int j = 0; j < N; j++) {
                const int64_t i = at + j * columns.blocks + b;
                sum[v][j] = fused(times(as_floats(dots[v][j]), scale), all(columns.scale[i]), sum[v][j]);
                if (KIND == Weight::LEAST) {
                    sum[v][j] = fused(least, all(columns.scaled_sum[i]), sum[v][j]);
                }
            }
        }
    }
    for (int j = 0; j < N; j++) {
        for (int v = 0; v < VECTORS; v++) {
            store_rows(product.out_of(column + j) + panel.first, panel.rows, v, sum[v][j]);
        }
    }
}

template <int N, Weight KIND>
static void rest(const Product & product, const Panel & panel, int64_t column, int64_t left) {
    if (left == N) {
        tile<N, KIND>(product, panel, column);
    } else if constexpr (N > 1) {
        rest<N - 1, KIND>(product, panel, column, left);
    }
}

template <Weight KIND>
static void tiles_of(const Product & product, const Panel & panel, int64_t from, int64_t to) {
    constexpr int MOST = KIND == Weight::HALVES ? COLS_OF_HALVES : COLS;
    for (int64_t column = from; column < to; column += MOST) {
        const int64_t left = to - column < MOST ? to - column : MOST;
        rest<MOST, KIND>(product, panel, column, left);
    }
}

static void part(const Product & product, int64_t first, int64_t from, int64_t to, uint8_t * memory) {
    const Format & format = *product.format;
    const auto multiply = format.weight == Weight::LEAST    ? tiles_of<Weight::LEAST>
                          : format.weight == Weight::HALVES ? tiles_of<Weight::HALVES>
                          : format.widest > WIDEST          ? tiles_of<Weight::SIGNED>
                                                            : tiles_of<Weight::ZERO>;
    const int64_t blocks = product.columns.blocks;
    const int64_t rows = product.rows - first < ROWS ? product.rows - first : ROWS;
    float * scale = (float *) (memory + size_t(ROWS) * CHUNK_BLOCKS * BLOCK);
    float * least = scale + ROWS * CHUNK_BLOCKS;
    for (int64_t block = 0; block < blocks; block += CHUNK_BLOCKS) {
        const int count = int(blocks - block < CHUNK_BLOCKS ? blocks - block : CHUNK_BLOCKS);
        const size_t before = size_t(block / format.group) * format.group_bytes;
        for (int64_t row = 0; row < ROWS; row += DECODED_ROWS) {
            const uint8_t * of[DECODED_ROWS];
            if (format.rewritten) {
                const int64_t there = row < rows ? row : rows - DECODED_ROWS;
                of[0] = product.weights + (first + there) * product.row_bytes + before * DECODED_ROWS;
            }
            for (int64_t i = 0; i < DECODED_ROWS && !format.rewritten; i++) {
                const int64_t there = row + i < rows ? row + i : rows - 1;  // others are computed and not stored
                of[i] = product.weights + (first + there) * product.row_bytes + before;
            }
            format.decode(of, count, ROWS, memory + 4 * row, scale + row, least + row);
        }
        const Panel panel = {memory, scale, least, first, block, count, rows};
        multiply(product, panel, from, to);
    }
}

static const Format * format_of(int ggml_type, bool rewritten) {
    for (const Format & format : FORMATS) {
        const int most = format.weight == Weight::HALVES ? WIDEST_OF_HALVES : format.weight == Weight::ZERO ? 255 : WIDEST;
        if (format.ggml_type == ggml_type && format.rewritten == rewritten && format.widest <= most) {
            return &format;
        }
    }
    return nullptr;
}
