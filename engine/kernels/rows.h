// Attention of rows that see cells of their own: answers. Written once for all instruction sets and included like
// strips.h. A head's values lie in the lanes of vectors; heads that share keys take each cell together.

constexpr int CELLS_AT_ONCE = 4, VALUES_AT_ONCE = 4 * AT_ONCE;

// The cells of a tile that one position sees, a bit each; `flat`: and all that it sees are seen alike (0 is added).
static inline uint64_t seen_cells(const uint16_t * mask, int count, bool * flat) {
    uint64_t seen = 0;
    bool zero = true;
    const __m256i hidden = _mm256_set1_epi16((short) 0xfc00);
    int c = 0;
    for (; c + 16 <= count; c += 16) {
        const __m256i values = _mm256_loadu_si256((const __m256i *) (mask + c));
        const __m256i none_seen = _mm256_cmpeq_epi16(values, hidden);
        const __m256i zeros = _mm256_cmpeq_epi16(values, _mm256_setzero_si256());
        const __m128i narrow = _mm_packs_epi16(_mm256_castsi256_si128(none_seen), _mm256_extracti128_si256(none_seen, 1));
        seen |= (uint64_t) (uint16_t) ~_mm_movemask_epi8(narrow) << c;
        zero = zero && _mm256_movemask_epi8(_mm256_or_si256(none_seen, zeros)) == -1;
    }
    for (; c < count; c++) {
        seen |= (uint64_t) (mask[c] != 0xfc00) << c;
        zero = zero && (mask[c] == 0xfc00 || mask[c] == 0);
    }
    *flat = *flat && zero;
    return seen;
}

static inline void fetch_row(const uint8_t * row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *) row + i, _MM_HINT_T1);
    }
}

// At most: those of smaller types take fewer.
static inline int64_t bytes_of(FloatsOf to_floats) { return to_floats ? 1 : 2; }

static inline void in_floats(const uint8_t * row, float * out, int64_t width, FloatsOf to_floats) {
    if (to_floats) {
        to_floats(row, out, width);
        return;
    }
    for (int64_t i = 0; i < width; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (row + 2 * i))));
    }
}

static inline Floats load_halves_or(const uint8_t * row, bool halves, int64_t i) {
    return halves ? load_halves((const uint16_t *) row + i) : load_any((const float *) row + i);
}

// Scores of HEADS heads with four cells: scores[h * ATTEND_CELLS + c].
template <int HEADS, bool HALVES>
static inline void score_cells(const Attention & a, const float * queries, const uint8_t * const * cells,
                               float * scores) {
    Floats sums[HEADS][CELLS_AT_ONCE];
    for (int h = 0; h < HEADS; h++) {
        for (int c = 0; c < CELLS_AT_ONCE; c++) {
            sums[h][c] = none();
        }
    }
    for (int64_t k = 0; k < a.key_width; k += AT_ONCE) {
        Floats keys[CELLS_AT_ONCE];
        for (int c = 0; c < CELLS_AT_ONCE; c++) {
            keys[c] = load_halves_or(cells[c], HALVES, k);
        }
        for (int h = 0; h < HEADS; h++) {
            const Floats query = load_any((const float *) ((const uint8_t *) queries + h * a.query_bytes[1]) + k);
            for (int c = 0; c < CELLS_AT_ONCE; c++) {
                sums[h][c] = fused(query, keys[c], sums[h][c]);
            }
        }
    }
    for (int h = 0; h < HEADS; h++) {
        _mm_storeu_ps(scores + h * ATTEND_CELLS, four_sums(sums[h][0], sums[h][1], sums[h][2], sums[h][3]));
    }
}

// Adds values of the seen cells of a tile, times what the softmax gives each, to out[h * value_width + d].
template <int HEADS, bool HALVES>
static inline void weigh_cells(const Attention & a, const uint8_t * const * cells, int count, const float * parts,
                               const float * shrink, float * out) {
    for (int64_t d = 0; d < a.value_width; d += VALUES_AT_ONCE) {
        const int vectors = int(a.value_width - d < VALUES_AT_ONCE ? (a.value_width - d) / AT_ONCE : 4);
        Floats sums[HEADS][4];
        for (int h = 0; h < HEADS; h++) {
            for (int v = 0; v < 4; v++) {
                sums[h][v] = v < vectors ? times(load_any(out + h * a.value_width + d + v * AT_ONCE), all(shrink[h]))
                                         : none();
            }
        }
        if (vectors == 4) {
            for (int c = 0; c < count; c++) {
                for (int v = 0; v < 4; v++) {
                    const Floats values = load_halves_or(cells[c], HALVES, d + v * AT_ONCE);
                    for (int h = 0; h < HEADS; h++) {
                        sums[h][v] = fused(values, all(parts[h * ATTEND_CELLS + c]), sums[h][v]);
                    }
                }
            }
        } else {
            for (int v = 0; v < 3; v++) {
                for (int c = 0; v < vectors && c < count; c++) {
                    const Floats values = load_halves_or(cells[c], HALVES, d + v * AT_ONCE);
                    for (int h = 0; h < HEADS; h++) {
                        sums[h][v] = fused(values, all(parts[h * ATTEND_CELLS + c]), sums[h][v]);
                    }
                }
            }
        }
        for (int h = 0; h < HEADS; h++) {
            for (int v = 0; v < 4; v++) {
                if (v < vectors) {
                    store_any(out + h * a.value_width + d + v * AT_ONCE, sums[h][v]);
                }
            }
        }
    }
}

// HEADS heads of one position with cells [from, to). `out`: of each head its values, then largest score and total.
template <int HEADS, bool HALVES>
static void attend_heads(const Attention & a, const float * queries, const uint8_t * keys, const uint8_t * values,
                         const uint16_t * mask, const float * slopes, int64_t from, int64_t to, float * memory,
                         float * out) {
    float most[HEADS], total[HEADS];
    float * scores = memory;                                      // [HEADS][ATTEND_CELLS]
    float * rows = scores + HEADS_AT_ONCE * ATTEND_CELLS;         // of types that are not read as they are
    for (int h = 0; h < HEADS; h++) {
        most[h] = FAR;
        total[h] = 0.0f;
    }
    memset(out, 0, sizeof(float) * HEADS * a.value_width);
    for (int64_t cell = from; cell < to; cell += ATTEND_CELLS) {
        const int count = int(to - cell < ATTEND_CELLS ? to - cell : ATTEND_CELLS);
        bool flat = true;
        uint64_t seen = mask ? seen_cells(mask + cell, count, &flat)
                             : count == 64 ? ~(uint64_t) 0 : ((uint64_t) 1 << count) - 1;
        const uint8_t * of[ATTEND_CELLS];
        int number[ATTEND_CELLS], some = 0;
        for (; seen; seen &= seen - 1) {
            number[some++] = __builtin_ctzll(seen);
        }
        if (!some) {
            continue;
        }
        // Rows of a head lie far apart, where no processor expects the next one.
        for (int c = 0; c < some; c++) {
            fetch_row(values + (cell + number[c]) * a.value_bytes[0], a.value_width * bytes_of(a.value_floats));
            fetch_row(keys + (cell + ATTEND_CELLS + number[c]) * a.key_bytes[0], a.key_width * bytes_of(a.key_floats));
        }
        const int padded = (some + CELLS_AT_ONCE - 1) / CELLS_AT_ONCE * CELLS_AT_ONCE;
        for (int c = 0; c < padded; c++) {
            of[c] = keys + (cell + number[c < some ? c : some - 1]) * a.key_bytes[0];
            if (!HALVES) {
                in_floats(of[c], rows + c * a.key_width, a.key_width, a.key_floats);
                of[c] = (const uint8_t *) (rows + c * a.key_width);
            }
        }
        for (int c = 0; c < padded; c += CELLS_AT_ONCE) {
            score_cells<HEADS, HALVES>(a, queries, of + c, scores + c);
        }
        alignas(64) float bias[ATTEND_CELLS];
        for (int c = 0; !flat && c < some; c++) {
            bias[c] = _cvtsh_ss(mask[cell + number[c]]);
        }
        float shrink[HEADS];
        for (int h = 0; h < HEADS; h++) {
            Floats largest = all(most[h]);
            float * mine = scores + h * ATTEND_CELLS;
            for (int c = 0; c < some; c += AT_ONCE) {
                Floats score = times(load(mine + c), all(a.scale));
                if (a.softcap != 0.0f) {
                    score = times(bounded(score), all(a.softcap));
                }
                if (!flat) {
                    score = fused(load(bias + c), all(slopes[h]), score);
                }
                score = first_lanes(score, some - c);  // what lies behind was not computed
                largest = larger(score, largest);
                store(mine + c, score);
            }
            const float now = largest_of(largest);
            Floats sum = none();
            for (int c = 0; c < some; c += AT_ONCE) {
                const Floats part = exponential(less(load(mine + c), all(now)));
                sum = added(sum, part);
                store(mine + c, part);
            }
            shrink[h] = first_of(exponential(all(most[h] - now)));
            total[h] = total[h] * shrink[h] + sum_of(sum);
            most[h] = now;
        }
        for (int c = 0; c < some; c++) {
            of[c] = values + (cell + number[c]) * a.value_bytes[0];
            if (!HALVES) {
                in_floats(of[c], rows + c * a.value_width, a.value_width, a.value_floats);
                of[c] = (const uint8_t *) (rows + c * a.value_width);
            }
        }
        weigh_cells<HEADS, HALVES>(a, of, some, scores, shrink, out);
    }
    for (int h = 0; h < HEADS; h++) {
        out[HEADS * a.value_width + 2 * h] = most[h];
        out[HEADS * a.value_width + 2 * h + 1] = total[h];
    }
}

static int64_t row_floats(const Attention & a) {
    const int64_t widest = a.key_width > a.value_width ? a.key_width : a.value_width;
    return HEADS_AT_ONCE * ATTEND_CELLS + ATTEND_CELLS * widest;
}

template <int HEADS>
static void attend_some(const Attention & a, int64_t stream, int64_t head, int64_t position, int64_t from, int64_t to,
                        float * memory, float * out) {
    const int64_t key_head = head / (a.heads / a.key_heads);
    const float * queries = (const float *) (a.queries + position * a.query_bytes[0] + head * a.query_bytes[1] +
                                             stream * a.query_bytes[2]);
    const uint8_t * keys = a.keys + key_head * a.key_bytes[1] + stream * a.key_bytes[2];
    const uint8_t * values = a.values + key_head * a.value_bytes[1] + stream * a.value_bytes[2];
    const uint16_t * mask = a.mask ? a.mask_row(stream, position) : nullptr;
    float slopes[HEADS];
    for (int h = 0; h < HEADS; h++) {
        slopes[h] = a.slope(head + h);
    }
    (a.key_floats || a.value_floats ? attend_heads<HEADS, false> : attend_heads<HEADS, true>)(
        a, queries, keys, values, mask, slopes, from, to, memory, out);
}

// `count` heads from `head` on that share keys, at most HEADS_AT_ONCE.
static void attend_row(const Attention & a, int64_t stream, int64_t head, int count, int64_t position, int64_t from,
                       int64_t to, float * memory, float * out) {
    switch (count) {
        case 1: attend_some<1>(a, stream, head, position, from, to, memory, out); break;
        case 2: attend_some<2>(a, stream, head, position, from, to, memory, out); break;
        case 3: attend_some<3>(a, stream, head, position, from, to, memory, out); break;
        default: attend_some<4>(a, stream, head, position, from, to, memory, out);
    }
}

// How many cells positions [from, to) see, all added up, and how many tiles of cells somebody of them sees.
static Seen seen_by(const Attention & a, int64_t stream, int64_t from, int64_t to) {
    Seen found = {0, 0};
    for (int64_t cell = 0; cell < a.cells; cell += ATTEND_CELLS) {
        const int count = int(a.cells - cell < ATTEND_CELLS ? a.cells - cell : ATTEND_CELLS);
        int64_t cells = 0;
        for (int64_t p = from; p < to; p++) {
            bool flat = true;
            cells += a.mask ? __builtin_popcountll(seen_cells(a.mask_row(stream, p) + cell, count, &flat)) : count;
        }
        found.cells += cells;
        found.tiles += cells > 0;
    }
    return found;
}
