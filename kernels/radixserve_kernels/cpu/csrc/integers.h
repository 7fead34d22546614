// Vectors of 32-bit integers, dot products of four 8-bit codes each, and rows of activations as such codes.
#pragma once

#include "vec.h"

namespace rs {

#if defined(__AVX512F__)

using Ints = __m512i;
inline Ints load_ints(const char* p) { return _mm512_loadu_si512(p); }
inline Ints set_ints(int x) { return _mm512_set1_epi32(x); }
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
template <int n>
Ints shift_left(Ints a) { return _mm512_slli_epi32(a, n); }
inline Ints keep_high_half(Ints a) { return _mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000u))); }
inline Ints low_bytes(Ints a) { return _mm512_and_si512(a, _mm512_set1_epi16(0x00ff)); }
inline Ints high_bytes(Ints a) { return _mm512_srli_epi16(a, 8); }
inline Ints low_nibbles(Ints a) { return _mm512_and_si512(a, _mm512_set1_epi8(0x0f)); }
inline Ints high_nibbles(Ints a) { return low_nibbles(_mm512_srli_epi16(a, 4)); }
inline Ints multiply_add(Ints a, Ints b) { return _mm512_madd_epi16(a, b); }
inline Vec as_floats(Ints a) { return {_mm512_castsi512_ps(a)}; }
inline Vec to_floats(Ints a) { return {_mm512_cvtepi32_ps(a)}; }
inline Vec load_halves(const char* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline Ints round_ints(Vec a) { return _mm512_cvtps_epi32(a.v); }
inline int sum_ints(Ints a) { return _mm512_reduce_add_epi32(a); }
inline void store_bytes(int8_t* p, Ints a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a)); }
inline Vec magnitude(Vec a) { return {_mm512_abs_ps(a.v)}; }

#else

using Ints = __m256i;
inline Ints load_ints(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Ints set_ints(int x) { return _mm256_set1_epi32(x); }
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
template <int n>
Ints shift_left(Ints a) { return _mm256_slli_epi32(a, n); }
inline Ints keep_high_half(Ints a) { return _mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000u))); }
inline Ints low_bytes(Ints a) { return _mm256_and_si256(a, _mm256_set1_epi16(0x00ff)); }
inline Ints high_bytes(Ints a) { return _mm256_srli_epi16(a, 8); }
inline Ints low_nibbles(Ints a) { return _mm256_and_si256(a, _mm256_set1_epi8(0x0f)); }
inline Ints high_nibbles(Ints a) { return low_nibbles(_mm256_srli_epi16(a, 4)); }
inline Ints multiply_add(Ints a, Ints b) { return _mm256_madd_epi16(a, b); }
inline Vec as_floats(Ints a) { return {_mm256_castsi256_ps(a)}; }
inline Vec to_floats(Ints a) { return {_mm256_cvtepi32_ps(a)}; }
inline Vec load_halves(const char* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline Ints round_ints(Vec a) { return _mm256_cvtps_epi32(a.v); }
inline int sum_ints(Ints a) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline void store_bytes(int8_t* p, Ints a) {
    int lanes[Vec::width];
    std::memcpy(lanes, &a, sizeof lanes);
    for (int i = 0; i < Vec::width; ++i) p[i] = static_cast<int8_t>(lanes[i]);
}
inline Vec magnitude(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }

#endif

// Four unsigned codes of a weight in each lane, times the same four signed codes of x. Sums are exact.
#if defined(__AVX512VNNI__)
using FourVec = Ints;
using FourCodes = Ints;
inline FourVec load_fours(const char* p) { return load_ints(p); }
inline FourVec as_fours(Ints a) { return a; }
inline FourCodes set_four(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return set_ints(four);
}
inline Ints dot4(Ints sum, FourVec w, FourCodes x) { return _mm512_dpbusd_epi32(sum, w, x); }
#else
struct FourVec {
    Ints even, odd;  // bytes of each 16-bit lane
};
struct FourCodes {
    Ints even, odd;
};
inline FourVec as_fours(Ints a) { return {low_bytes(a), high_bytes(a)}; }
inline FourVec load_fours(const char* p) { return as_fours(load_ints(p)); }
inline FourCodes set_four(const int8_t* p) {
    const auto pair = [](int a, int b) { return set_ints(static_cast<int>((static_cast<uint32_t>(b) << 16) | (static_cast<uint32_t>(a) & 0xffffu))); };
    return {pair(p[0], p[2]), pair(p[1], p[3])};
}
inline Ints dot4(Ints sum, const FourVec& w, const FourCodes& x) {
    return add_ints(sum, add_ints(multiply_add(w.even, x.even), multiply_add(w.odd, x.odd)));
}
#endif

// Where the panel of 16 outputs that holds `column` has that column.
inline const char* panel_at(const char* data, long panel_bytes, int column) { return data + column / 16 * panel_bytes + column % 16 * 4; }

// Rows of x as signed codes, with a scale for each row and group.
struct RowCodes {
    int8_t* codes = nullptr;
    long stride = 0;
    float* scale = nullptr;
    int32_t* offset = nullptr;  // -128 times the sum of the codes: what weights stored as code + 128 add too much
    float* sum = nullptr;       // scale times the sum of the codes: what a weight's minimum is multiplied with
};

// Codes for n values (a multiple of Vec::width) by their largest magnitude.
template <class T>
void encode(const T* x, int n, int8_t* codes, float* scale, int32_t* offset, float* sum) {
    Vec high = zero(), broken = zero();
    for (int i = 0; i < n; i += Vec::width) {
        const Vec v = load(x + i);
        high = max(magnitude(v), high);  // a NaN is passed over
        broken = fma(v, zero(), broken);
    }
    const float largest = highest(high);
    const float factor = largest > 1e-30f ? 127.0f / largest : 0.0f;
    const Vec by = set1(factor);
    Ints total = set_ints(0);
    for (int i = 0; i < n; i += Vec::width) {
        const Ints code = round_ints(mul(load(x + i), by));
        total = add_ints(total, code);
        store_bytes(codes + i, code);
    }
    const int all = sum_ints(total);
    // What isn't finite makes the scale a NaN, so that the row is seen to be broken.
    *scale = (factor > 0.0f ? largest / 127.0f : 0.0f) + rs::sum(broken);
    *offset = -128 * all;
    *sum = *scale * static_cast<float>(all);
}

}  // namespace rs
