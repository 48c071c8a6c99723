// Attention of rows that see the same cells: prompts. Written once for all instruction sets; included inside an
// unnamed namespace after the file has defined AT_ONCE, its vectors of floats and their operations. Queries lie beside
// each other in the lanes of vectors (a strip), so that a product takes one cell's or one value's number for all of
// them, and the softmax needs no sum across a vector. What a row's lane computes depends on its cells alone: not on
// threads, nor on the lanes beside it.

constexpr int STRIP = AT_ONCE * ATTEND_VECTORS;

// Adds to sums[.][j] the lanes[k] times numbers[k * by_k + j * by_j], for k from `from` to `to`.
template <int N>
static inline void multiplied(Floats (&sums)[ATTEND_VECTORS][N], const float * lanes, const float * numbers, int from,
                              int to, int64_t by_k, int64_t by_j) {
    for (int k = from; k < to; k++) {
        Floats of[ATTEND_VECTORS];
        for (int v = 0; v < ATTEND_VECTORS; v++) {
            of[v] = load(lanes + k * STRIP + v * AT_ONCE);
        }
        for (int j = 0; j < N; j++) {
            const Floats number = all(numbers[k * by_k + j * by_j]);
            for (int v = 0; v < ATTEND_VECTORS; v++) {
                sums[v][j] = fused(of[v], number, sums[v][j]);
            }
        }
    }
}

// The rows of the cells that anybody sees as floats, the others as zeros: what nobody sees may be no number.
static inline void unpack(const uint8_t * data, int64_t row_bytes, int64_t width, FloatsOf to_floats, uint64_t seen,
                          float * out) {
    for (int c = 0; c < ATTEND_CELLS; c++, out += width) {
        const uint8_t * row = data + c * row_bytes;
        if (!(seen >> c & 1)) {
            memset(out, 0, sizeof(float) * width);
        } else {
            in_floats(row, out, width, to_floats);
        }
    }
}

struct Strip {
    float * queries;  // [key width][STRIP]
    float * out;      // [value width][STRIP]
    float * most;     // [STRIP]: the largest score
    float * total;    // [STRIP]: sum of exponentials
    float * slopes;   // [STRIP]: what the mask is multiplied by
};

// One strip and one tile of cells. `mask`: [cells][STRIP] or null. `seen`: cells that somebody in the strip sees.
static void attend_tile(const Attention & a, const Strip & strip, const float * keys, const float * values,
                        const float * mask, uint64_t seen, float * scores) {
    Floats most[ATTEND_VECTORS], before[ATTEND_VECTORS], total[ATTEND_VECTORS];
    for (int v = 0; v < ATTEND_VECTORS; v++) {
        before[v] = most[v] = load(strip.most + v * AT_ONCE);
        total[v] = none();
    }
    const Floats scale = all(a.scale);
    for (int c = 0; c < ATTEND_CELLS; c += ATTEND_COLS) {
        if (!(seen >> c & ((1u << ATTEND_COLS) - 1))) {
            continue;
        }
        Floats sums[ATTEND_VECTORS][ATTEND_COLS];
        for (int j = 0; j < ATTEND_COLS; j++) {
            for (int v = 0; v < ATTEND_VECTORS; v++) {
                sums[v][j] = none();
            }
        }
        multiplied<ATTEND_COLS>(sums, strip.queries, keys + c * a.key_width, 0, int(a.key_width), 1, a.key_width);
        for (int j = 0; j < ATTEND_COLS; j++) {
            for (int v = 0; v < ATTEND_VECTORS; v++) {
                float * at = scores + (c + j) * STRIP + v * AT_ONCE;
                Floats score = times(sums[v][j], scale);
                if (a.softcap != 0.0f) {
                    score = times(bounded(score), all(a.softcap));
                }
                if (mask) {
                    score = fused(load(mask + (c + j) * STRIP + v * AT_ONCE), load(strip.slopes + v * AT_ONCE), score);
                }
                most[v] = larger(score, most[v]);
                store(at, score);
            }
        }
    }
    for (int v = 0; v < ATTEND_VECTORS; v++) {
        store(strip.most + v * AT_ONCE, most[v]);
    }
    for (int c = 0; c < ATTEND_CELLS; c += ATTEND_COLS) {
        if (!(seen >> c & ((1u << ATTEND_COLS) - 1))) {
            continue;
        }
        for (int j = 0; j < ATTEND_COLS; j++) {
            for (int v = 0; v < ATTEND_VECTORS; v++) {
                float * at = scores + (c + j) * STRIP + v * AT_ONCE;
                const Floats part = exponential(less(load(at), most[v]));
                total[v] = added(total[v], part);
                store(at, part);
            }
        }
    }
    Floats shrink[ATTEND_VECTORS];
    for (int v = 0; v < ATTEND_VECTORS; v++) {
        shrink[v] = exponential(less(before[v], most[v]));
        store(strip.total + v * AT_ONCE, fused(load(strip.total + v * AT_ONCE), shrink[v], total[v]));
    }
    for (int64_t d = 0; d < a.value_width; d += ATTEND_COLS) {
        Floats sums[ATTEND_VECTORS][ATTEND_COLS];
        for (int j = 0; j < ATTEND_COLS; j++) {
            for (int v = 0; v < ATTEND_VECTORS; v++) {
                sums[v][j] = times(load(strip.out + (d + j) * STRIP + v * AT_ONCE), shrink[v]);
            }
        }
        for (int c = 0; c < ATTEND_CELLS; c += ATTEND_COLS) {
            if (seen >> c & ((1u << ATTEND_COLS) - 1)) {
                multiplied<ATTEND_COLS>(sums, scores, values + d, c, c + ATTEND_COLS, a.value_width, 1);
            }
        }
        for (int j = 0; j < ATTEND_COLS; j++) {
            for (int v = 0; v < ATTEND_VECTORS; v++) {
                store(strip.out + (d + j) * STRIP + v * AT_ONCE, sums[v][j]);
            }
        }
    }
}

static int64_t strip_floats(const Attention & a) {
    return ATTEND_CELLS * (a.key_width + a.value_width + 2 * STRIP) +
           ATTEND_STRIPS * STRIP * (a.key_width + a.value_width + 3);
}

// All heads that share the keys of `head`, at positions [from, to) of `stream`: at most ATTEND_STRIPS strips of rows.
static void attend_strips(const Attention & a, int64_t stream, int64_t head, int64_t from, int64_t to, float * memory) {
    const int64_t group = a.heads / a.key_heads;
    const int64_t rows = (to - from) * group, strips = (rows + STRIP - 1) / STRIP;
    float * keys = memory;
    float * values = keys + ATTEND_CELLS * a.key_width;
    float * scores = values + ATTEND_CELLS * a.value_width;
    float * mask = scores + ATTEND_CELLS * STRIP;
    Strip strip[ATTEND_STRIPS];
    float * at = mask + ATTEND_CELLS * STRIP;
    for (int64_t s = 0; s < strips; s++) {
        strip[s].queries = at;
        strip[s].out = at + STRIP * a.key_width;
        strip[s].most = strip[s].out + STRIP * a.value_width;
        strip[s].total = strip[s].most + STRIP;
        strip[s].slopes = strip[s].total + STRIP;
        at = strip[s].slopes + STRIP;
        memset(strip[s].out, 0, sizeof(float) * STRIP * a.value_width);
        for (int64_t lane = 0; lane < STRIP; lane++) {
            const int64_t row = s * STRIP + lane;
            strip[s].most[lane] = FAR;
            strip[s].total[lane] = 0.0f;
            strip[s].slopes[lane] = row < rows ? a.slope(head * group + row % group) : 1.0f;
            const float * query = row >= rows ? nullptr
                : (const float *) (a.queries + (from + row / group) * a.query_bytes[0] +
                                   (head * group + row % group) * a.query_bytes[1] + stream * a.query_bytes[2]);
            for (int64_t k = 0; k < a.key_width; k++) {
                strip[s].queries[k * STRIP + lane] = query ? query[k] : 0.0f;
            }
        }
    }
    const uint8_t * all_keys = a.keys + head * a.key_bytes[1] + stream * a.key_bytes[2];
    const uint8_t * all_values = a.values + head * a.value_bytes[1] + stream * a.value_bytes[2];
    for (int64_t cell = 0; cell < a.cells; cell += ATTEND_CELLS) {
        const int count = int(a.cells - cell < ATTEND_CELLS ? a.cells - cell : ATTEND_CELLS);
        const uint64_t there = count == 64 ? ~(uint64_t) 0 : ((uint64_t) 1 << count) - 1;
        uint64_t any = 0, seen[ATTEND_STRIPS];
        bool plain[ATTEND_STRIPS];
        for (int64_t s = 0; s < strips; s++) {
            const int64_t first = from + s * STRIP / group;
            const int64_t last = from + ((s + 1) * STRIP < rows ? (s + 1) * STRIP - 1 : rows - 1) / group;
            uint64_t everybody = there;
            seen[s] = a.mask ? 0 : there;
            plain[s] = count == ATTEND_CELLS;
            for (int64_t p = first; a.mask && p <= last; p++) {
                const uint64_t these = seen_cells(a.mask_row(stream, p) + cell, count, &plain[s]);
                seen[s] |= these;
                everybody &= these;
            }
            plain[s] = plain[s] && everybody == there;
            any |= seen[s];
        }
        if (!any) {
            continue;
        }
        unpack(all_keys + cell * a.key_bytes[0], a.key_bytes[0], a.key_width, a.key_floats, any, keys);
        unpack(all_values + cell * a.value_bytes[0], a.value_bytes[0], a.value_width, a.value_floats, any, values);
        for (int64_t s = 0; s < strips; s++) {
            if (!seen[s]) {
                continue;
            }
            if (!plain[s]) {
                alignas(64) float row[ATTEND_CELLS];
                int64_t made = -1;
                for (int64_t lane = 0; lane < STRIP; lane++) {
                    const int64_t index = s * STRIP + lane < rows ? s * STRIP + lane : rows - 1;
                    const int64_t p = from + index / group;
                    for (int c = 0; made != p && c < ATTEND_CELLS; c++) {
                        row[c] = c >= count ? -__builtin_inff() : a.mask ? _cvtsh_ss(a.mask_row(stream, p)[cell + c]) : 0.0f;
                    }
                    made = p;
                    for (int c = 0; c < ATTEND_CELLS; c++) {
                        mask[c * STRIP + lane] = row[c];
                    }
                }
            }
            attend_tile(a, strip[s], keys, values, plain[s] ? nullptr : mask, seen[s], scores);
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        const Strip & of = strip[row / STRIP];
        const int64_t lane = row % STRIP, h = head * group + row % group;
        const float by = a.share(h, of.most[lane], of.total[lane]);
        float * out = a.out + ((stream * a.positions + from + row / group) * a.heads + h) * a.value_width;
        for (int64_t d = 0; d < a.value_width; d++) {
            out[d] = of.out[d * STRIP + lane] * by;
        }
    }
}
