// Linear layers from packed weights: y[rows, n] = x[rows, k] * W[n, k]^T + bias, weights read once for up to eight rows.
//
// With few rows a product takes as long as its weights take to arrive. With some more that is still about as long as the arithmetic:
// whoever multiplies a tile asks for the weights of the next one meanwhile, over the end of a product too. Which one that is must be
// known, so units are claimed ahead.
#pragma once

#include <atomic>

#include "tile.h"

namespace rs {

// The weights of the tile at `column`, of columns up to `end`.
inline Stretch tile_weights(const Segment& s, int column, int end) {
    const int columns = end - column >= TileSize<kind_bf16>::vecs * Vec::width ? TileSize<kind_bf16>::vecs * Vec::width : panel_columns;
    return {s.data + column / panel_columns * s.panel_bytes, columns / panel_columns * s.panel_bytes};
}

// What a thread does at once: some columns of some rows.
struct Unit {
    const Segment* segment = nullptr;
    int row_begin = 0, row_end = 0, begin = 0, end = 0;

    Stretch weights() const { return segment == nullptr ? Stretch{} : tile_weights(*segment, begin, end); }
};

// In passes of equal size rather than full ones and a rest. `after` is what this thread reads when it is done.
template <Kind kind, class TOut>
void block(const Unit& unit, const Input& in, const Stretch& after, TOut* to, long stride) {
    constexpr int most = TileSize<kind>::rows, vecs = TileSize<kind>::vecs;
    const Segment& s = *unit.segment;
    const int rows = unit.row_end - unit.row_begin, passes = (rows + most - 1) / most;
    const int steps = s.k / (kind == kind_bf16 ? 2 : 4);
    Sums sums;
    for (int column = unit.begin; column < unit.end;) {
        const bool full = unit.end - column >= vecs * Vec::width;
        const int width = full ? vecs * Vec::width : panel_columns;
        const Stretch next = column + width < unit.end ? tile_weights(s, column + width, unit.end) : after;
        for (int p = 0; p < passes; ++p) {
            const int row = unit.row_begin + rows * p / passes, count = unit.row_begin + rows * (p + 1) / passes - row;
            const Errand errand(next, p, passes, steps);
            if (full) {
                tile_of<kind, vecs>(rows, count, s, in, row, column, errand, sums);
            } else {
                tile_of<kind, panel_vecs>(rows, count, s, in, row, column, errand, sums);
            }
            write(sums, s, count, width, column, to + row * stride, stride);
        }
        column += width;
    }
}

template <class TOut>
void block(const Unit& unit, const Input& in, const Stretch& after, TOut* to, long stride) {
    to += unit.segment->first;
    switch (unit.segment->kind) {
        case kind_bf16: return block<kind_bf16>(unit, in, after, to, stride);
        case kind_q8: return block<kind_q8>(unit, in, after, to, stride);
        case kind_q4: return block<kind_q4>(unit, in, after, to, stride);
    }
}

constexpr int unit_rows = 128;
constexpr int most_tiles = 8;

// Columns that a thread takes at once. With few rows they are many, so that it reads on through memory.
inline int columns_at_once(int padded, int rows, int threads) {
    if (padded < 2 * threads * unit_columns) return panel_columns;
    if (rows > few_rows) return unit_columns;
    return std::clamp(padded / unit_columns / (2 * threads), 1, most_tiles) * unit_columns;
}

// The `number`-th unit of a product of so many rows; one without a segment beyond the last.
inline Unit find_unit(const Linear& linear, int rows, int threads, int number) {
    const int row_units = (rows + unit_rows - 1) / unit_rows;
    for (const Segment& s : linear.segments) {
        const int padded = (s.n + panel_columns - 1) / panel_columns * panel_columns;
        const int width = columns_at_once(padded, rows, threads);
        const int count = (padded + width - 1) / width * row_units;
        if (number < count) {
            const int column = number / row_units * width, part = number % row_units;
            return {&s, rows * part / row_units, rows * (part + 1) / row_units, column, std::min(column + width, padded)};
        }
        number -= count;
    }
    return {};
}

// Takes units of the product until none is left. All threads of a region call it with the same `next`, which starts at 0. With more
// than a few rows a thread claims a unit while it is at the one before, to ask for its weights meanwhile, and during its last it asks
// for `after`. With few it would gain nothing by that, and units are large: whoever is free takes the next.
template <class TOut>
void multiply(const Linear& linear, const Input& in, int rows, TOut* to, long stride, int thread, int threads, std::atomic<int>& next,
              const Stretch& after = {}) {
    const auto claim = [&] { return find_unit(linear, rows, threads, threads + next.fetch_add(1)); };
    for (Unit unit = find_unit(linear, rows, threads, thread); unit.segment != nullptr;) {
        if (rows <= few_rows) {
            block(unit, in, {}, to, stride);
            unit = claim();
            continue;
        }
        const Unit then = claim();
        const bool same = then.segment == unit.segment && then.begin == unit.begin;  // other rows of the same weights
        block(unit, in, same ? Stretch{} : then.segment == nullptr ? after : then.weights(), to, stride);
        unit = then;
    }
}

}  // namespace rs
