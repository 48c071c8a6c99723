// Tiles of 32 rows and 6 columns with AVX-512 and VNNI.
#include "tiles.h"

#include <immintrin.h>
#include <string.h>

namespace tiles {
namespace {

constexpr int AT_ONCE = 16, VECTORS = 2, ROWS = AT_ONCE * VECTORS, COLS = 6, GROUPS = 8, WIDEST = 255;
using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;
using Dots = __m512i;

inline Floats none() { return _mm512_setzero_ps(); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float * p) { return _mm512_load_ps(p); }
inline Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats as_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints begin(int x) { return _mm512_set1_epi32(x); }
inline Bytes load_bytes(const uint8_t * p) { return _mm512_load_si512(p); }
inline Dots opened(Ints sum) { return sum; }
inline Dots dot(Dots sum, Bytes weights, Bytes values) { return _mm512_dpbusd_epi32(sum, weights, values); }
inline Ints closed(Ints, Dots sum) { return sum; }

inline Bytes four_values(const int8_t * p) {
    int32_t four;
    memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
}

inline __mmask16 existing(int64_t rows, int v) {
    const int64_t left = rows - v * AT_ONCE;
    return left >= AT_ONCE ? 0xffff : left <= 0 ? 0 : __mmask16((1u << left) - 1);
}

inline Floats load_rows(const float * p, int64_t rows, int v) {
    return _mm512_maskz_loadu_ps(existing(rows, v), p + v * AT_ONCE);
}

inline void store_rows(float * p, int64_t rows, int v, Floats x) {
    _mm512_mask_storeu_ps(p + v * AT_ONCE, existing(rows, v), x);
}

#include "formats.h"
#include "kernel.h"

}  // namespace

const Kernels & avx512() {
    static const Kernels kernels = {"AVX-512 VNNI", ROWS, format_of, quantize_column, part};
    return kernels;
}

}  // namespace tiles
