// Blocks of keys and values as the small matrix products want them, from rows scattered over the pool.
#pragma once

#include "gemm.h"
#include "plan.h"

namespace rs {

template <class From, class To>
void copy_row(const From* from, To* to, int n) {
    if constexpr (sizeof(From) == sizeof(To)) {
        std::memcpy(to, from, sizeof(To) * n);
    } else {
        for (int i = 0; i < n; i += Vec::width) store(to + i, load(from + i));
    }
}

// Asks for rows [begin, end) of the block that comes next. Called a few rows at a time amid the packing of the current block:
// a burst of requests would fill the processor's miss queue and stall the arithmetic that should hide them.
struct Fetch {
    const void* const* rows;
    int count;
    long row_bytes;

    void operator()(int begin, int end) const {
        for (int j = begin; j < (end < count ? end : count); ++j)
            for (long b = 0; b < row_bytes; b += 64) _mm_prefetch(static_cast<const char*>(rows[j]) + b, _MM_HINT_T1);
    }
};

// One square of the transposition. Whole ones keep all their rows in registers.
template <class T>
void transpose_square(const void* const* rows, int d, float* to) {
    Vec block[Vec::width];
#pragma GCC unroll 16
    for (int i = 0; i < Vec::width; ++i) block[i] = load(static_cast<const T*>(rows[i]) + d);
    transpose(block);
#pragma GCC unroll 16
    for (int i = 0; i < Vec::width; ++i) store(to + (d + i) * block_keys, block[i]);
}

// The same at an edge: rows beyond `count` become zero, and only `columns` values are read of each.
template <class T>
__attribute__((noinline)) void transpose_edge(const void* const* rows, int count, int d, int columns, float* to) {
    Vec block[Vec::width];
    for (int i = 0; i < Vec::width; ++i) {
        T row[Vec::width] = {};
        if (i < count) std::memcpy(row, static_cast<const T*>(rows[i]) + d, sizeof(T) * columns);
        block[i] = load(row);
    }
    transpose(block);
    for (int i = 0; i < columns; ++i) store(to + (d + i) * block_keys, block[i]);
}

// keys[d][j] from rows of `dim` values: rows beyond `count` become zero, up to `padded`. A value is 32 bits: a float, or a
// pair of bf16 that stays together.
template <class T>
void transpose_rows(const void* const* rows, int count, int padded, int dim, float* to, const Fetch& fetch) {
    constexpr int w = Vec::width;
    for (int j = 0; j < padded; j += w) {
        fetch(j, j + w);
        for (int d = 0; d < dim; d += w) {
            if (j + w <= count && d + w <= dim) {
                transpose_square<T>(rows + j, d, to + j);
            } else {
                transpose_edge<T>(rows + j, count - j, d, dim - d < w ? dim - d : w, to + j);
            }
        }
    }
}

template <class Math, class TKV>
void pack_keys(const void* const* rows, int count, int padded, int dim, float* to, const Fetch& fetch) {
    if constexpr (Math::step == 2) {
        transpose_rows<float>(rows, count, padded, dim / 2, to, fetch);
    } else {
        transpose_rows<TKV>(rows, count, padded, dim, to, fetch);
    }
}

template <class Math, class TKV>
void pack_values(const void* const* rows, int count, int padded, int dim, float* to, const Fetch& fetch) {
    for (int j = 0; j < padded; j += Math::step) {
        fetch(j, j + Math::step);
        float* line = to + j / Math::step * dim;
        if constexpr (Math::step == 1) {
            for (int d = 0; d < dim; d += Vec::width)
                store(line + d, j < count ? load(static_cast<const TKV*>(rows[j]) + d) : zero());
        }
#if defined(__AVX512BF16__)
        if constexpr (Math::step == 2) {
            const auto* low = static_cast<const __m256i*>(rows[j < count ? j : 0]);
            const auto* high = static_cast<const __m256i*>(rows[j + 1 < count ? j + 1 : 0]);
            const __mmask16 keep_low = j < count ? 0xffff : 0, keep_high = j + 1 < count ? 0xffff : 0;
            for (int d = 0; d < dim / 16; ++d) {
                const __m512i a = _mm512_maskz_cvtepu16_epi32(keep_low, _mm256_loadu_si256(low + d));
                const __m512i b = _mm512_maskz_cvtepu16_epi32(keep_high, _mm256_loadu_si256(high + d));
                _mm512_storeu_si512(line + d * 16, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
            }
        }
#endif
    }
}

// Finds where the keys of a block lie.
template <class TKV>
struct PageWalk {
    const Plan& plan;
    const TKV *pool_k, *pool_v;
    const int* pages;
    int kv_head;

    template <class Visit>
    void visit(int begin, int count, Visit&& use) const {
        const int page_size = plan.page_size, dim = plan.shape.head_dim;
        int page = begin / page_size, in_page = begin % page_size;
        for (int j = 0; j < count; ++page, in_page = 0) {
            long at = ((static_cast<long>(pages[page]) * plan.shape.kv_heads + kv_head) * page_size + in_page) * dim;
            const int end = j + page_size - in_page < count ? j + page_size - in_page : count;
            for (; j < end; ++j, at += dim) use(j, at);
        }
    }

    void locate(int begin, int count, const void** rows_k, const void** rows_v) const {
        visit(begin, count, [&](int j, long at) {
            rows_k[j] = pool_k + at;
            rows_v[j] = pool_v + at;
        });
    }
};

}  // namespace rs
