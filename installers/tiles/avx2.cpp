// Tiles of 8 rows and 4 columns with AVX2. Eight products of bytes up to 31 by bytes up to 127 fit 16 bits, so
// those of four groups are added up there before they go into 32 bits. Wider bytes have no kernel here.
#include "tiles.h"

#include <immintrin.h>
#include <string.h>

namespace tiles {
namespace {

constexpr int AT_ONCE = 8, VECTORS = 1, ROWS = AT_ONCE * VECTORS, COLS = 4, GROUPS = 4, WIDEST = 31;
using Floats = __m256;
using Ints = __m256i;
using Bytes = __m256i;
using Dots = __m256i;

inline Floats none() { return _mm256_setzero_ps(); }
inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float * p) { return _mm256_load_ps(p); }
inline Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats as_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints begin(int x) { return _mm256_set1_epi32(x); }
inline Bytes load_bytes(const uint8_t * p) { return _mm256_load_si256((const __m256i *) p); }

inline Dots opened(Ints) { return _mm256_setzero_si256(); }

inline Dots dot(Dots sum, Bytes weights, Bytes values) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, values));
}

inline Ints closed(Ints before, Dots sum) {
    return _mm256_add_epi32(before, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

inline Bytes four_values(const int8_t * p) {
    int32_t four;
    memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
}

inline __m256i existing(int64_t rows, int v) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int64_t left = rows - v * AT_ONCE;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(left < AT_ONCE ? left : AT_ONCE)), index);
}

inline Floats load_rows(const float * p, int64_t rows, int v) {
    return _mm256_maskload_ps(p + v * AT_ONCE, existing(rows, v));
}

inline void store_rows(float * p, int64_t rows, int v, Floats x) {
    _mm256_maskstore_ps(p + v * AT_ONCE, existing(rows, v), x);
}

#include "formats.h"
#include "kernel.h"

}  // namespace

const Kernels & avx2() {
    static const Kernels kernels = {"AVX2", ROWS, format_of, quantize_column, part};
    return kernels;
}

}  // namespace tiles
