// The small operators beside attention: one pass over memory each.

#include <sys/mman.h>

#include <cstdint>

#include "threads.h"
#include "vec.h"

namespace rs {

OpenMp& openmp() {
    static OpenMp runtime;
    return runtime;
}

namespace {

constexpr long light_work = 32 * 1024;  // elements below which waking a thread costs more than it saves

template <class T>
float sum_of_squares(const T* x, int n) {
    Vec acc = zero();
    int i = 0;
    for (; i + Vec::width <= n; i += Vec::width) {
        const Vec v = load(x + i);
        acc = fma(v, v, acc);
    }
    float total = sum(acc);
    for (; i < n; ++i) total += to_float(x[i]) * to_float(x[i]);
    return total;
}

template <class T, class TW>
void normalise(const T* x, const TW* weight, T* out, int n, float eps) {
    const float factor = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps);
    const Vec by = set1(factor);
    int i = 0;
    for (; i + Vec::width <= n; i += Vec::width) store(out + i, mul(mul(load(x + i), by), load(weight + i)));
    for (; i < n; ++i) put(out + i, to_float(x[i]) * factor * to_float(weight[i]));
}

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
        for (long r = begin; r < end; ++r) {
            T *a = x + r * n, *b = residual + r * n;
            int i = 0;
            for (; i + Vec::width <= n; i += Vec::width) store(b + i, add(load(a + i), load(b + i)));
            for (; i < n; ++i) put(b + i, to_float(a[i]) + to_float(b[i]));
            normalise(b, weight, a, n, eps);
        }
    });
}

template <class T>
void rotate_head(T* x, const float* cosine, const float* sine, int half) {
    int i = 0;
    for (; i + Vec::width <= half; i += Vec::width) {
        const Vec a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
        store(x + i, sub(mul(a, c), mul(b, s)));
        store(x + half + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < half; ++i) {
        const float a = to_float(x[i]), b = to_float(x[half + i]);
        put(x + i, a * cosine[i] - b * sine[i]);
        put(x + half + i, b * cosine[i] + a * sine[i]);
    }
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
    const Vec one = set1(1.0f), minus_log2_e = set1(-1.44269504f);
    parallel_rows(threads, rows, rows * n >= light_work / 4, [&](long begin, long end) {
        for (long r = begin; r < end; ++r) {
            const T *gate = x + r * stride, *up = gate + n;
            T* to = out + r * n;
            int i = 0;
            for (; i + Vec::width <= n; i += Vec::width) {
                const Vec g = load(gate + i);
                store(to + i, mul(div(g, add(one, exp2(mul(g, minus_log2_e)))), load(up + i)));
            }
            for (; i < n; ++i) {
                const float g = to_float(gate[i]);
                put(to + i, g / (1.0f + exp2_scalar(g * -1.44269504f)) * to_float(up[i]));
            }
        }
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
