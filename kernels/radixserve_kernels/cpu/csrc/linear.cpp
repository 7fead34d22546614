// Entry points of linear layers.

#include "linear.h"

#include "threads.h"
#include "workspace.h"

namespace rs {
namespace {

constexpr long worth_threads = 64 * 1024;  // multiplications

template <class T, class TOut>
void apply(const Linear& linear, Workspace& space, const T* x, long stride, int rows, TOut* out, long out_stride, int threads) {
    space.start(CodeBuffers::room(rows, linear.k));
    CodeBuffers codes;
    codes.take(space, rows, linear.k);
    std::atomic<int> next{0};
    const int wanted = static_cast<long>(rows) * linear.n * linear.k < worth_threads ? 1 : threads;
    parallel(wanted, [&](int thread, int count) {
        if (linear.coded()) {
            for (long r = static_cast<long>(rows) * thread / count; r < static_cast<long>(rows) * (thread + 1) / count; ++r)
                codes.encode_row(linear, x + r * stride, r);
            barrier(count);
        }
        multiply(linear, codes.input(x, stride), rows, out, out_stride, thread, count, next);
    });
}

}  // namespace
}  // namespace rs

#define RS_EXPORT __attribute__((visibility("default")))

extern "C" {

RS_EXPORT void* rs_workspace_create() { return new (std::nothrow) rs::Workspace; }
RS_EXPORT void rs_workspace_destroy(void* space) { delete static_cast<rs::Workspace*>(space); }

RS_EXPORT void* rs_linear_create(int k) {
    auto* linear = new (std::nothrow) rs::Linear;
    if (linear != nullptr) linear->k = k;
    return linear;
}

RS_EXPORT void rs_linear_destroy(void* linear) { delete static_cast<rs::Linear*>(linear); }

// Appends n outputs. Memory stays the caller's and must outlive the layer. Returns 1 where memory is out.
RS_EXPORT int rs_linear_add(void* handle, int kind, int n, const void* data, long panel_bytes, const float* bias) {
    auto& linear = *static_cast<rs::Linear*>(handle);
    try {
        linear.segments.push_back({static_cast<rs::Kind>(kind), n, linear.k, static_cast<const char*>(data), bias, linear.n, panel_bytes});
    } catch (const std::bad_alloc&) {
        return 1;
    }
    linear.n += n;
    return 0;
}

// bf16_x, bf16_out: 1 for bfloat16, 0 for float32. Rows of `out` hold a whole number of panels. Returns 1 where memory is out.
RS_EXPORT int rs_linear_apply(void* handle, void* space, int bf16_x, const void* x, long stride, int rows, int bf16_out, void* out,
                              long out_stride, int threads) {
    using rs::bf16;
    const auto& linear = *static_cast<rs::Linear*>(handle);
    auto& workspace = *static_cast<rs::Workspace*>(space);
    try {
        if (bf16_x && bf16_out) {
            rs::apply(linear, workspace, static_cast<const bf16*>(x), stride, rows, static_cast<bf16*>(out), out_stride, threads);
        } else if (bf16_x) {
            rs::apply(linear, workspace, static_cast<const bf16*>(x), stride, rows, static_cast<float*>(out), out_stride, threads);
        } else {
            rs::apply(linear, workspace, static_cast<const float*>(x), stride, rows, static_cast<float*>(out), out_stride, threads);
        }
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

}  // extern "C"
