// Entry points of the small operators beside attention: one pass over memory each.

#include <sys/mman.h>

#include <cstdint>

#include "rows.h"
#include "threads.h"

namespace rs {

OpenMp& openmp() {
    static OpenMp runtime;
    return runtime;
}

namespace {

constexpr long light_work = 32 * 1024;  // elements below which waking a thread costs more than it saves

template <class T, class TW>
void rms_norm(const T* x, long outer_stride, long inner_stride, const TW* weight, T* out, long outer, long inner, int n, float eps,
              int threads) {
    const long rows = outer * inner;
    parallel_rows(threads, rows, rows * n >= light_work, [&](long begin, long end) {
        for (long r = begin; r < end; ++r)
            normalise(x + r / inner * outer_stride + r % inner * inner_stride, weight, out + r * n, n, eps);
    });
}

template <class T, class TW>
void add_rms_norm(T* x, T* residual, const TW* weight, long rows, int n, float eps, int threads) {
    parallel_rows(threads, rows, rows * n >= light_work, [&](long begin, long end) {
        for (long r = begin; r < end; ++r) add_normalise(x + r * n, residual + r * n, weight, n, eps);
    });
}

template <class T>
void rotary(T* q, long q_stride, int q_heads, T* k, long k_stride, int k_heads, int dim, const float* table, const int* positions,
            long tokens, int threads) {
    parallel_rows(threads, tokens, tokens * (q_heads + k_heads) * dim >= light_work, [&](long begin, long end) {
        for (long t = begin; t < end; ++t) {
            const float* cosine = table + static_cast<long>(positions[t]) * dim;
            for (int h = 0; h < q_heads; ++h) rotate_head(q + t * q_stride + h * dim, cosine, cosine + dim / 2, dim / 2);
            for (int h = 0; h < k_heads; ++h) rotate_head(k + t * k_stride + h * dim, cosine, cosine + dim / 2, dim / 2);
        }
    });
}

template <class T>
void silu_mul(const T* x, long stride, T* out, long rows, int n, int threads) {
    parallel_rows(threads, rows, rows * n >= light_work / 4, [&](long begin, long end) {
        for (long r = begin; r < end; ++r) silu_multiply(x + r * stride, x + r * stride + n, out + r * n, n);
    });
}

}  // namespace
}  // namespace rs

using rs::bf16;

#define RS_EXPORT __attribute__((visibility("default")))

extern "C" {

RS_EXPORT void rs_use_openmp(void* parallel, void* thread_num, void* num_threads, void* barrier) {
    rs::openmp() = {reinterpret_cast<void (*)(void (*)(void*), void*, unsigned, unsigned)>(parallel),
                    reinterpret_cast<int (*)()>(thread_num), reinterpret_cast<int (*)()>(num_threads),
                    reinterpret_cast<void (*)()>(barrier)};
}

// bf16_x, bf16_weight: 1 for bfloat16, 0 for float32. Strides count elements. A bfloat16 weight needs bfloat16 x.
RS_EXPORT void rs_rms_norm(int bf16_x, int bf16_weight, const void* x, long outer_stride, long inner_stride, const void* weight, void* out,
                long outer, long inner, int n, float eps, int threads) {
    if (bf16_x && bf16_weight) {
        rs::rms_norm(static_cast<const bf16*>(x), outer_stride, inner_stride, static_cast<const bf16*>(weight), static_cast<bf16*>(out),
                     outer, inner, n, eps, threads);
    } else if (bf16_x) {
        rs::rms_norm(static_cast<const bf16*>(x), outer_stride, inner_stride, static_cast<const float*>(weight), static_cast<bf16*>(out),
                     outer, inner, n, eps, threads);
    } else {
        rs::rms_norm(static_cast<const float*>(x), outer_stride, inner_stride, static_cast<const float*>(weight),
                     static_cast<float*>(out), outer, inner, n, eps, threads);
    }
}

// residual += x; x = norm(residual).
RS_EXPORT void rs_add_rms_norm(int bf16_x, int bf16_weight, void* x, void* residual, const void* weight, long rows, int n, float eps,
                    int threads) {
    if (bf16_x && bf16_weight) {
        rs::add_rms_norm(static_cast<bf16*>(x), static_cast<bf16*>(residual), static_cast<const bf16*>(weight), rows, n, eps, threads);
    } else if (bf16_x) {
        rs::add_rms_norm(static_cast<bf16*>(x), static_cast<bf16*>(residual), static_cast<const float*>(weight), rows, n, eps, threads);
    } else {
        rs::add_rms_norm(static_cast<float*>(x), static_cast<float*>(residual), static_cast<const float*>(weight), rows, n, eps, threads);
    }
}

// Returns 1, and changes nothing, where a position lies outside the table.
RS_EXPORT int rs_rotary(int bf16_x, void* q, long q_stride, int q_heads, void* k, long k_stride, int k_heads, int dim, const float* table,
              long table_rows, const int* positions, long tokens, int threads) {
    for (long t = 0; t < tokens; ++t)
        if (positions[t] < 0 || positions[t] >= table_rows) return 1;
    if (bf16_x) {
        rs::rotary(static_cast<bf16*>(q), q_stride, q_heads, static_cast<bf16*>(k), k_stride, k_heads, dim, table, positions, tokens,
                   threads);
    } else {
        rs::rotary(static_cast<float*>(q), q_stride, q_heads, static_cast<float*>(k), k_stride, k_heads, dim, table, positions, tokens,
                   threads);
    }
    return 0;
}

RS_EXPORT void rs_silu_mul(int bf16_x, const void* x, long stride, void* out, long rows, int n, int threads) {
    if (bf16_x) {
        rs::silu_mul(static_cast<const bf16*>(x), stride, static_cast<bf16*>(out), rows, n, threads);
    } else {
        rs::silu_mul(static_cast<const float*>(x), stride, static_cast<float*>(out), rows, n, threads);
    }
}

// copies: (source page, destination page, tokens) each, in order within every plane; a plane is one layer's keys or values,
// [pages, heads, P, D]. Sizes count bytes.
RS_EXPORT void rs_copy_pages(void* pool, long planes, long plane_bytes, long heads, long head_bytes, long token_bytes, const int64_t* copies,
                             long count, int threads) {
    long tokens = 0;
    for (long i = 0; i < count; ++i) tokens += copies[3 * i + 2];
    rs::parallel_rows(threads, planes, planes * heads * token_bytes * tokens >= 256 * 1024, [&](long begin, long end) {
        for (long p = begin; p < end; ++p) {
            char* plane = static_cast<char*>(pool) + p * plane_bytes;
            for (long i = 0; i < count; ++i) {
                const int64_t* c = copies + 3 * i;
                for (long h = 0; h < heads; ++h)
                    std::memmove(plane + (c[1] * heads + h) * head_bytes, plane + (c[0] * heads + h) * head_bytes,
                                 static_cast<size_t>(c[2] * token_bytes));
            }
        }
    });
}

// Asks for huge pages: attention hops between KV pages all over the pool, and address translation would dominate. Best effort.
RS_EXPORT void rs_prefer_huge_pages(void* memory, long bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    static_cast<void>(memory);
    static_cast<void>(bytes);
#endif
}

}  // extern "C"
