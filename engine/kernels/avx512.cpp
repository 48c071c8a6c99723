// Tiles of 32 rows and 6 columns with AVX-512 and VNNI; 4 columns of two scales a block stay in registers.
#include "tiles.h"

#include <immintrin.h>
#include <string.h>

// Tables of values.
#define GGML_COMMON_DECL_C
#define GGML_COMMON_IMPL_C
#include "ggml-common.h"

namespace tiles {
namespace {

constexpr int AT_ONCE = 16, VECTORS = 2, ROWS = AT_ONCE * VECTORS, COLS = 6, COLS_OF_HALVES = 4;
constexpr int GROUPS = 8, WIDEST = 255, GROUPS_OF_HALVES = 4, WIDEST_OF_HALVES = 255;
constexpr int ATTEND_VECTORS = 3, ATTEND_COLS = 8;
using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;
using Dots = __m512i;

inline Floats none() { return _mm512_setzero_ps(); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float * p) { return _mm512_load_ps(p); }
inline Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats added(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats less(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline void store(float * p, Floats x) { _mm512_store_ps(p, x); }
inline Floats divided(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats magnitude(Floats x) { return _mm512_andnot_ps(all(-0.0f), x); }
inline Floats signed_like(Floats x, Floats y) { return _mm512_or_ps(x, _mm512_and_ps(all(-0.0f), y)); }
inline Floats whole(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats times_two_to(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
inline Floats zero_below(Floats x, Floats of, Floats least) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(of, least, _CMP_NLT_UQ), x);
}
inline Floats load_any(const float * p) { return _mm512_loadu_ps(p); }
inline Floats load_halves(const uint16_t * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
inline void store_any(float * p, Floats x) { _mm512_storeu_ps(p, x); }
inline float first_of(Floats x) { return _mm512_cvtss_f32(x); }
inline float largest_of(Floats x) { return _mm512_reduce_max_ps(x); }
inline float sum_of(Floats x) { return _mm512_reduce_add_ps(x); }

inline Floats first_lanes(Floats x, int count) {
    const __mmask16 there = count >= AT_ONCE ? 0xffff : __mmask16((1u << count) - 1);
    return _mm512_mask_mov_ps(all(-__builtin_inff()), there, x);
}

inline __m128 four_sums(Floats a, Floats b, Floats c, Floats d) {
    const Floats ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const Floats cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    Floats each = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    each = _mm512_add_ps(each, _mm512_permute_ps(each, 0x4e));
    each = _mm512_add_ps(each, _mm512_permute_ps(each, 0xb1));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), each));
}

inline Floats as_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints begin(int x) { return _mm512_set1_epi32(x); }
inline Bytes load_bytes(const uint8_t * p) { return _mm512_load_si512(p); }
inline Dots opened(Ints sum) { return sum; }
inline Dots dot(Dots sum, Bytes weights, Bytes values) { return _mm512_dpbusd_epi32(sum, weights, values); }
inline Ints closed(Ints, Dots sum) { return sum; }

// No byte is too wide.
inline Bytes without_zero(Bytes weights, int) { return weights; }
inline Ints dot_signed(Ints sum, Bytes, Bytes) { return sum; }

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
#include "exponential.h"
#include "rows.h"
#include "strips.h"

}  // namespace

const Kernels & avx512() {
    static const Kernels kernels = {"AVX-512 VNNI", ROWS, format_of, quantize_column, part,
                                    STRIP, seen_by, row_floats, attend_row, strip_floats, attend_strips};
    return kernels;
}

}  // namespace tiles
