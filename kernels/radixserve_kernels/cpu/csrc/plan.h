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
    bool cascade = true;  // whether sequences with the same first pages share passes over them
    int group() const { return q_heads / kv_heads; }
    int tile_tokens() const { return group() >= target_rows ? 1 : target_rows / group(); }
    int tile_rows() const { return tile_tokens() * group(); }
};

// Consecutive query tokens of one sequence and the heads that share a KV head: what is put together and written at once.
struct Owner {
    int sequence;
    int row;       // first row in q
    int tokens;
    int position;  // of its first token
    int kv_head;
    int split_begin, split_end;  // in units of split_keys
    int64_t partial = -1;        // offset of its partial results, one for each split, or -1 where one item does it all
    int pending = 0;             // items that still work on it in this pass
    int items = 0;
};

// One pass over keys: of one owner, or of several whose sequences have these keys in common.
struct Tile {
    int sequence;                   // whose page table leads to the keys
    int kv_head;
    int member_begin, member_end;   // in Plan::members
    int rows;
    int key_begin, key_end;         // keys that any of its rows sees
    int parent = -1;                // the tile that began the split in which this one goes on, or -1: key_begin starts a split
    int depth = 0;                  // of parents
    int items = 0;
    int64_t done = 0;               // items done since the plan was made

    int split_begin() const { return key_begin / split_keys; }
    int split_end() const { return (key_end + split_keys - 1) / split_keys; }
    bool shared() const { return member_end - member_begin > 1; }
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
    float *part_out, *part_max, *part_sum, *out, *max, *sum;
    const void *rows_k[block_keys], *rows_v[block_keys];  // of the current block
    const void *next_k[block_keys], *next_v[block_keys];  // of the block to fetch meanwhile
    int next_count = 0;
    explicit Scratch(const Shape& shape);
};

struct Plan {
    Shape shape;
    int num_sequences = 0, num_tokens = 0, page_size = 1;
    int64_t kv_elements = 0;  // key values that will be read: tells whether threads pay
    int64_t passes = 0;       // layers attended to with this plan
    std::vector<int> page_indptr, page_indices, slots;
    std::vector<Owner> owners;
    std::vector<int> members;      // indices of owners
    std::vector<int> first_owner;  // of each sequence of one tile: the first of its kv_heads owners, or -1
    std::vector<Tile> tiles;
    std::vector<Item> items;
    std::vector<float> partials;
    std::vector<std::unique_ptr<Scratch>> scratch;

    int rows(const Owner& owner) const { return owner.tokens * shape.group(); }
    int64_t partial_stride(const Owner& owner) const { return static_cast<int64_t>(rows(owner)) * (shape.head_dim + 2); }
};

// One sequence of a step.
struct Work {
    int sequence;
    int row, queries;
    int kv_len;
    int first_position() const { return kv_len - queries; }
};

enum PlanError { plan_ok = 0, bad_indptr = 1, bad_kv_len = 2, too_few_pages = 3, bad_page = 4, bad_slot = 5, no_memory = 6 };

// Fills the plan of a step from the arrays of a RaggedBatch.
int build_plan(Plan& plan, int sequences, int tokens, const int* qo_indptr, const int* kv_len, const int* page_indptr,
               const int* page_indices, const int* slots, int page_size, int64_t num_pages);

// The first of the kv_heads owners, side by side, of a sequence whose rows fit one tile. Made when first asked for.
int first_owner(Plan& plan, const Work& work);

// Completes and adds a tile; `parent` is the first of the kv_heads tiles that hold the keys before it, or -1.
void add_tile(Plan& plan, Tile tile, int sequence, int kv_head, int parent);

// Adds a sequence whose rows fit one tile from key `begin` on, as tiles of its own.
void add_own_tiles(Plan& plan, const Work& work, int begin, int parent);

// Adds sequences whose rows fit one tile each; where some have keys in common these become tiles that they share. Sorts `work`.
void add_sharing(Plan& plan, std::vector<Work>& work);

}  // namespace rs
