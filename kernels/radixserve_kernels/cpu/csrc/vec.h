// One float32 vector type over AVX-512 and AVX2, so that every kernel is written once.
// Which one is decided by the compiler's flags; the loader picks the library that fits the processor.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace rs {

struct bf16 {
    uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
    const uint32_t u = static_cast<uint32_t>(x.bits) << 16;
    float f;
    std::memcpy(&f, &u, sizeof f);
    return f;
}

inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        p->bits = static_cast<uint16_t>((u >> 16) | 0x40u);  // rounding up could turn a NaN into a number
    } else {
        p->bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
}

#if defined(__AVX512F__)

struct Vec {
    static constexpr int width = 16;
    __m512 v;
};

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store(bf16* p, Vec a) {
#if defined(__AVX512BF16__)
    const __m256bh h = _mm512_cvtneps_pbh(a.v);
    std::memcpy(p, &h, sizeof h);
#else
    const __m512i u = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
#endif
}
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }  // b where either is NaN
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float highest(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec scale2(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }

// Transposes 16 rows of 16 32-bit values in place. No arithmetic: any bit pattern survives.
inline void transpose(Vec* r) {
    __m512 t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    __m512 u[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512 a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88), b = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        const __m512 c = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd), d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
        r[i].v = _mm512_shuffle_f32x4(a, b, 0x88);
        r[i + 8].v = _mm512_shuffle_f32x4(a, b, 0xdd);
        r[i + 4].v = _mm512_shuffle_f32x4(c, d, 0x88);
        r[i + 12].v = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#elif defined(__AVX2__)

struct Vec {
    static constexpr int width = 8;
    __m256 v;
};

inline Vec zero() { return {_mm256_setzero_ps()}; }
inline Vec set1(float x) { return {_mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline void store(bf16* p, Vec a) {
    const __m256i u = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc0), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }  // b where either is NaN
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline float sum(Vec a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float highest(Vec a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for a whole n in [-200, 127]; n below -126 gives 0.
inline Vec scale2(Vec a, Vec n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    const __m256 pow = _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
    const __m256 small = _mm256_cmp_ps(n.v, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
    return {_mm256_andnot_ps(small, _mm256_mul_ps(a.v, pow))};
}

// Transposes 8 rows of 8 32-bit values in place. No arithmetic: any bit pattern survives.
inline void transpose(Vec* r) {
    __m256 t[8], u[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        r[i].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

#else
#error "compile with -mavx2 -mfma, or with AVX-512"
#endif

// 2^x: exactly 1 at 0 and exactly 0 far below; NaN stays NaN. Relative error below 2e-7.
inline Vec exp2(Vec x) {
    x = min(set1(127.0f), max(set1(-200.0f), x));  // in this order of operands a NaN passes through
    const Vec n = round(x);
    const Vec f = sub(x, n);
    Vec p = set1(1.5403530e-4f);
    p = fma(p, f, set1(1.3333558e-3f));
    p = fma(p, f, set1(9.6181291e-3f));
    p = fma(p, f, set1(5.5504109e-2f));
    p = fma(p, f, set1(2.4022651e-1f));
    p = fma(p, f, set1(6.9314718e-1f));
    p = fma(p, f, set1(1.0f));
    return scale2(p, n);
}

inline float exp2_scalar(float x) {
    float lanes[Vec::width];
    store(lanes, exp2(set1(x)));
    return lanes[0];
}

}  // namespace rs
