#include "plan.h"

#include <algorithm>

namespace rs {

Scratch::Scratch(const Shape& shape) {
    const int64_t rows = shape.tile_rows(), dim = shape.head_dim;
    const int64_t line = 16;  // floats in a cache line
    const int64_t sizes[] = {block_keys * dim, block_keys * dim, rows * block_keys, rows * dim, rows * block_keys,
                             rows * dim,       rows,             rows,              rows * dim, rows,
                             rows};
    float** const targets[] = {&keys, &values, &scores, &query, &probs, &part_out, &part_max, &part_sum, &out, &max, &sum};
    int64_t total = line;
    for (int64_t size : sizes) total += (size + line - 1) / line * line;
    memory.assign(static_cast<size_t>(total), 0.0f);
    auto address = reinterpret_cast<uintptr_t>(memory.data());
    float* next = memory.data() + ((64 - address % 64) % 64) / sizeof(float);
    for (int i = 0; i < 11; ++i) {
        *targets[i] = next;
        next += (sizes[i] + line - 1) / line * line;
    }
}

namespace {

int check(int sequences, int tokens, const int* qo_indptr, const int* kv_len, const int* page_indptr, const int* page_indices,
          const int* slots, int page_size, int64_t num_pages) {
    if (qo_indptr[0] != 0 || qo_indptr[sequences] != tokens || page_indptr[0] != 0) return bad_indptr;
    for (int b = 0; b < sequences; ++b) {
        const int queries = qo_indptr[b + 1] - qo_indptr[b];
        const int64_t pages = page_indptr[b + 1] - page_indptr[b];
        if (queries < 1 || pages < 0) return bad_indptr;
        if (kv_len[b] < queries) return bad_kv_len;
        if (pages * page_size < kv_len[b]) return too_few_pages;
    }
    for (int i = 0; i < page_indptr[sequences]; ++i)
        if (page_indices[i] < 0 || page_indices[i] >= num_pages) return bad_page;
    for (int t = 0; t < tokens; ++t)
        if (slots[t] < 0 || slots[t] >= num_pages * page_size) return bad_slot;
    return plan_ok;
}

int add_owners(Plan& plan, const Work& work, int row, int tokens, int position) {
    const Shape& shape = plan.shape;
    const int first = static_cast<int>(plan.owners.size());
    Owner owner{};
    owner.row = row;
    owner.tokens = tokens;
    owner.position = position;
    owner.split_begin = (shape.window > 0 ? std::max(0, position - shape.window + 1) : 0) / split_keys;
    owner.split_end = (position + tokens + split_keys - 1) / split_keys;
    owner.sequence = work.sequence;
    for (owner.kv_head = 0; owner.kv_head < shape.kv_heads; ++owner.kv_head) plan.owners.push_back(owner);
    return first;
}

// The keys [begin, end of the owner's) for the kv_heads owners from `first` on.
void add_owned(Plan& plan, int first, int begin, int parent) {
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
        const Owner& owner = plan.owners[static_cast<size_t>(first + head)];
        Tile tile{};
        tile.member_begin = static_cast<int>(plan.members.size());
        plan.members.push_back(first + head);
        tile.member_end = tile.member_begin + 1;
        tile.rows = plan.rows(owner);
        tile.key_begin = begin;
        tile.key_end = owner.position + owner.tokens;
        add_tile(plan, tile, owner.sequence, head, parent);
    }
}

// Many queries of one sequence: they share passes among themselves.
void add_long(Plan& plan, const Work& work) {
    const Shape& shape = plan.shape;
    for (int done = 0; done < work.queries; done += shape.tile_tokens()) {
        const int tokens = std::min(shape.tile_tokens(), work.queries - done), position = work.first_position() + done;
        const int first = add_owners(plan, work, work.row + done, tokens, position);
        add_owned(plan, first, shape.window > 0 ? std::max(0, position - shape.window + 1) : 0, -1);
    }
}

// Work of a tile over `splits` splits: multiplications by row, and packing whatever the rows.
int64_t cost_of(const Tile& tile, int splits) { return static_cast<int64_t>(splits) * split_keys * (tile.rows + 8); }

// A tile is cut into several items only to keep every thread busy. Splits are merged in the same order either way, so
// how a tile is cut never shows in its result.
void cut_into_items(Plan& plan) {
    int64_t total = 0;
    for (const Tile& tile : plan.tiles) total += cost_of(tile, tile.split_end() - tile.split_begin());
    const int64_t fair = std::max<int64_t>(1, total / (4 * std::max(1, plan.shape.threads)));
    for (size_t i = 0; i < plan.tiles.size(); ++i) {
        Tile& tile = plan.tiles[i];
        const int splits = tile.split_end() - tile.split_begin();
        const int64_t one = cost_of(tile, 1);
        const int each = plan.shape.threads <= 1 ? splits : static_cast<int>(std::clamp<int64_t>(fair / one, 1, splits));
        for (int s = tile.split_begin(); s < tile.split_end(); s += each) {
            const int end = std::min(s + each, tile.split_end());
            plan.items.push_back({static_cast<int>(i), s, end, cost_of(tile, end - s)});
            ++tile.items;
        }
        for (int m = tile.member_begin; m < tile.member_end; ++m) plan.owners[plan.members[m]].items += tile.items;
    }
    // An item that goes on where others stopped comes after them in the queue, so that whoever takes it never waits for work
    // that nobody has begun.
    const auto depth = [&plan](const Item& item) { return plan.tiles[item.tile].parent < 0 ? 0 : plan.tiles[item.tile].depth; };
    std::stable_sort(plan.items.begin(), plan.items.end(), [&depth](const Item& a, const Item& b) {
        const int da = depth(a), db = depth(b);
        return da != db ? da < db : a.cost > b.cost;
    });
}

void place_partials(Plan& plan) {
    int64_t floats = 0;
    for (Owner& owner : plan.owners) {
        owner.pending = owner.items;
        if (owner.items < 2) continue;
        owner.partial = floats;
        floats += plan.partial_stride(owner) * (owner.split_end - owner.split_begin);
    }
    if (plan.partials.size() < static_cast<size_t>(floats)) plan.partials.resize(static_cast<size_t>(floats));
}

}  // namespace

void add_tile(Plan& plan, Tile tile, int sequence, int kv_head, int parent) {
    tile.sequence = sequence;
    tile.kv_head = kv_head;
    if (parent >= 0) {
        const Tile& before = plan.tiles[static_cast<size_t>(parent + kv_head)];
        tile.depth = before.depth + 1;
        tile.parent = tile.key_begin % split_keys != 0 ? parent + kv_head : -1;
    }
    plan.tiles.push_back(tile);
    plan.kv_elements += static_cast<int64_t>(tile.key_end - tile.key_begin) * plan.shape.head_dim;
}

int first_owner(Plan& plan, const Work& work) {
    int& first = plan.first_owner[static_cast<size_t>(work.sequence)];
    if (first < 0) first = add_owners(plan, work, work.row, work.queries, work.first_position());
    return first;
}

void add_own_tiles(Plan& plan, const Work& work, int begin, int parent) { add_owned(plan, first_owner(plan, work), begin, parent); }

int build_plan(Plan& plan, int sequences, int tokens, const int* qo_indptr, const int* kv_len, const int* page_indptr,
               const int* page_indices, const int* slots, int page_size, int64_t num_pages) {
    plan.num_tokens = 0;  // a failed plan must not be run
    const int error = check(sequences, tokens, qo_indptr, kv_len, page_indptr, page_indices, slots, page_size, num_pages);
    if (error != plan_ok) return error;
    const Shape& shape = plan.shape;
    plan.page_size = page_size;
    plan.num_sequences = sequences;
    plan.page_indptr.assign(page_indptr, page_indptr + sequences + 1);
    plan.page_indices.assign(page_indices, page_indices + page_indptr[sequences]);
    plan.slots.assign(slots, slots + tokens);
    plan.first_owner.assign(static_cast<size_t>(sequences), -1);
    plan.owners.clear();
    plan.members.clear();
    plan.tiles.clear();
    plan.items.clear();
    plan.kv_elements = plan.passes = 0;
    std::vector<Work> few;
    for (int b = 0; b < sequences; ++b) {
        const Work work{b, qo_indptr[b], qo_indptr[b + 1] - qo_indptr[b], kv_len[b]};
        // Where the window hides a sequence's first keys it has nothing to share.
        const bool whole = shape.window == 0 || work.kv_len <= shape.window;
        if (shape.cascade && sequences > 1 && whole && work.queries <= shape.tile_tokens()) {
            few.push_back(work);
        } else {
            add_long(plan, work);
        }
    }
    add_sharing(plan, few);
    cut_into_items(plan);
    place_partials(plan);
    const size_t threads = static_cast<size_t>(std::max(1, shape.threads));
    while (plan.scratch.size() < threads) plan.scratch.push_back(std::make_unique<Scratch>(shape));
    plan.num_tokens = tokens;
    return plan_ok;
}

}  // namespace rs
