// The entry points of attention.

#include "attention.h"

#include <new>

namespace rs {
namespace {

template <class Math, class TQ, class TKV>
void attend(Plan& plan, const Layer<TQ, TKV>& layer) {
    constexpr int64_t worth_threads = 32 * 1024;
    const int threads = plan.kv_elements < worth_threads ? 1 : plan.shape.threads;
    std::atomic<size_t> next{0};
    ++plan.passes;
    parallel(threads, [&](int thread, int count) {
        const long tokens = plan.num_tokens;
        write_kv(plan, layer, tokens * thread / count, tokens * (thread + 1) / count);
        barrier(count);
        attend_items<Math>(plan, layer, thread, count, plan.passes, next);
    });
}

template <class Math, class TQ, class TKV>
void attend_raw(Plan& plan, void* pool_k, void* pool_v, const void* q, long q_stride, const void* k, long k_stride, const void* v,
                long v_stride, void* out) {
    const Layer<TQ, TKV> layer{static_cast<TKV*>(pool_k), static_cast<TKV*>(pool_v), static_cast<const TQ*>(q), static_cast<const TQ*>(k),
                               static_cast<const TQ*>(v),  q_stride,                  k_stride,                  v_stride,
                               static_cast<TQ*>(out)};
    attend<Math>(plan, layer);
}

}  // namespace
}  // namespace rs

#define RS_EXPORT __attribute__((visibility("default")))

extern "C" {

RS_EXPORT void* rs_plan_create(int q_heads, int kv_heads, int head_dim, float scale, int window, int threads, int cascade) {
    auto* plan = new (std::nothrow) rs::Plan;
    if (plan != nullptr) plan->shape = {q_heads, kv_heads, head_dim, scale, window, threads, cascade != 0};
    return plan;
}

RS_EXPORT void rs_plan_destroy(void* plan) { delete static_cast<rs::Plan*>(plan); }

RS_EXPORT int rs_plan_build(void* plan, int sequences, int tokens, const int* qo_indptr, const int* kv_len, const int* page_indptr,
                  const int* page_indices, const int* slots, int page_size, int64_t num_pages) {
    try {
        return rs::build_plan(*static_cast<rs::Plan*>(plan), sequences, tokens, qo_indptr, kv_len, page_indptr, page_indices, slots,
                              page_size, num_pages);
    } catch (const std::bad_alloc&) {
        return rs::no_memory;
    }
}

// Keys that the step reads, summed over tiles.
RS_EXPORT long rs_plan_keys(void* handle) {
    const auto& plan = *static_cast<rs::Plan*>(handle);
    return static_cast<long>(plan.kv_elements / plan.shape.head_dim);
}

// bf16_q, bf16_kv: 1 for bfloat16, 0 for float32. Strides count elements.
RS_EXPORT void rs_attend(void* handle, int bf16_q, int bf16_kv, void* pool_k, void* pool_v, const void* q, long q_stride, const void* k,
               long k_stride, const void* v, long v_stride, void* out) {
    using rs::bf16;
    auto& plan = *static_cast<rs::Plan*>(handle);
    if (bf16_q && bf16_kv) {
#if defined(__AVX512BF16__)
        rs::attend_raw<rs::MathBf16, bf16, bf16>(plan, pool_k, pool_v, q, q_stride, k, k_stride, v, v_stride, out);
#else
        rs::attend_raw<rs::MathF32, bf16, bf16>(plan, pool_k, pool_v, q, q_stride, k, k_stride, v, v_stride, out);
#endif
    } else if (bf16_kv) {
        rs::attend_raw<rs::MathF32, float, bf16>(plan, pool_k, pool_v, q, q_stride, k, k_stride, v, v_stride, out);
    } else if (bf16_q) {
        rs::attend_raw<rs::MathF32, bf16, float>(plan, pool_k, pool_v, q, q_stride, k, k_stride, v, v_stride, out);
    } else {
        rs::attend_raw<rs::MathF32, float, float>(plan, pool_k, pool_v, q, q_stride, k, k_stride, v, v_stride, out);
    }
}

}  // extern "C"
