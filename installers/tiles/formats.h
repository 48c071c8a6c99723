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

// ids: enum ggml_type
static const Format FORMATS[] = {
    {2, 18, 8, false, 15, 8, q4_0},
    {3, 20, 0, true, 15, 4, q4_1},
    {6, 22, 16, false, 31, 5, q5_0},
    {7, 24, 0, true, 31, 4, q5_1},
    {8, 34, 128, false, 255, 5, q8_0},
};
