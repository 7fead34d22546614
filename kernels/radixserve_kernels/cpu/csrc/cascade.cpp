// Cascade: keys that several sequences of a step have in common, found by their page tables, are read once for all of them.
//
// Sequences sorted by page table form a tree whose inner nodes are ranges of them; every node becomes a tile over the keys that
// its range has in common beyond its parent's. A row still meets the same blocks in the same order: where a node ends within a
// split its rows' softmax is kept and the child goes on from there, so that sharing never shows in a result.

#include <algorithm>

#include "plan.h"

namespace rs {
namespace {

// Keys that need not be read again, summed over sequences, below which a shared pass isn't worth its bookkeeping.
constexpr int worth_keys = 256;

class Sharing {
   public:
    Sharing(Plan& plan, std::vector<Work>& work) : plan_(plan), work_(work) {}

    void run() {
        std::sort(work_.begin(), work_.end(), [this](const Work& a, const Work& b) {
            const int *pa = pages(a), *pb = pages(b);
            return std::lexicographical_compare(pa, pa + num_pages(a), pb, pb + num_pages(b));
        });
        descend(0, static_cast<int>(work_.size()), 0, -1);
    }

   private:
    const int* pages(const Work& w) const { return plan_.page_indices.data() + plan_.page_indptr[w.sequence]; }
    int num_pages(const Work& w) const { return (w.first_position() + plan_.page_size - 1) / plan_.page_size; }

    // Blocks of keys that a and b have in common. Only those before any query: a query's own keys need a mask.
    int common(const Work& a, const Work& b) const {
        const int limit = std::min(a.first_position(), b.first_position());
        const int full = std::min(num_pages(a), num_pages(b));
        const int* end = std::mismatch(pages(a), pages(a) + full, pages(b)).first;
        const int64_t keys = static_cast<int64_t>(end - pages(a)) * plan_.page_size;
        return static_cast<int>(std::min<int64_t>(keys, limit)) / block_keys;
    }

    // Plans [begin, end) of the sorted sequences from block `start` on; `parent` holds the blocks before.
    void descend(int begin, int end, int start, int parent) {
        if (end - begin == 1) {
            add_own_tiles(plan_, work_[begin], start * block_keys, parent);
            return;
        }
        int shared = common(work_[begin], work_[end - 1]);
        for (int i = begin; i < end; ++i) shared = std::min(shared, work_[i].first_position() / block_keys);
        if ((shared - start) * block_keys * (end - begin - 1) >= worth_keys) {
            for (int i = begin; i < end;) i = add_shared_tiles(i, end, start, shared, parent);
            return;
        }
        for (int i = begin; i < end;) {
            int next = i + 1;
            while (next < end && common(work_[next - 1], work_[next]) > shared) ++next;
            descend(i, next, start, parent);
            i = next;
        }
    }

    // As many sequences from `begin` on as fit one tile; returns the first that did not.
    int add_shared_tiles(int begin, int end, int start, int shared, int parent) {
        const int group = plan_.shape.group();
        int next = begin, rows = 0;
        for (; next < end && rows + work_[next].queries * group <= plan_.shape.tile_rows(); ++next) rows += work_[next].queries * group;
        if (next - begin == 1) {
            add_own_tiles(plan_, work_[begin], start * block_keys, parent);
            return next;
        }
        const int first = static_cast<int>(plan_.tiles.size());
        for (int head = 0; head < plan_.shape.kv_heads; ++head) {
            Tile tile{};
            tile.member_begin = static_cast<int>(plan_.members.size());
            for (int i = begin; i < next; ++i) plan_.members.push_back(first_owner(plan_, work_[i]) + head);
            tile.member_end = static_cast<int>(plan_.members.size());
            tile.rows = rows;
            tile.key_begin = start * block_keys;
            tile.key_end = shared * block_keys;
            add_tile(plan_, tile, work_[begin].sequence, head, parent);
        }
        descend(begin, next, shared, first);
        return next;
    }

    Plan& plan_;
    std::vector<Work>& work_;
};

}  // namespace

void add_sharing(Plan& plan, std::vector<Work>& work) {
    if (!work.empty()) Sharing(plan, work).run();
}

}  // namespace rs
