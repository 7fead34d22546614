// The small operators beside attention, a row at a time.
#pragma once

#include "vec.h"

namespace rs {

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

// residual += x; x = norm(residual).
template <class T, class TW>
void add_normalise(T* x, T* residual, const TW* weight, int n, float eps) {
    int i = 0;
    for (; i + Vec::width <= n; i += Vec::width) store(residual + i, add(load(x + i), load(residual + i)));
    for (; i < n; ++i) put(residual + i, to_float(x[i]) + to_float(residual[i]));
    normalise(residual, weight, x, n, eps);
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

// to = silu(gate) * up.
template <class T>
void silu_multiply(const T* gate, const T* up, T* to, int n) {
    const Vec one = set1(1.0f), minus_log2_e = set1(-1.44269504f);
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

}  // namespace rs
