// What one step of attention has to do, cut into items that threads take one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace rs {

constexpr int block_keys = 64;    // keys in one online-softmax update; blocks start at multiples of it from position 0
constexpr int split_keys = 256;   // keys whose softmax is kept apart and merged in order; a multiple of block_keys
constexpr int target_rows = 96;   // query rows (tokens times heads of a group) that share one pass over the keys

struct Shape {
    int q_heads, kv_heads, head_dim;
    float scale;
    int window;
    int threads;
    int group() const { return q_heads / kv_heads; }
    int tile_tokens() const { return group() >= target_rows ? 1 : target_rows / group(); }
    int tile_rows() const { return tile_tokens() * group(); }
};

// Consecutive query tokens of one sequence and the heads that share a KV head.
struct Tile {
    int sequence;
    int row;              // first row in q
    int tokens;
    int position;         // of its first token
    int kv_head;
    int key_begin, key_end;      // keys that any of its rows sees
    int split_begin, split_end;  // in units of split_keys
    int64_t partial = -1;        // offset of its partial results, or -1 where one item does the whole tile
    int pending = 0;             // items that still work on it in this pass
    int items = 0;
};

struct Item {
    int tile;
    int split_begin, split_end;
    int64_t cost;
};

// Every buffer that one thread needs, in one aligned block.
struct Scratch {
    std::vector<float> memory;
    float *keys, *values, *scores, *query, *probs;
    float *part_out, *part_max, *part_sum, *out, *max, *sum, *rescale;
    const void *rows_k[block_keys], *rows_v[block_keys];  // of the current block
    const void *next_k[block_keys], *next_v[block_keys];  // of the block to fetch meanwhile
    int next_count = 0;
    explicit Scratch(const Shape& shape);
};

struct Plan {
    Shape shape;
    int num_sequences = 0, num_tokens = 0, page_size = 1;
    int64_t kv_elements = 0;  // key values that will be read: tells whether threads pay
    std::vector<int> page_indptr, page_indices, slots;
    std::vector<Tile> tiles;
    std::vector<Item> items;
    std::vector<float> partials;
    std::vector<std::unique_ptr<Scratch>> scratch;

    int64_t partial_stride() const { return static_cast<int64_t>(shape.tile_rows()) * (shape.head_dim + 2); }
};

enum PlanError { plan_ok = 0, bad_indptr = 1, bad_kv_len = 2, too_few_pages = 3, bad_page = 4, bad_slot = 5, no_memory = 6 };

// Fills the plan of a step from the arrays of a RaggedBatch.
int build_plan(Plan& plan, int sequences, int tokens, const int* qo_indptr, const int* kv_len, const int* page_indptr,
               const int* page_indices, const int* slots, int page_size, int64_t num_pages);

}  // namespace rs
