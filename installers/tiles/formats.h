// From the blocks of a file to bytes: one function a type. Included by each instruction set's file, inside an
// unnamed namespace. Layouts of blocks: ggml-common.h.

static inline __m256i nibbles(const uint8_t * p) {
    const __m128i both = _mm_loadu_si128((const __m128i *) p);
    const __m256i apart = _mm256_set_m128i(_mm_srli_epi16(both, 4), both);
    return _mm256_and_si256(apart, _mm256_set1_epi8(15));
}

// 16 in every byte whose bit is set.
static inline __m256i fifth_bits(const uint8_t * p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof(bits));
    const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i mine = _mm256_set1_epi64x((long long) 0x8040201008040201);
    const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int) bits), spread), mine);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bytes, mine), _mm256_set1_epi8(16));
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

// Eight rows' numbers of 6 bits as floats: scales, and what is taken off.
static inline __m256 small_numbers(uint32_t low, uint32_t high) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_set_epi64x(0, (int64_t) ((uint64_t) high << 32 | low))));
}

// 8 bytes of each of eight rows: low nibbles to `bytes`, high ones `apart` behind them, fours of values of a row beside
// those of the next. `flip` is exclusive-ored to each.
static inline void put_interleaved(const uint8_t * q, int flip, uint8_t * bytes, size_t apart, int rows) {
    const __m256i low = _mm256_set1_epi8(15), flipped = _mm256_set1_epi8((char) flip);
    const __m256 one = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *) q));
    const __m256 other = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *) (q + 32)));
    for (int half = 0; half < 2; half++, bytes += 4 * size_t(rows)) {
        const __m256 mixed = half ? _mm256_shuffle_ps(one, other, 0xdd) : _mm256_shuffle_ps(one, other, 0x88);
        const __m256i fours = _mm256_permute4x64_epi64(_mm256_castps_si256(mixed), 0xd8);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(fours, 4), low);
        _mm256_store_si256((__m256i *) bytes, _mm256_xor_si256(_mm256_and_si256(fours, low), flipped));
        _mm256_store_si256((__m256i *) (bytes + apart), _mm256_xor_si256(high, flipped));
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
        const __m256 off = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p + 16)));
        for (int b = 0; b < BLOCKS; b++) {
            uint32_t packed[3];
            memcpy(packed, p + 32 + 12 * b, sizeof(packed));
            const __m256 by = small_numbers(packed[0] & 0x3f3f3f3f,
                                            (packed[2] & 0x0f0f0f0f) | (packed[0] >> 2 & 0x30303030));
            const __m256 less = small_numbers(packed[1] & 0x3f3f3f3f,
                                              (packed[2] >> 4 & 0x0f0f0f0f) | (packed[1] >> 2 & 0x30303030));
            _mm256_store_ps(scale + (first + b) * rows, _mm256_mul_ps(d, by));
            _mm256_store_ps(least + (first + b) * rows, _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(off, less)));
        }
        for (int chunk = 0; chunk < 16; chunk++) {
            const size_t at = size_t(first + chunk / 4 * 2) * BLOCK + 8 * size_t(chunk % 4);
            put_interleaved(p + 128 + 64 * chunk, 0, bytes + at * rows, size_t(BLOCK) * rows, rows);
        }
    }
}

// Blocks of eight rows in one: their scales, then 8 bytes of one row after the other, 8 less in every nibble.
// Source: ggml-cpu/repack.cpp, make_block_q4_0x8.
static void q4_0_rewritten(const uint8_t * const * of, int count, int rows, uint8_t * bytes, float * scale, float *) {
    constexpr int SIZE = 8 * 18;
    const uint8_t * p = of[0];
    for (int b = 0; b < count; b++, p += SIZE) {
        _mm256_store_ps(scale + b * rows, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)));
        for (int chunk = 0; chunk < 2; chunk++) {
            const size_t at = size_t(b) * BLOCK + 8 * size_t(chunk);
            put_interleaved(p + 16 + 64 * chunk, 8, bytes + at * rows, size_t(BLOCK) / 2 * rows, rows);
        }
    }
}

// ids: enum ggml_type
static const Format FORMATS[] = {
    {2, 18, 8, false, 15, 0, 8, q4_0},
    {3, 20, 0, true, 15, 0, 4, q4_1},
    {6, 22, 16, false, 31, 0, 5, q5_0},
    {7, 24, 0, true, 31, 0, 4, q5_1},
    {8, 34, 128, false, 255, 0, 5, q8_0},
    {2, 18, 8, false, 15, 1, 6, q4_0_rewritten},
    {12, 18, 0, true, 15, 8, 6, q4_k_rewritten},
};
