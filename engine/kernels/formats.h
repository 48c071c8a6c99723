// From the blocks of a file to bytes: one function a type. Included by each instruction set's file, inside an
// unnamed namespace. Layouts of blocks: ggml-common.h.

static inline __m256i nibbles(const uint8_t * p) {
    const __m128i both = _mm_loadu_si128((const __m128i *) p);
    const __m256i apart = _mm256_set_m128i(_mm_srli_epi16(both, 4), both);
    return _mm256_and_si256(apart, _mm256_set1_epi8(15));
}

// All ones in every byte whose bit is set.
static inline __m256i spread_bits(uint32_t bits) {
    const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i mine = _mm256_set1_epi64x((long long) 0x8040201008040201);
    const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int) bits), spread), mine);
    return _mm256_cmpeq_epi8(bytes, mine);
}

static inline uint32_t four_bytes(const uint8_t * p) {
    uint32_t found;
    memcpy(&found, p, sizeof(found));
    return found;
}

// 16 in every byte whose bit is set.
static inline __m256i fifth_bits(const uint8_t * p) {
    return _mm256_and_si256(spread_bits(four_bytes(p)), _mm256_set1_epi8(16));
}

// Eight rows of eight fours each, written so that four values of a row lie beside those of the next row.
static inline void put(const __m256i * of, uint8_t * bytes, int rows) {
    __m256i pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_epi32(of[i], of[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(of[i], of[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int half = 0; half < 2; half++) {
            fours[i + 2 * half] = _mm256_unpacklo_epi64(pairs[i + half], pairs[i + 2 + half]);
            fours[i + 2 * half + 1] = _mm256_unpackhi_epi64(pairs[i + half], pairs[i + 2 + half]);
        }
    }
    for (int group = 0; group < 4; group++) {
        const __m256i low = _mm256_permute2x128_si256(fours[group], fours[group + 4], 0x20);
        const __m256i high = _mm256_permute2x128_si256(fours[group], fours[group + 4], 0x31);
        _mm256_store_si256((__m256i *) (bytes + size_t(group) * rows * 4), low);
        _mm256_store_si256((__m256i *) (bytes + size_t(group + 4) * rows * 4), high);
    }
}

static inline void put_floats(const __m256 * of, float * out, int rows) {
    __m256i bits[8];
    for (int i = 0; i < 8; i++) {
        bits[i] = _mm256_castps_si256(of[i]);
    }
    put(bits, (uint8_t *) out, rows);
}

// Numbers of 16 bits as eight rows have them at the same place.
static inline __m256 halves(const uint8_t * const * rows, size_t at) {
    alignas(16) uint16_t bits[8];
    for (int i = 0; i < 8; i++) {
        memcpy(&bits[i], rows[i] + at, sizeof(bits[i]));
    }
    return _mm256_cvtph_ps(_mm_load_si128((const __m128i *) bits));
}

// Blocks of SIZE bytes, each at `p` in its turn.
#define DECODER(name, SIZE, HAS_LEAST, VALUES)                                                                 \
    static void name(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale,          \
                     float * least) {                                                                          \
        for (int b = 0; b < count; b++) {                                                                      \
            __m256i values[8];                                                                                 \
            for (int i = 0; i < 8; i++) {                                                                      \
                const uint8_t * p = of[i] + b * SIZE;                                                          \
                values[i] = VALUES;                                                                            \
            }                                                                                                  \
            put(values, bytes + size_t(b) * BLOCK * rows, rows);                                               \
            _mm256_store_ps(scale + b * rows, halves(of, b * SIZE));                                           \
            if (HAS_LEAST) {                                                                                   \
                _mm256_store_ps(least + b * rows, halves(of, b * SIZE + 2));                                   \
            }                                                                                                  \
        }                                                                                                      \
    }

DECODER(q4_0, 18, false, nibbles(p + 2))
DECODER(q4_1, 20, true, nibbles(p + 4))
DECODER(q5_0, 22, false, _mm256_or_si256(nibbles(p + 6), fifth_bits(p + 2)))
DECODER(q5_1, 24, true, _mm256_or_si256(nibbles(p + 8), fifth_bits(p + 4)))
DECODER(q8_0, 34, false,
        _mm256_xor_si256(_mm256_loadu_si256((const __m256i *) (p + 2)), _mm256_set1_epi8((char) 128)))

static inline __m256i eight_bytes(uint32_t low, uint32_t high) {
    return _mm256_cvtepu8_epi32(_mm_set_epi64x(0, (int64_t) ((uint64_t) high << 32 | low)));
}

// Eight scales and eight least ones in 6 bits, of which 12 bytes hold the low four (or all six) and the high two apart.
static inline void six_bits(const uint8_t * p, __m256i * scale, __m256i * least) {
    uint32_t packed[3];
    memcpy(packed, p, sizeof(packed));
    *scale = eight_bytes(packed[0] & 0x3f3f3f3f, (packed[2] & 0x0f0f0f0f) | (packed[0] >> 2 & 0x30303030));
    *least = eight_bytes(packed[1] & 0x3f3f3f3f, (packed[2] >> 4 & 0x0f0f0f0f) | (packed[1] >> 2 & 0x30303030));
}

static inline __m256 scaled(__m256 d, __m256i by) { return _mm256_mul_ps(d, _mm256_cvtepi32_ps(by)); }
static inline __m256 negative(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }

// Bytes that nibbles stand for: themselves, 8 more modulo 16, the values of IQ4_NL and IQ4_XS plus 128, and those of
// FP4 plus 12. Source: ggml-common.h, kvalues_iq4nl, kvalues_fp4.
alignas(16) static const uint8_t PLAIN[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(16) static const uint8_t FLIPPED[16] = {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7};
alignas(16) static const uint8_t NONLINEAR[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) static const uint8_t FP4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

static inline __m256i meanings(const uint8_t * of) {
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *) of));
}

// 8 bytes of each of eight rows: what low nibbles stand for to `bytes`, high ones `apart` behind them, fours of values
// of a row beside those of the next.
static inline void put_interleaved(const uint8_t * q, __m256i meant, uint8_t * bytes, size_t apart, int rows) {
    const __m256i low = _mm256_set1_epi8(15);
    const __m256 one = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *) q));
    const __m256 other = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *) (q + 32)));
    for (int half = 0; half < 2; half++, bytes += 4 * size_t(rows)) {
        const __m256 mixed = half ? _mm256_shuffle_ps(one, other, 0xdd) : _mm256_shuffle_ps(one, other, 0x88);
        const __m256i fours = _mm256_permute4x64_epi64(_mm256_castps_si256(mixed), 0xd8);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(fours, 4), low);
        _mm256_store_si256((__m256i *) bytes, _mm256_shuffle_epi8(meant, _mm256_and_si256(fours, low)));
        _mm256_store_si256((__m256i *) (bytes + apart), _mm256_shuffle_epi8(meant, high));
    }
}

// Superblocks of 256 values of eight rows, as llama.cpp interleaves them for its own kernels: 8 scales and 8 least ones
// in 16 bits, for each block of 32 both again in 6 bits, then 8 bytes (two nibbles each) of one row after the other.
// Source: ggml-cpu/repack.cpp, make_block_q4_Kx8; tests compare products with what ggml makes of the same weights.
static void q4_k_rewritten(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale,
                           float * least) {
    constexpr int BLOCKS = 8, SIZE = 8 * 144;
    const uint8_t * p = of[0];
    for (int first = 0; first < count; first += BLOCKS, p += SIZE) {
        const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
        const __m256 off = negative(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p + 16))));
        for (int b = 0; b < BLOCKS; b++) {
            __m256i by, less;
            six_bits(p + 32 + 12 * b, &by, &less);
            _mm256_store_ps(scale + (first + b) * rows, scaled(d, by));
            _mm256_store_ps(least + (first + b) * rows, scaled(off, less));
        }
        for (int chunk = 0; chunk < 16; chunk++) {
            const size_t at = size_t(first + chunk / 4 * 2) * BLOCK + 8 * size_t(chunk % 4);
            put_interleaved(p + 128 + 64 * chunk, meanings(PLAIN), bytes + at * rows, size_t(BLOCK) * rows, rows);
        }
    }
}

// Blocks of eight rows in one: their scales, then 8 bytes of one row after the other.
static inline void put_rewritten(const uint8_t * q, const uint8_t * meant, uint8_t * bytes, int rows) {
    for (int chunk = 0; chunk < 2; chunk++) {
        put_interleaved(q + 64 * chunk, meanings(meant), bytes + 8 * size_t(chunk) * rows, size_t(BLOCK) / 2 * rows, rows);
    }
}

// Nibbles are 8 less. Source: ggml-cpu/repack.cpp, make_block_q4_0x8.
static void q4_0_rewritten(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float *) {
    const uint8_t * p = of[0];
    for (int b = 0; b < count; b++, p += 8 * 18) {
        _mm256_store_ps(scale + b * rows, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)));
        put_rewritten(p + 16, FLIPPED, bytes + size_t(b) * BLOCK * rows, rows);
    }
}

// Source: ggml-cpu/repack.cpp, make_block_iq4_nlx8.
static void iq4_nl_rewritten(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float *) {
    const uint8_t * p = of[0];
    for (int b = 0; b < count; b++, p += 8 * 18) {
        _mm256_store_ps(scale + b * rows, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)));
        put_rewritten(p + 16, NONLINEAR, bytes + size_t(b) * BLOCK * rows, rows);
    }
}

// Scales are powers of two, half of what their exponent says. Source: ggml-cpu/repack.cpp, make_block_mxfp4x8;
// ggml-impl.h, ggml_e8m0_to_fp32_half.
static void mxfp4_rewritten(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float *) {
    const uint8_t * p = of[0];
    for (int b = 0; b < count; b++, p += 8 * 17) {
        const __m256i exponent = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p));
        const __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)), 23);
        const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
        const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponent);
        _mm256_store_ps(scale + b * rows, _mm256_castsi256_ps(_mm256_blendv_epi8(usual, small, is_small)));
        put_rewritten(p + 8, FP4, bytes + size_t(b) * BLOCK * rows, rows);
    }
}

// Superblocks of 256 values, one row after the other: of a row `scales_of` computes the scales of eight blocks, and what
// else they have beside them, `values_of` the values of one block.
template <size_t SIZE, bool HAS_LEAST, typename Scales, typename Values>
static inline void put_superblocks(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale,
                                   float * least, Scales scales_of, Values values_of) {
    for (int first = 0; first < count; first += 8) {
        const size_t at = size_t(first / 8) * SIZE;
        __m256 by[8], less[8];
        for (int i = 0; i < 8; i++) {
            scales_of(of[i] + at, by[i], less[i]);
        }
        put_floats(by, scale + first * rows, rows);
        if constexpr (HAS_LEAST) {
            put_floats(less, least + first * rows, rows);
        }
        for (int b = 0; b < 8; b++) {
            __m256i values[8];
            for (int i = 0; i < 8; i++) {
                values[i] = values_of(of[i] + at, b);
            }
            put(values, bytes + size_t(first + b) * BLOCK * rows, rows);
        }
    }
}

static inline __m256 half_at(const uint8_t * p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof(bits));
    return _mm256_set1_ps(_cvtsh_ss(bits));
}

static inline __m256i shifted(const uint8_t * p, int right, int mask) {
    const __m256i moved = _mm256_srl_epi16(_mm256_loadu_si256((const __m256i *) p), _mm_cvtsi32_si128(right));
    return _mm256_and_si256(moved, _mm256_set1_epi8((char) mask));
}

static inline __m256i eight_nibbles(const uint8_t * p) {
    const __m256i apart = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int) four_bytes(p)), apart), _mm256_set1_epi32(15));
}

// Odd numbers, of which half is stored.
static inline __m256i odd(__m256i half) { return _mm256_add_epi32(_mm256_add_epi32(half, half), _mm256_set1_epi32(1)); }

// 16 numbers with a sign: those of first halves of blocks, each before that of the second half.
static inline void scaled_halves(__m256 d, __m128i numbers, __m256 & by, __m256 & less) {
    by = scaled(d, _mm256_cvtepi16_epi32(_mm_srai_epi16(_mm_slli_epi16(numbers, 8), 8)));
    less = scaled(d, _mm256_cvtepi16_epi32(_mm_srai_epi16(numbers, 8)));
}

// Scale and least one in 16 bits, 12 bytes for those of the blocks, high bits (a bit a block) of 32 places, nibbles.
static void q5_k(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float * least) {
    put_superblocks<176, true>(
        of, count, rows, bytes, scale, least,
        [](const uint8_t * p, __m256 & by, __m256 & less) {
            __m256i scales, offsets;
            six_bits(p + 4, &scales, &offsets);
            by = scaled(half_at(p), scales);
            less = scaled(negative(half_at(p + 2)), offsets);
        },
        [](const uint8_t * p, int b) {
            const __m256i high = _mm256_slli_epi16(shifted(p + 16, b, 1), 4);
            return _mm256_or_si256(shifted(p + 48 + b / 2 * 32, b % 2 * 4, 15), high);
        });
}

// Nibbles of 4 times 32 values in each half, two bits of four times 32 beside each other, a scale in 8 bits for each 16.
static void q6_k(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float * least) {
    put_superblocks<210, true>(
        of, count, rows, bytes, scale, least,
        [](const uint8_t * p, __m256 & by, __m256 & less) {
            scaled_halves(half_at(p + 208), _mm_loadu_si128((const __m128i *) (p + 192)), by, less);
        },
        [](const uint8_t * p, int b) {
            const __m256i high = _mm256_slli_epi16(shifted(p + 128 + b / 4 * 32, b % 4 * 2, 3), 4);
            return _mm256_or_si256(shifted(p + b / 4 * 64 + b % 2 * 32, b % 4 / 2 * 4, 15), high);
        });
}

// A high bit (a bit a block) of 32 places, two bits of four times 32 values beside each other in each half, 16 scales in
// 6 bits: low nibbles in 8 bytes, high two bits in 4.
static void q3_k(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float * least) {
    put_superblocks<110, true>(
        of, count, rows, bytes, scale, least,
        [](const uint8_t * p, __m256 & by, __m256 & less) {
            const uint32_t one = four_bytes(p + 96), other = four_bytes(p + 100), two = four_bytes(p + 104);
            const __m128i low = _mm_setr_epi32((int) one, (int) other, (int) (one >> 4), (int) (other >> 4));
            const __m128i high = _mm_setr_epi32((int) two, (int) (two >> 2), (int) (two >> 4), (int) (two >> 6));
            const __m128i six = _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)),
                                             _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4));
            scaled_halves(half_at(p + 108), _mm_sub_epi8(six, _mm_set1_epi8(32)), by, less);
        },
        [](const uint8_t * p, int b) {
            const __m256i high = _mm256_slli_epi16(shifted(p, b, 1), 2);
            return _mm256_or_si256(shifted(p + 32 + b / 4 * 32, b % 4 * 2, 3), high);
        });
}

// Scale in 16 bits, the high two bits of the blocks' scales in 16, their low nibbles in 4 bytes, then nibbles that stand
// for sixteen values.
static void iq4_xs(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float *) {
    put_superblocks<136, false>(
        of, count, rows, bytes, scale, nullptr,
        [](const uint8_t * p, __m256 & by, __m256 &) {
            const __m256i apart = _mm256_setr_epi32(16, 18, 20, 22, 24, 26, 28, 30);
            const __m256i pairs = _mm256_srlv_epi32(_mm256_set1_epi32((int) four_bytes(p)), apart);
            const __m256i high = _mm256_slli_epi32(_mm256_and_si256(pairs, _mm256_set1_epi32(3)), 4);
            const __m256i six = _mm256_or_si256(eight_nibbles(p + 4), high);
            by = scaled(half_at(p), _mm256_sub_epi32(six, _mm256_set1_epi32(32)));
        },
        [meant = meanings(NONLINEAR)](const uint8_t * p, int b) {
            return _mm256_shuffle_epi8(meant, nibbles(p + 8 + 16 * b));
        });
}

// Fours of magnitudes from a table, below zero where a sign's bit is set, plus `zero`.
static inline __m256i signed_fours(const uint32_t * table, const uint8_t * index, uint32_t ninth, uint32_t signs, int zero) {
    const auto four = [&](int i) { return (int) table[index[i] | (ninth >> i & 1) << 8]; };
    const __m256i values = _mm256_setr_epi32(four(0), four(1), four(2), four(3), four(4), four(5), four(6), four(7));
    const __m256i below = spread_bits(signs);
    return _mm256_add_epi8(_mm256_sub_epi8(_mm256_xor_si256(values, below), below), _mm256_set1_epi8((char) zero));
}

// Scale in 16 bits, an index for each four values, then for each block four times 7 signs, of which an even number is
// set with the eighth, and a scale in 4 bits.
static void iq3_xxs(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float *) {
    put_superblocks<98, false>(
        of, count, rows, bytes, scale, nullptr,
        [](const uint8_t * p, __m256 & by, __m256 &) {
            const __m256i last = _mm256_srli_epi32(_mm256_loadu_si256((const __m256i *) (p + 66)), 28);
            by = scaled(_mm256_mul_ps(half_at(p), _mm256_set1_ps(0.25f)), odd(last));
        },
        [](const uint8_t * p, int b) {
            const uint32_t packed = four_bytes(p + 66 + 4 * b);
            uint32_t signs = 0;
            for (int j = 0; j < 4; j++) {
                const uint32_t seven = packed >> 7 * j & 127;
                signs |= (seven | (uint32_t) __builtin_parity(seven) << 7) << 8 * j;
            }
            return signed_fours(iq3xxs_grid, p + 2 + 8 * b, 0, signs, 64);
        });
}

// Scale in 16 bits, an index for each four values, the ninth bits of those of a block in a byte, a sign for each value, a
// scale of a block in 4 bits.
static void iq3_s(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float *) {
    put_superblocks<110, false>(
        of, count, rows, bytes, scale, nullptr,
        [](const uint8_t * p, __m256 & by, __m256 &) { by = scaled(half_at(p), odd(eight_nibbles(p + 106))); },
        [](const uint8_t * p, int b) {
            return signed_fours(iq3s_grid, p + 2 + 8 * b, p[66 + b], four_bytes(p + 74 + 4 * b), 16);
        });
}

// ids: enum ggml_type
static const Format FORMATS[] = {
    {2, 18, 1, Weight::ZERO, 8, 15, false, 8, q4_0},
    {3, 20, 1, Weight::LEAST, 0, 15, false, 4, q4_1},
    {6, 22, 1, Weight::ZERO, 16, 31, false, 5, q5_0},
    {7, 24, 1, Weight::LEAST, 0, 31, false, 4, q5_1},
    {8, 34, 1, Weight::ZERO, 128, 255, false, 5, q8_0},
    {11, 110, 8, Weight::HALVES, 4, 7, false, 5, q3_k},
    {13, 176, 8, Weight::LEAST, 0, 31, false, 4, q5_k},
    {14, 210, 8, Weight::HALVES, 32, 63, false, 8, q6_k},
    {18, 98, 8, Weight::ZERO, 64, 126, false, 8, iq3_xxs},
    {21, 110, 8, Weight::ZERO, 16, 31, false, 8, iq3_s},
    {23, 136, 8, Weight::ZERO, 128, 241, false, 4, iq4_xs},
    {2, 18, 1, Weight::ZERO, 8, 15, true, 6, q4_0_rewritten},
    {12, 144, 8, Weight::LEAST, 0, 15, true, 6, q4_k_rewritten},
    {20, 18, 1, Weight::ZERO, 128, 241, true, 6, iq4_nl_rewritten},
    {39, 17, 1, Weight::ZERO, 12, 24, true, 6, mxfp4_rewritten},
};
