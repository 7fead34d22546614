// Running softmax over blocks of keys, a row at a time, in float32.
#pragma once

#include <limits>

#include "vec.h"

namespace rs {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr float log2_e = 1.44269504f;

// A running softmax over rows: weighted sums [rows, dim] of values, largest score and sum of weights of each row.
struct State {
    float *out, *max, *sum;
};

// Probabilities of one row over a block; updates its running maximum and sum and rescales what it has summed so far.
template <class A>
void softmax_row(float* scores, A* probs, int visible_begin, int visible_end, int padded, int dim, float scale, State& state, int row) {
    for (int j = 0; j < visible_begin; ++j) scores[j] = minus_infinity;
    for (int j = visible_end; j < padded; ++j) scores[j] = minus_infinity;
    Vec high = set1(minus_infinity);
    for (int j = 0; j < padded; j += Vec::width) high = max(high, load(scores + j));
    const float before = state.max[row];
    const float block_max = highest(high) * scale;
    const float now = before > block_max ? before : block_max;
    const float base = now == minus_infinity ? 0.0f : now;  // nothing visible yet: every weight is 0
    Vec total = zero();
    const Vec factor = set1(scale), shift = set1(-base);
    for (int j = 0; j < padded; j += Vec::width) {
        const Vec p = exp2(fma(load(scores + j), factor, shift));
        total = add(total, p);
        store(probs + j, p);
    }
    if (now != before && before != minus_infinity) {  // else there is nothing to rescale, or all of it is 0
        const float rescale = exp2_scalar(before - base);
        const Vec by = set1(rescale);
        float* out = state.out + static_cast<long>(row) * dim;
        for (int d = 0; d < dim; d += Vec::width) store(out + d, mul(load(out + d), by));
        state.sum[row] *= rescale;
    }
    state.sum[row] += sum(total);
    state.max[row] = now;
}

inline void reset(State& state, int rows, int dim) {
    std::memset(state.out, 0, sizeof(float) * rows * dim);
    std::memset(state.sum, 0, sizeof(float) * rows);
    for (int r = 0; r < rows; ++r) state.max[r] = minus_infinity;
}

inline void copy(const State& from, const State& to, int rows, int dim) {
    std::memcpy(to.out, from.out, sizeof(float) * rows * dim);
    std::memcpy(to.max, from.max, sizeof(float) * rows);
    std::memcpy(to.sum, from.sum, sizeof(float) * rows);
}

// Adds what `part` saw to `into`; the order of calls is the order of keys.
inline void merge(const State& into, const State& part, int rows, int dim) {
    for (int r = 0; r < rows; ++r) {
        const float high = into.max[r] > part.max[r] ? into.max[r] : part.max[r];
        const float base = high == minus_infinity ? 0.0f : high;
        const float a = exp2_scalar(into.max[r] - base), b = exp2_scalar(part.max[r] - base);
        const Vec va = set1(a), vb = set1(b);
        float* x = into.out + static_cast<long>(r) * dim;
        const float* y = part.out + static_cast<long>(r) * dim;
        for (int d = 0; d < dim; d += Vec::width) store(x + d, fma(load(x + d), va, mul(load(y + d), vb)));
        into.sum[r] = into.sum[r] * a + part.sum[r] * b;
        into.max[r] = high;
    }
}

}  // namespace rs
