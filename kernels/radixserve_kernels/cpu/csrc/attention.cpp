// Ragged attention over paged KV: online softmax over blocks of 64 keys, in float32, for prefill and decode alike.
//
// A query row always meets the same blocks in the same order with the same arithmetic, whatever else is in its tile, its
// chunk or the batch: fully masked keys change nothing, and splits of 256 keys are merged in order. So an answer doesn't
// depend on its company, on how its prompt was chunked, or on the number of threads.
//
// The pool is [pages, Hkv, P, D] for keys and for values: what one item reads of a page is one straight run of memory.

#include <atomic>
#include <limits>
#include <new>

#include "gemm.h"
#include "plan.h"
#include "threads.h"

namespace rs {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr float log2_e = 1.44269504f;

// The part of a thread's scratch that holds a running softmax over rows.
struct State {
    float *out, *max, *sum;
};

// One layer of one step.
template <class TQ, class TKV>
struct Layer {
    TKV *pool_k, *pool_v;
    const TQ *q, *k, *v;
    long q_stride, k_stride, v_stride;  // elements between tokens
    TQ* out;
};

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
    if (now != before) {
        const float rescale = exp2_scalar(before - base);
        const Vec by = set1(rescale);
        float* out = state.out + static_cast<long>(row) * dim;
        for (int d = 0; d < dim; d += Vec::width) store(out + d, mul(load(out + d), by));
        state.sum[row] *= rescale;
    }
    state.sum[row] += sum(total);
    state.max[row] = now;
}

void reset(State& state, int rows, int dim) {
    std::memset(state.out, 0, sizeof(float) * rows * dim);
    std::memset(state.sum, 0, sizeof(float) * rows);
    for (int r = 0; r < rows; ++r) state.max[r] = minus_infinity;
}

// Adds what `part` saw to `into`; the order of calls is the order of keys.
void merge(const State& into, const State& part, int rows, int dim) {
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

template <class Math, class TQ, class TKV>
class Worker {
   public:
    Worker(Plan& plan, const Layer<TQ, TKV>& layer, Scratch& scratch)
        : plan_(plan), layer_(layer), s_(scratch), dim_(plan.shape.head_dim), group_(plan.shape.group()) {}

    // `after` is what this thread is likely to do next, or null: its first block is fetched during the last one here.
    void run(const Item& item, const Item* after) {
        after_ = after;
        Tile& tile = plan_.tiles[item.tile];
        const int rows = tile.tokens * group_;
        const int item_end = item.split_end * split_keys < tile.key_end ? item.split_end * split_keys : tile.key_end;
        load_query(tile);
        State whole{s_.out, s_.max, s_.sum}, part{s_.part_out, s_.part_max, s_.part_sum};
        if (tile.partial < 0) {
            reset(whole, rows, dim_);
            attend_split(tile, item.split_begin, item_end, whole);
            for (int split = item.split_begin + 1; split < item.split_end; ++split) {
                reset(part, rows, dim_);
                attend_split(tile, split, item_end, part);
                merge(whole, part, rows, dim_);
            }
            write(tile, whole);
            return;
        }
        for (int split = item.split_begin; split < item.split_end; ++split) {
            State kept = partial(tile, split);
            reset(kept, rows, dim_);
            attend_split(tile, split, item_end, kept);
        }
        // Whoever finishes a tile last puts it together.
        if (__atomic_sub_fetch(&tile.pending, 1, __ATOMIC_ACQ_REL) == 0) {
            tile.pending = tile.items;
            State first = partial(tile, tile.split_begin);
            for (int split = tile.split_begin + 1; split < tile.split_end; ++split) merge(first, partial(tile, split), rows, dim_);
            write(tile, first);
        }
    }

   private:
    using A = typename Math::A;

    State partial(const Tile& tile, int split) {
        float* at = plan_.partials.data() + tile.partial + (split - tile.split_begin) * plan_.partial_stride();
        const long rows = plan_.shape.tile_rows();
        return {at, at + rows * dim_, at + rows * (dim_ + 1)};
    }

    void load_query(const Tile& tile) {
        A* to = reinterpret_cast<A*>(s_.query);
        for (int t = 0; t < tile.tokens; ++t) {
            const TQ* from = layer_.q + (tile.row + t) * layer_.q_stride + static_cast<long>(tile.kv_head) * group_ * dim_;
            copy_row(from, to, group_ * dim_);
            to += group_ * dim_;
        }
    }

    void write(const Tile& tile, const State& state) {
        for (int r = 0; r < tile.tokens * group_; ++r) {
            const long token = tile.row + r / group_, head = static_cast<long>(tile.kv_head) * group_ + r % group_;
            TQ* to = layer_.out + (token * plan_.shape.q_heads + head) * dim_;
            const Vec total = set1(state.sum[r]);
            const float* from = state.out + static_cast<long>(r) * dim_;
            for (int d = 0; d < dim_; d += Vec::width) store(to + d, div(load(from + d), total));
        }
    }

    PageWalk<TKV> walk(const Tile& tile) const {
        return {plan_, layer_.pool_k, layer_.pool_v, plan_.page_indices.data() + plan_.page_indptr[tile.sequence], tile.kv_head};
    }

    static int first_block(const Tile& tile, int split) {
        const int skipped = tile.key_begin - split * split_keys;
        return split * split_keys + (skipped > 0 ? skipped / block_keys * block_keys : 0);
    }

    static int block_count(int begin, int end) { return end - begin < block_keys ? end - begin : block_keys; }

    // The block after the one that ends at `begin`: in this tile, or the first one of the next item.
    void locate_next(const Tile& tile, int begin, int end) {
        s_.next_count = 0;
        if (begin < end) {
            s_.next_count = block_count(begin, end);
            walk(tile).locate(begin, s_.next_count, s_.next_k, s_.next_v);
        } else if (after_ != nullptr) {
            const Tile& other = plan_.tiles[after_->tile];
            const int first = first_block(other, after_->split_begin);
            s_.next_count = block_count(first, other.key_end);
            walk(other).locate(first, s_.next_count, s_.next_k, s_.next_v);
        }
    }

    void attend_split(const Tile& tile, int split, int item_end, State& state) {
        const int end = (split + 1) * split_keys < tile.key_end ? (split + 1) * split_keys : tile.key_end;
        for (int begin = first_block(tile, split); begin < end; begin += block_keys) {
            const int count = block_count(begin, end);
            walk(tile).locate(begin, count, s_.rows_k, s_.rows_v);
            locate_next(tile, begin + block_keys, item_end);
            attend_block(tile, begin, count, state);
        }
    }

    void attend_block(const Tile& tile, int begin, int count, State& state) {
        const int padded = (count + 15) / 16 * 16;
        const int window = plan_.shape.window;
        const long row_bytes = static_cast<long>(sizeof(TKV)) * dim_;
        pack_keys<Math, TKV>(s_.rows_k, count, padded, dim_, s_.keys, {s_.next_k, s_.next_count, row_bytes});
        // Rows before this one see nothing of the block.
        const int first = begin > tile.position ? (begin - tile.position) * group_ : 0;
        const int rows = tile.tokens * group_ - first;
        const A* query = reinterpret_cast<const A*>(s_.query) + static_cast<long>(first) * dim_;
        A* probs = reinterpret_cast<A*>(s_.probs);
        for (int r = 0; r < rows; ++r) std::memset(s_.scores + r * block_keys, 0, sizeof(float) * padded);
        gemm<Math>(rows, padded, dim_, query, dim_, s_.keys, block_keys, s_.scores, block_keys);
        const float scale = plan_.shape.scale * log2_e;
        for (int r = 0; r < rows; ++r) {
            const int position = tile.position + (first + r) / group_;
            const int visible_end = position + 1 - begin < count ? position + 1 - begin : count;
            const int from = window > 0 && position - window + 1 > begin ? position - window + 1 - begin : 0;
            softmax_row(s_.scores + r * block_keys, probs + r * block_keys, from < padded ? from : padded, visible_end, padded, dim_,
                        scale, state, first + r);
        }
        pack_values<Math, TKV>(s_.rows_v, count, padded, dim_, s_.values, {s_.next_v, s_.next_count, row_bytes});
        gemm<Math>(rows, dim_, padded, probs, block_keys, s_.values, dim_, state.out + static_cast<long>(first) * dim_, dim_);
    }

    Plan& plan_;
    const Layer<TQ, TKV>& layer_;
    Scratch& s_;
    const int dim_, group_;
    const Item* after_ = nullptr;
};

template <class TQ, class TKV>
void write_kv(const Plan& plan, const Layer<TQ, TKV>& layer, long begin, long end) {
    const int heads = plan.shape.kv_heads, dim = plan.shape.head_dim;
    for (long t = begin; t < end; ++t) {
        const long page = plan.slots[t] / plan.page_size, in_page = plan.slots[t] % plan.page_size;
        for (int h = 0; h < heads; ++h) {
            const long at = ((page * heads + h) * plan.page_size + in_page) * dim;
            copy_row(layer.k + t * layer.k_stride + h * dim, layer.pool_k + at, dim);
            copy_row(layer.v + t * layer.v_stride + h * dim, layer.pool_v + at, dim);
        }
    }
}

template <class Math, class TQ, class TKV>
void attend(Plan& plan, const Layer<TQ, TKV>& layer) {
    constexpr int64_t worth_threads = 32 * 1024;
    const int threads = plan.kv_elements < worth_threads ? 1 : plan.shape.threads;
    std::atomic<size_t> next{0};
    parallel(threads, [&](int thread, int count) {
        write_kv(plan, layer, static_cast<long>(plan.num_tokens) * thread / count, static_cast<long>(plan.num_tokens) * (thread + 1) / count);
        barrier(count);
        Worker<Math, TQ, TKV> worker(plan, layer, *plan.scratch[thread]);
        const size_t items = plan.items.size();
        for (size_t i = next.fetch_add(1); i < items; i = next.fetch_add(1)) {
            const size_t likely = i + static_cast<size_t>(count);
            worker.run(plan.items[i], likely < items ? &plan.items[likely] : nullptr);
        }
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

RS_EXPORT void* rs_plan_create(int q_heads, int kv_heads, int head_dim, float scale, int window, int threads) {
    auto* plan = new (std::nothrow) rs::Plan;
    if (plan != nullptr) plan->shape = {q_heads, kv_heads, head_dim, scale, window, threads};
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
