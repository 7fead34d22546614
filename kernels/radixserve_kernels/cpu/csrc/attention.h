// Ragged attention over paged KV: online softmax over blocks of 64 keys, in float32, for prefill and decode alike.
//
// A query row always meets the same blocks in the same order with the same arithmetic, whatever else is in its tile, its
// chunk or the batch: fully masked keys change nothing, and splits of 256 keys are merged in order. So an answer doesn't
// depend on its company, on how its prompt was chunked, on what it shares with others, or on the number of threads.
//
// The pool is [pages, Hkv, P, D] for keys and for values: what one item reads of a page is one straight run of memory.
#pragma once

#include <sched.h>

#include <atomic>

#include "pack.h"
#include "plan.h"
#include "softmax.h"
#include "threads.h"

namespace rs {

// One layer of one step.
template <class TQ, class TKV>
struct Layer {
    TKV *pool_k, *pool_v;
    const TQ *q, *k, *v;
    long q_stride, k_stride, v_stride;  // elements between tokens
    TQ* out;
};

template <class Math, class TQ, class TKV>
class Worker {
   public:
    // `pass` counts the layers that this plan has served, this one included.
    Worker(Plan& plan, const Layer<TQ, TKV>& layer, Scratch& scratch, int64_t pass)
        : plan_(plan), layer_(layer), s_(scratch), pass_(pass), dim_(plan.shape.head_dim), group_(plan.shape.group()) {}

    // `after` is what this thread is likely to do next, or null: its first block is fetched during the last one here.
    void run(const Item& item, const Item* after) {
        after_ = after;
        Tile& tile = plan_.tiles[item.tile];
        const int item_end = item.split_end * split_keys < tile.key_end ? item.split_end * split_keys : tile.key_end;
        load_query(tile);
        Owner& first = plan_.owners[plan_.members[tile.member_begin]];
        if (first.partial < 0) {
            run_whole(tile, first, item, item_end);
            return;
        }
        if (tile.parent >= 0 && item.split_begin == tile.split_begin()) wait_for(plan_.tiles[tile.parent]);
        for (int split = item.split_begin; split < item.split_end; ++split) attend_kept(tile, first, split, item_end);
        __atomic_add_fetch(&tile.done, 1, __ATOMIC_RELEASE);
        for (int m = tile.member_begin; m < tile.member_end; ++m) finish(plan_.owners[plan_.members[m]]);
    }

   private:
    using A = typename Math::A;

    // One item does all of one owner's keys.
    void run_whole(const Tile& tile, const Owner& owner, const Item& item, int item_end) {
        State whole{s_.out, s_.max, s_.sum}, part{s_.part_out, s_.part_max, s_.part_sum};
        reset(whole, tile.rows, dim_);
        attend_split(tile, item.split_begin, item_end, whole);
        for (int split = item.split_begin + 1; split < item.split_end; ++split) {
            reset(part, tile.rows, dim_);
            attend_split(tile, split, item_end, part);
            merge(whole, part, tile.rows, dim_);
        }
        write(owner, whole);
    }

    // One split whose softmax is kept apart for each owner; goes on from what is kept where the tile starts amid the split.
    void attend_kept(const Tile& tile, const Owner& first, int split, int item_end) {
        const bool goes_on = tile.key_begin > split * split_keys && tile.parent >= 0;
        if (!tile.shared()) {
            State kept = partial(first, split);
            if (!goes_on) reset(kept, tile.rows, dim_);
            attend_split(tile, split, item_end, kept);
            return;
        }
        State state{s_.part_out, s_.part_max, s_.part_sum};
        if (goes_on) {
            for_members(tile, split, [&](const State& kept, const State& mine, int rows) { copy(kept, mine, rows, dim_); }, state);
        } else {
            reset(state, tile.rows, dim_);
        }
        attend_split(tile, split, item_end, state);
        for_members(tile, split, [&](const State& kept, const State& mine, int rows) { copy(mine, kept, rows, dim_); }, state);
    }

    // use(what is kept for an owner, its rows of `state`, how many).
    template <class Use>
    void for_members(const Tile& tile, int split, Use&& use, const State& state) {
        long row = 0;
        for (int m = tile.member_begin; m < tile.member_end; ++m) {
            const Owner& owner = plan_.owners[plan_.members[m]];
            use(partial(owner, split), State{state.out + row * dim_, state.max + row, state.sum + row}, plan_.rows(owner));
            row += plan_.rows(owner);
        }
    }

    // Whoever finishes an owner last puts it together.
    void finish(Owner& owner) {
        if (__atomic_sub_fetch(&owner.pending, 1, __ATOMIC_ACQ_REL) != 0) return;
        owner.pending = owner.items;
        const State first = partial(owner, owner.split_begin);
        for (int split = owner.split_begin + 1; split < owner.split_end; ++split)
            merge(first, partial(owner, split), plan_.rows(owner), dim_);
        write(owner, first);
    }

    // What it waits for stands before it in the queue, so some thread is at it.
    void wait_for(const Tile& tile) const {
        const int64_t wanted = tile.items * pass_;
        for (int spins = 0; __atomic_load_n(&tile.done, __ATOMIC_ACQUIRE) < wanted; ++spins) {
            if (spins < 4096) {
                _mm_pause();
            } else {
                sched_yield();
            }
        }
    }

    State partial(const Owner& owner, int split) {
        float* at = plan_.partials.data() + owner.partial + (split - owner.split_begin) * plan_.partial_stride(owner);
        const long rows = plan_.rows(owner);
        return {at, at + rows * dim_, at + rows * (dim_ + 1)};
    }

    void load_query(const Tile& tile) {
        A* to = reinterpret_cast<A*>(s_.query);
        for (int m = tile.member_begin; m < tile.member_end; ++m) {
            const Owner& owner = plan_.owners[plan_.members[m]];
            for (int t = 0; t < owner.tokens; ++t, to += group_ * dim_)
                copy_row(layer_.q + (owner.row + t) * layer_.q_stride + static_cast<long>(tile.kv_head) * group_ * dim_, to, group_ * dim_);
        }
    }

    void write(const Owner& owner, const State& state) {
        for (int r = 0; r < plan_.rows(owner); ++r) {
            const long token = owner.row + r / group_, head = static_cast<long>(owner.kv_head) * group_ + r % group_;
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
        // A shared tile ends before any query. Else rows before `first` see nothing of the block.
        const bool all = tile.shared();
        const Owner& owner = plan_.owners[plan_.members[tile.member_begin]];
        const int first = !all && begin > owner.position ? (begin - owner.position) * group_ : 0;
        const int rows = tile.rows - first;
        const A* query = reinterpret_cast<const A*>(s_.query) + static_cast<long>(first) * dim_;
        A* probs = reinterpret_cast<A*>(s_.probs);
        gemm<Math>(rows, padded, dim_, query, dim_, s_.keys, block_keys, s_.scores, block_keys, false);
        const float scale = plan_.shape.scale * log2_e;
        for (int r = 0; r < rows; ++r) {
            const int position = all ? tile.key_end : owner.position + (first + r) / group_;
            const int visible_end = position + 1 - begin < count ? position + 1 - begin : count;
            const int from = !all && window > 0 && position - window + 1 > begin ? position - window + 1 - begin : 0;
            softmax_row(s_.scores + r * block_keys, probs + r * block_keys, from < padded ? from : padded, visible_end, padded, dim_,
                        scale, state, first + r);
        }
        pack_values<Math, TKV>(s_.rows_v, count, padded, dim_, s_.values, {s_.next_v, s_.next_count, row_bytes});
        gemm<Math>(rows, dim_, padded, probs, block_keys, s_.values, dim_, state.out + static_cast<long>(first) * dim_, dim_, true);
    }

    Plan& plan_;
    const Layer<TQ, TKV>& layer_;
    Scratch& s_;
    const int64_t pass_;
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

// Takes items until none is left. All of the step's KV must have been written; `next` starts at 0 for all threads of the pass.
template <class Math, class TQ, class TKV>
void attend_items(Plan& plan, const Layer<TQ, TKV>& layer, int thread, int threads, int64_t pass, std::atomic<size_t>& next) {
    Worker<Math, TQ, TKV> worker(plan, layer, *plan.scratch[thread], pass);
    const size_t items = plan.items.size();
    for (size_t i = next.fetch_add(1); i < items; i = next.fetch_add(1)) {
        const size_t likely = i + static_cast<size_t>(threads);
        worker.run(plan.items[i], likely < items ? &plan.items[likely] : nullptr);
    }
}

}  // namespace rs
