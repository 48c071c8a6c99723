// Tiles of 8 rows and 4 columns with AVX2. Eight products of bytes up to 31 by bytes up to 127 fit 16 bits, or four of
// bytes up to 63, so those of four or two groups are added up there before they go into 32 bits. Two products of wider
// ones fit too once their zero is taken off: 128 * 127 * 2 at most.
#include "tiles.h"

#include <immintrin.h>
#include <string.h>

// Tables of values.
#define GGML_COMMON_DECL_C
#define GGML_COMMON_IMPL_C
#include "ggml-common.h"

namespace tiles {
namespace {

constexpr int AT_ONCE = 8, VECTORS = 1, ROWS = AT_ONCE * VECTORS, COLS = 4, COLS_OF_HALVES = 4;
constexpr int GROUPS = 4, WIDEST = 31, GROUPS_OF_HALVES = 2, WIDEST_OF_HALVES = 63;
constexpr int ATTEND_VECTORS = 3, ATTEND_COLS = 4;
using Floats = __m256;
using Ints = __m256i;
using Bytes = __m256i;
using Dots = __m256i;

inline Floats none() { return _mm256_setzero_ps(); }
inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float * p) { return _mm256_load_ps(p); }
inline Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats added(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats less(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline void store(float * p, Floats x) { _mm256_store_ps(p, x); }
inline Floats divided(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats magnitude(Floats x) { return _mm256_andnot_ps(all(-0.0f), x); }
inline Floats signed_like(Floats x, Floats y) { return _mm256_or_ps(x, _mm256_and_ps(all(-0.0f), y)); }
inline Floats whole(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats times_two_to(Floats x, Floats n) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
inline Floats zero_below(Floats x, Floats of, Floats least) {
    return _mm256_and_ps(x, _mm256_cmp_ps(of, least, _CMP_NLT_UQ));
}
inline Floats load_any(const float * p) { return _mm256_loadu_ps(p); }
inline Floats load_halves(const uint16_t * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
inline void store_any(float * p, Floats x) { _mm256_storeu_ps(p, x); }
inline float first_of(Floats x) { return _mm256_cvtss_f32(x); }

inline float largest_of(Floats x) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
}

inline __m128 four_sums(Floats a, Floats b, Floats c, Floats d) {
    const Floats each = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(each), _mm256_extractf128_ps(each, 1));
}

inline float sum_of(Floats x) { return _mm_cvtss_f32(four_sums(x, none(), none(), none())); }

inline Floats first_lanes(Floats x, int count) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 there = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), index));
    return _mm256_blendv_ps(all(-__builtin_inff()), x, there);
}

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

inline Bytes without_zero(Bytes weights, int zero) { return _mm256_sub_epi8(weights, _mm256_set1_epi8((char) zero)); }

inline Ints dot_signed(Ints sum, Bytes weights, Bytes values) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(values, weights));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
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
#include "exponential.h"
#include "rows.h"
#include "strips.h"

}  // namespace

const Kernels & avx2() {
    static const Kernels kernels = {"AVX2", ROWS, format_of, quantize_column, part,
                                    STRIP, seen_by, row_floats, attend_row, strip_floats, attend_strips};
    return kernels;
}

}  // namespace tiles
