// C[rows, n] (+)= A[rows, k] * B[k, n] for the small matrices inside attention.
// A row's sums run over k in order in every register tile, so its result doesn't depend on the rows beside it.
#pragma once

#include "vec.h"

namespace rs {

#if defined(__AVX512F__)
constexpr int max_tile_vecs = 4;
#else
constexpr int max_tile_vecs = 2;
#endif
constexpr int max_tile_rows = 6;

// Float32 products.
struct MathF32 {
    using A = float;
    static constexpr int step = 1;  // values of k in one multiply

    template <int R, int NV>
    static void tile(const float* a, long lda, const float* b, long ldb, float* c, long ldc, int k, bool adds) {
        Vec acc[R][NV];
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < NV; ++n) acc[r][n] = adds ? load(c + r * ldc + n * Vec::width) : zero();
        for (int i = 0; i < k; ++i) {
            Vec col[NV];
            for (int n = 0; n < NV; ++n) col[n] = load(b + i * ldb + n * Vec::width);
            for (int r = 0; r < R; ++r) {
                const Vec x = set1(a[r * lda + i]);
                for (int n = 0; n < NV; ++n) acc[r][n] = fma(x, col[n], acc[r][n]);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < NV; ++n) store(c + r * ldc + n * Vec::width, acc[r][n]);
    }
};

#if defined(__AVX512BF16__)
// Products of bf16 pairs, summed in float32. B holds pairs: value [i, n] is (B[2i, n], B[2i + 1, n]) in 32 bits.
struct MathBf16 {
    using A = bf16;
    static constexpr int step = 2;

    template <int R, int NV>
    static void tile(const bf16* a, long lda, const float* b, long ldb, float* c, long ldc, int k, bool adds) {
        __m512 acc[R][NV];
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < NV; ++n) acc[r][n] = adds ? _mm512_loadu_ps(c + r * ldc + n * 16) : _mm512_setzero_ps();
        for (int i = 0; i < k / 2; ++i) {
            __m512bh col[NV];
            for (int n = 0; n < NV; ++n) col[n] = (__m512bh)_mm512_loadu_ps(b + i * ldb + n * 16);
            for (int r = 0; r < R; ++r) {
                int32_t pair;
                std::memcpy(&pair, a + r * lda + 2 * i, sizeof pair);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                for (int n = 0; n < NV; ++n) acc[r][n] = _mm512_dpbf16_ps(acc[r][n], x, col[n]);
            }
        }
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < NV; ++n) _mm512_storeu_ps(c + r * ldc + n * 16, acc[r][n]);
    }
};
#endif

template <class Math, int R, int NV>
inline void tile_rows(int rows, const typename Math::A* a, long lda, const float* b, long ldb, float* c, long ldc, int k, bool adds) {
    if (rows == R) {
        Math::template tile<R, NV>(a, lda, b, ldb, c, ldc, k, adds);
    } else if constexpr (R > 1) {
        tile_rows<Math, R - 1, NV>(rows, a, lda, b, ldb, c, ldc, k, adds);
    }
}

template <class Math, int NV>
inline void column_panel(int rows, const typename Math::A* a, long lda, const float* b, long ldb, float* c, long ldc, int k, bool adds) {
    for (int r = 0; r < rows; r += max_tile_rows) {
        const int count = rows - r < max_tile_rows ? rows - r : max_tile_rows;
        tile_rows<Math, max_tile_rows, NV>(count, a + r * lda, lda, b, ldb, c + r * ldc, ldc, k, adds);
    }
}

// C becomes A * B, or that is added to it. n is a multiple of 16; k of Math::step.
template <class Math>
void gemm(int rows, int n, int k, const typename Math::A* a, long lda, const float* b, long ldb, float* c, long ldc, bool adds) {
    int done = 0;
    while (done < n) {
        const int vecs = (n - done) / Vec::width;
        const float* bn = b + done;
        float* cn = c + done;
        if constexpr (max_tile_vecs == 4) {
            if (vecs >= 4) {
                column_panel<Math, 4>(rows, a, lda, bn, ldb, cn, ldc, k, adds);
                done += 4 * Vec::width;
            } else if (vecs == 3) {
                column_panel<Math, 3>(rows, a, lda, bn, ldb, cn, ldc, k, adds);
                done += 3 * Vec::width;
            } else if (vecs == 2) {
                column_panel<Math, 2>(rows, a, lda, bn, ldb, cn, ldc, k, adds);
                done += 2 * Vec::width;
            } else {
                column_panel<Math, 1>(rows, a, lda, bn, ldb, cn, ldc, k, adds);
                done += Vec::width;
            }
        } else {
            column_panel<Math, 2>(rows, a, lda, bn, ldb, cn, ldc, k, adds);  // 16 columns: always two vectors here
            done += 2 * Vec::width;
        }
    }
}

}  // namespace rs
