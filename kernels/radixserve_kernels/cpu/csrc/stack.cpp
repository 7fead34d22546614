// All layers of a decoder in one call: one parallel region, whose threads meet between the parts of a layer.
//
// The parts are those that the operators beside this file do one by one, row for row with the same arithmetic.

#include <memory>
#include <new>

#include "attention.h"
#include "rows.h"
#include "workspace.h"

namespace rs {
namespace {

struct StackLayer {
    const void *attn_norm, *q_norm, *k_norm, *mlp_norm;  // q_norm and k_norm may be null
    const Linear *qkv, *o, *gate_up, *down;
};

struct Stack {
    int hidden, inner;
    float eps;
    const void* final_norm;
    const float* cos_sin;
    long table_rows;
    std::vector<StackLayer> layers;
    std::unique_ptr<std::atomic<int>[]> counters;  // of blocks taken: four linears a layer
    std::unique_ptr<std::atomic<size_t>[]> items;  // of attention items taken, one a layer
    Workspace space;
};

// Everything that the threads of one step share.
template <class T>
struct Step {
    Stack& stack;
    Plan& plan;
    T* pool;
    long plane;  // elements of one layer's keys, and of its values
    long tokens, num_rows;
    const int* positions;
    const int64_t* rows;
    T *residual, *x, *qkv, *attended, *gate_up, *inner, *out;
    CodeBuffers codes;

    int qkv_width() const { return (plan.shape.q_heads + 2 * plan.shape.kv_heads) * plan.shape.head_dim; }
    int q_width() const { return plan.shape.q_heads * plan.shape.head_dim; }
};

template <class Math, class T>
class Crew {
   public:
    Crew(Step<T>& step, int thread, int count)
        : s_(step), shape_(step.plan.shape), thread_(thread), count_(count), hidden_(step.stack.hidden), eps_(step.stack.eps) {}

    void run() {
        Stack& stack = s_.stack;
        const int last = static_cast<int>(stack.layers.size()) - 1;
        T* residual = s_.residual;
        each_row(s_.tokens, [&](long r) {
            T* x = s_.x + r * hidden_;
            normalise(residual + r * hidden_, weight(stack.layers[0].attn_norm), x, hidden_, eps_);
            s_.codes.encode_row(*stack.layers[0].qkv, x, r);
        });
        for (int i = 0; i <= last; ++i) {
            const StackLayer& layer = stack.layers[static_cast<size_t>(i)];
            attend(layer, i);
            long rows = s_.tokens;
            const T* attended = s_.attended;
            if (i == last) {
                rows = s_.num_rows;
                if (rows == 0) return;
                residual = s_.out;
                attended = s_.inner;
            }
            each_row(rows, [&](long r) { take_row(layer, i == last, residual, r); });
            meet();
            product(*layer.o, attended, s_.q_width(), rows, s_.x, hidden_, 4 * i + 1, layer.gate_up);
            each_row(rows, [&](long r) {
                T* x = s_.x + r * hidden_;
                add_normalise(x, residual + r * hidden_, weight(layer.mlp_norm), hidden_, eps_);
                s_.codes.encode_row(*layer.gate_up, x, r);
            });
            meet();
            product(*layer.gate_up, s_.x, hidden_, rows, s_.gate_up, 2 * s_.stack.inner, 4 * i + 2, layer.down);
            each_row(rows, [&](long r) {
                const int inner = s_.stack.inner;
                const T* gate = s_.gate_up + r * 2 * inner;
                silu_multiply(gate, gate + inner, s_.inner + r * inner, inner);
                s_.codes.encode_row(*layer.down, s_.inner + r * inner, r);
            });
            meet();
            const StackLayer* next = i == last ? nullptr : &stack.layers[static_cast<size_t>(i) + 1];
            product(*layer.down, s_.inner, s_.stack.inner, rows, s_.x, hidden_, 4 * i + 3, next == nullptr ? nullptr : next->qkv);
            each_row(rows, [&](long r) {
                T* x = s_.x + r * hidden_;
                add_normalise(x, residual + r * hidden_, weight(next == nullptr ? stack.final_norm : next->attn_norm), hidden_, eps_);
                if (next != nullptr) s_.codes.encode_row(*next->qkv, x, r);
                if (next == nullptr) std::memcpy(residual + r * hidden_, x, sizeof(T) * hidden_);
            });
        }
    }

   private:
    static const T* weight(const void* norm) { return static_cast<const T*>(norm); }

    void meet() { barrier(count_); }

    template <class Body>
    void each_row(long rows, Body&& body) {
        for (long r = rows * thread_ / count_; r < rows * (thread_ + 1) / count_; ++r) body(r);
    }

    // Waits until the product is whole.
    void product(const Linear& linear, const T* x, long stride, long rows, T* to, long to_stride, int counter, const Linear* then) {
        const int count = static_cast<int>(rows);
        const Stretch after = then == nullptr ? Stretch{} : find_unit(*then, count, count_, thread_).weights();
        multiply(linear, s_.codes.input(x, stride), count, to, to_stride, thread_, count_, s_.stack.counters[counter], after);
        meet();
    }

    void attend(const StackLayer& layer, int i) {
        const int dim = shape_.head_dim, heads = shape_.q_heads, kv_heads = shape_.kv_heads, width = s_.qkv_width();
        meet();
        product(*layer.qkv, s_.x, hidden_, s_.tokens, s_.qkv, width, 4 * i, layer.o);
        T *keys = s_.qkv + heads * dim, *values = keys + kv_heads * dim;
        const Layer<T, T> view{s_.pool + 2 * i * s_.plane, s_.pool + (2 * i + 1) * s_.plane, s_.qkv, keys, values, width, width, width, s_.attended};
        each_row(s_.tokens, [&](long r) {
            const float* cosine = s_.stack.cos_sin + static_cast<long>(s_.positions[r]) * dim;
            for (int h = 0; h < heads + kv_heads; ++h) {
                T* head = s_.qkv + r * width + h * dim;
                const void* norm = h < heads ? layer.q_norm : layer.k_norm;
                if (norm != nullptr) normalise(head, weight(norm), head, dim, eps_);
                rotate_head(head, cosine, cosine + dim / 2, dim / 2);
            }
            write_kv(s_.plan, view, r, r + 1);
        });
        meet();
        attend_items<Math>(s_.plan, view, thread_, count_, s_.plan.passes + i + 1, s_.stack.items[i]);
        meet();
    }

    // Row r of what the output projection is given. In the last layer only rows whose logits are wanted go on.
    void take_row(const StackLayer& layer, bool last, T* residual, long r) {
        const T* from = s_.attended + r * s_.q_width();
        if (last) {
            const long row = static_cast<long>(s_.rows[r]);
            std::memcpy(residual + r * hidden_, s_.residual + row * hidden_, sizeof(T) * hidden_);
            std::memcpy(s_.inner + r * s_.q_width(), s_.attended + row * s_.q_width(), sizeof(T) * s_.q_width());
            from = s_.inner + r * s_.q_width();
        }
        s_.codes.encode_row(*layer.o, from, r);
    }

    Step<T>& s_;
    const Shape& shape_;
    const int thread_, count_, hidden_;
    const float eps_;
};

// How much memory a step of so many tokens needs, or takes it.
template <class T>
size_t room(const Step<T>& s, long inner, long widest) {
    return Workspace::room<T>(s.tokens * s.stack.hidden) + Workspace::room<T>(s.tokens * s.qkv_width()) +
           Workspace::room<T>(s.tokens * s.q_width()) + Workspace::room<T>(s.tokens * 2 * s.stack.inner) +
           Workspace::room<T>(s.tokens * inner) + CodeBuffers::room(s.tokens, widest);
}

template <class Math, class T>
void forward(Step<T>& s) {
    Stack& stack = s.stack;
    const long inner = std::max<long>(stack.inner, s.q_width()), widest = std::max<long>(inner, stack.hidden);
    stack.space.start(room(s, inner, widest));
    s.x = stack.space.take<T>(s.tokens * stack.hidden);
    s.qkv = stack.space.take<T>(s.tokens * s.qkv_width());
    s.attended = stack.space.take<T>(s.tokens * s.q_width());
    s.gate_up = stack.space.take<T>(s.tokens * 2 * stack.inner);
    s.inner = stack.space.take<T>(s.tokens * inner);
    s.codes.take(stack.space, s.tokens, widest);
    for (size_t i = 0; i < 4 * stack.layers.size(); ++i) stack.counters[i].store(0, std::memory_order_relaxed);
    for (size_t i = 0; i < stack.layers.size(); ++i) stack.items[i].store(0, std::memory_order_relaxed);
    parallel(s.plan.shape.threads, [&](int thread, int count) { Crew<Math, T>(s, thread, count).run(); });
    s.plan.passes += static_cast<int64_t>(stack.layers.size());
}

template <class Math, class T>
void forward_raw(Stack& stack, Plan& plan, void* pool, long plane, void* residual, const int* positions, const int64_t* rows,
                 long num_rows, void* out) {
    Step<T> step{stack, plan, static_cast<T*>(pool), plane, plan.num_tokens, num_rows, positions, rows, static_cast<T*>(residual),
                 nullptr, nullptr, nullptr, nullptr, nullptr, static_cast<T*>(out), {}};
    forward<Math>(step);
}

}  // namespace
}  // namespace rs

#define RS_EXPORT __attribute__((visibility("default")))

extern "C" {

RS_EXPORT void* rs_stack_create(int hidden, int inner, float eps, const void* final_norm, const float* cos_sin, long table_rows) {
    auto* stack = new (std::nothrow) rs::Stack;
    if (stack == nullptr) return nullptr;
    stack->hidden = hidden;
    stack->inner = inner;
    stack->eps = eps;
    stack->final_norm = final_norm;
    stack->cos_sin = cos_sin;
    stack->table_rows = table_rows;
    return stack;
}

RS_EXPORT void rs_stack_destroy(void* stack) { delete static_cast<rs::Stack*>(stack); }

// Appends a layer. Everything it points to stays the caller's and must outlive the stack. Returns 1 where memory is out.
RS_EXPORT int rs_stack_add(void* handle, const void* attn_norm, const void* qkv, const void* q_norm, const void* k_norm, const void* o,
                           const void* mlp_norm, const void* gate_up, const void* down) {
    auto& stack = *static_cast<rs::Stack*>(handle);
    const auto linear = [](const void* p) { return static_cast<const rs::Linear*>(p); };
    try {
        stack.layers.push_back({attn_norm, q_norm, k_norm, mlp_norm, linear(qkv), linear(o), linear(gate_up), linear(down)});
        stack.counters = std::make_unique<std::atomic<int>[]>(4 * stack.layers.size());
        stack.items = std::make_unique<std::atomic<size_t>[]>(stack.layers.size());
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

// One step of the prepared plan. `residual` [tokens, hidden] holds the embeddings and is overwritten; `out` [num_rows, hidden] are the
// normed rows whose logits are wanted. The pool is [layers, 2, ...] of planes. Activations, norms and KV share a type: bf16 1 for
// bfloat16, 0 for float32. Returns 1, and does nothing, where a position lies outside the rotary table, and 2 where memory is out.
RS_EXPORT int rs_stack_run(void* handle, void* plan_handle, int bf16_x, void* pool, long plane, void* residual, const int* positions,
                           const int64_t* rows, long num_rows, void* out) {
    auto& stack = *static_cast<rs::Stack*>(handle);
    auto& plan = *static_cast<rs::Plan*>(plan_handle);
    for (long t = 0; t < plan.num_tokens; ++t)
        if (positions[t] < 0 || positions[t] >= stack.table_rows) return 1;
    try {
        if (bf16_x) {
#if defined(__AVX512BF16__)
            rs::forward_raw<rs::MathBf16, rs::bf16>(stack, plan, pool, plane, residual, positions, rows, num_rows, out);
#else
            rs::forward_raw<rs::MathF32, rs::bf16>(stack, plan, pool, plane, residual, positions, rows, num_rows, out);
#endif
        } else {
            rs::forward_raw<rs::MathF32, float>(stack, plan, pool, plane, residual, positions, rows, num_rows, out);
        }
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}

}  // extern "C"
