#include "plan.h"

#include <algorithm>

namespace rs {

Scratch::Scratch(const Shape& shape) {
    const int64_t rows = shape.tile_rows(), dim = shape.head_dim;
    const int64_t line = 16;  // floats in a cache line
    const int64_t sizes[] = {block_keys * dim, block_keys * dim, rows * block_keys, rows * dim, rows * block_keys,
                             rows * dim,       rows,             rows,              rows * dim, rows,
                             rows,             rows};
    float** const targets[] = {&keys, &values, &scores, &query, &probs, &part_out, &part_max, &part_sum, &out, &max, &sum, &rescale};
    int64_t total = line;
    for (int64_t size : sizes) total += (size + line - 1) / line * line;
    memory.assign(static_cast<size_t>(total), 0.0f);
    auto address = reinterpret_cast<uintptr_t>(memory.data());
    float* next = memory.data() + ((64 - address % 64) % 64) / sizeof(float);
    for (int i = 0; i < 12; ++i) {
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

void add_tiles(Plan& plan, int sequence, int row, int queries, int kv_len) {
    const Shape& shape = plan.shape;
    for (int done = 0; done < queries; done += shape.tile_tokens()) {
        Tile tile{};
        tile.sequence = sequence;
        tile.row = row + done;
        tile.tokens = std::min(shape.tile_tokens(), queries - done);
        tile.position = kv_len - queries + done;
        tile.key_begin = shape.window > 0 ? std::max(0, tile.position - shape.window + 1) : 0;
        tile.key_end = tile.position + tile.tokens;
        tile.split_begin = tile.key_begin / split_keys;
        tile.split_end = (tile.key_end + split_keys - 1) / split_keys;
        tile.partial = -1;
        for (tile.kv_head = 0; tile.kv_head < shape.kv_heads; ++tile.kv_head) plan.tiles.push_back(tile);
    }
}

// Work of a tile over `splits` splits: multiplications by row, and packing whatever the rows.
int64_t cost_of(const Plan& plan, const Tile& tile, int splits) {
    return static_cast<int64_t>(splits) * split_keys * (tile.tokens * plan.shape.group() + 8);
}

// A tile is cut into several items only to keep every thread busy. Splits are merged in the same order either way, so
// how a tile is cut never shows in its result.
void cut_into_items(Plan& plan) {
    int64_t total = 0;
    for (const Tile& tile : plan.tiles) total += cost_of(plan, tile, tile.split_end - tile.split_begin);
    const int64_t fair = std::max<int64_t>(1, total / (4 * std::max(1, plan.shape.threads)));
    int64_t partial_floats = 0;
    for (size_t i = 0; i < plan.tiles.size(); ++i) {
        Tile& tile = plan.tiles[i];
        const int splits = tile.split_end - tile.split_begin;
        const int64_t one = cost_of(plan, tile, 1);
        const int each = plan.shape.threads <= 1 ? splits : static_cast<int>(std::clamp<int64_t>(fair / one, 1, splits));
        for (int s = tile.split_begin; s < tile.split_end; s += each) {
            const int end = std::min(s + each, tile.split_end);
            plan.items.push_back({static_cast<int>(i), s, end, cost_of(plan, tile, end - s)});
            ++tile.items;
        }
        tile.pending = tile.items;
        if (tile.items > 1) {
            tile.partial = partial_floats;
            partial_floats += plan.partial_stride() * splits;
        }
    }
    if (plan.partials.size() < static_cast<size_t>(partial_floats)) plan.partials.resize(static_cast<size_t>(partial_floats));
    std::stable_sort(plan.items.begin(), plan.items.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
}

}  // namespace

int build_plan(Plan& plan, int sequences, int tokens, const int* qo_indptr, const int* kv_len, const int* page_indptr,
               const int* page_indices, const int* slots, int page_size, int64_t num_pages) {
    plan.num_tokens = 0;  // a failed plan must not be run
    const int error = check(sequences, tokens, qo_indptr, kv_len, page_indptr, page_indices, slots, page_size, num_pages);
    if (error != plan_ok) return error;
    plan.page_size = page_size;
    plan.num_sequences = sequences;
    plan.page_indptr.assign(page_indptr, page_indptr + sequences + 1);
    plan.page_indices.assign(page_indices, page_indices + page_indptr[sequences]);
    plan.slots.assign(slots, slots + tokens);
    plan.tiles.clear();
    plan.items.clear();
    plan.kv_elements = 0;
    for (int b = 0; b < sequences; ++b) add_tiles(plan, b, qo_indptr[b], qo_indptr[b + 1] - qo_indptr[b], kv_len[b]);
    for (const Tile& tile : plan.tiles) plan.kv_elements += static_cast<int64_t>(tile.key_end - tile.key_begin) * plan.shape.head_dim;
    cut_into_items(plan);
    const size_t threads = static_cast<size_t>(std::max(1, plan.shape.threads));
    while (plan.scratch.size() < threads) plan.scratch.push_back(std::make_unique<Scratch>(plan.shape));
    plan.num_tokens = tokens;
    return plan_ok;
}

}  // namespace rs
