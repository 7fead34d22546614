// Tiles of a linear layer: some rows times some outputs, kept in registers while k runs.
//
// Weights lie in panels of 16 outputs, so that one load serves 16 outputs and one input value (or two or four side by side) is
// broadcast to all of them. Every output is summed over k in order in an accumulator of its own: a row's result doesn't depend
// on the rows beside it, on how columns are cut or on the number of threads. Kinds of a panel:
//
// bf16   [k / 2][16] pairs of bfloat16; float32 sums
// q8     [k / 32] groups of {16 scales float16, [8][16] fours of code + 128}; x is coded too, by row and group
// q4     [k / 32] groups of {16 scales, 16 minima float16, [4][16] fours of two codes, low nibble first}; the same
#pragma once

#include <algorithm>
#include <vector>

#include "integers.h"
#include "vec.h"

namespace rs {

enum Kind { kind_bf16 = 0, kind_q8 = 1, kind_q4 = 2 };

constexpr int panel_columns = 16;
constexpr int panel_vecs = panel_columns / Vec::width;
constexpr int group_values = 32;
constexpr long q8_group_bytes = 32 + 8 * 64;
constexpr long q4_group_bytes = 64 + 4 * 64;

// Some outputs of a layer, of one kind.
struct Segment {
    Kind kind;
    int n, k;
    const char* data;
    const float* bias;  // [n] or null
    int first;          // output where it begins
    long panel_bytes;
};

struct Linear {
    int n = 0, k = 0;
    std::vector<Segment> segments;
    bool has(Kind kind) const {
        return std::any_of(segments.begin(), segments.end(), [kind](const Segment& s) { return s.kind == kind; });
    }
    bool coded() const { return has(kind_q8) || has(kind_q4); }
};

// Rows of x in the forms that the kinds want.
struct Input {
    const bf16* plain = nullptr;
    long stride = 0;
    RowCodes codes;
};

// What a tile came to, before it is rounded: rows of unit_columns values.
constexpr int unit_columns = 48;  // a whole number of tiles with either instruction set
struct Sums {
    alignas(64) float at[8 * unit_columns];
    void put(int row, int vec, Vec sum) { store(at + row * unit_columns + vec * Vec::width, sum); }
};

// With so few rows a pass waits for memory alone: it asks for what comes a little later in each panel that it reads.
constexpr int few_rows = 4;
constexpr long ahead_bytes = 4096;

// Asks for what lies `ahead_bytes` after byte `at` of a panel: beyond its end, the panel of the next tile of NV vectors.
template <int NV>
void fetch_ahead(const Segment& s, const char* panel, long at) {
    const long target = at + ahead_bytes;
    _mm_prefetch(panel + target + (target < s.panel_bytes ? 0 : (NV / panel_vecs - 1) * s.panel_bytes), _MM_HINT_T1);
}

// Weights that lie together.
struct Stretch {
    const char* begin = nullptr;
    long bytes = 0;
};

// With more rows: a part of the weights that this thread wants next, asked for a few lines at each step of a tile's loop. Memory
// then delivers them while this tile is multiplied.
class Errand {
   public:
    // For pass `pass` of `passes` over a tile of so many steps. The last passes share the errand, so that one step asks for little.
    Errand(const Stretch& next, int pass, int passes, int steps) {
        const long lines = next.bytes / line;
        const int parts = std::min(passes, static_cast<int>((lines + steps - 1) / steps)), part = pass - (passes - parts);
        if (part < 0 || parts == 0) return;
        at_ = next.begin + lines * part / parts * line;
        end_ = next.begin + lines * (part + 1) / parts * line;
        each_ = static_cast<int>(((end_ - at_) / line + steps - 1) / steps);
    }

    void step() {
        for (int i = 0; i < each_ && at_ < end_; ++i, at_ += line) _mm_prefetch(at_, _MM_HINT_T1);
    }

   private:
    static constexpr long line = 64;
    const char *at_ = nullptr, *end_ = nullptr;
    int each_ = 0;
};

// ---- float ----------------------------------------------------------------------------------------------------------

#if defined(__AVX512BF16__)
using PairVec = __m512bh;
inline PairVec load_pairs(const char* p) { return (__m512bh)_mm512_loadu_ps(p); }
inline PairVec set_pair(const bf16* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}
inline Vec dot2(Vec sum, PairVec w, PairVec x) { return {_mm512_dpbf16_ps(sum.v, w, x)}; }
#else
struct PairVec {
    Vec low, high;
};
inline PairVec load_pairs(const char* p) {
    const Ints pairs = load_ints(p);
    return {as_floats(shift_left<16>(pairs)), as_floats(keep_high_half(pairs))};
}
inline PairVec set_pair(const bf16* p) { return {set1(to_float(p[0])), set1(to_float(p[1]))}; }
inline Vec dot2(Vec sum, const PairVec& w, const PairVec& x) { return fma(w.high, x.high, fma(w.low, x.low, sum)); }
#endif

template <int R, int NV, bool streams>
void tile_bf16(const Segment& s, const Input& in, int row, int column, Errand errand, Sums& sums) {
    const char* w[NV];
    for (int n = 0; n < NV; ++n) w[n] = panel_at(s.data, s.panel_bytes, column + n * Vec::width);
    const bf16* x[R];
    for (int r = 0; r < R; ++r) x[r] = in.plain + (row + r) * in.stride;
    Vec sum[R][NV];
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < NV; ++n) sum[r][n] = zero();
    for (int k = 0; k < s.k; k += 2) {
        PairVec col[NV];
        for (int n = 0; n < NV; ++n) {
            col[n] = load_pairs(w[n] + k * 32L);
            if constexpr (streams) fetch_ahead<NV>(s, w[n], k * 32L);
        }
        if constexpr (!streams) errand.step();
        for (int r = 0; r < R; ++r) {
            const PairVec v = set_pair(x[r] + k);
            for (int n = 0; n < NV; ++n) sum[r][n] = dot2(sum[r][n], col[n], v);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < NV; ++n) sums.put(r, n, sum[r][n]);
}

// ---- integers -------------------------------------------------------------------------------------------------------

// Codes 4j to 4j + 3 of a group.
template <Kind kind>
FourVec group_codes(const char* codes, int j) {
    if constexpr (kind == kind_q8) return load_fours(codes + j * 64);
    const Ints both = load_ints(codes + j / 2 * 64);
    return as_fours(j % 2 == 0 ? low_nibbles(both) : high_nibbles(both));
}

// Groups of 32 inputs with scales of their own: integer sums within, float32 sums over them.
template <Kind kind, int R, int NV, bool streams>
void tile_groups(const Segment& s, const Input& in, int row, int column, Errand errand, Sums& sums) {
    constexpr long group_bytes = kind == kind_q8 ? q8_group_bytes : q4_group_bytes;
    const RowCodes& rows = in.codes;
    const int groups = s.k / group_values;
    const char *w[NV], *scales[NV];
    for (int n = 0; n < NV; ++n) {
        const int at = column + n * Vec::width;
        const char* panel = s.data + at / panel_columns * s.panel_bytes;
        scales[n] = panel + at % panel_columns * 2;
        w[n] = panel + (kind == kind_q8 ? 32 : 64) + at % panel_columns * 4;
    }
    Vec total[R][NV];
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < NV; ++n) total[r][n] = zero();
    for (int g = 0; g < groups; ++g) {
        const long at = g * group_bytes;
        const int8_t* x = rows.codes + row * rows.stride + g * group_values;
        Ints sum[R][NV];
        for (int r = 0; r < R; ++r) {
            const Ints start = kind == kind_q8 ? set_ints(rows.offset[(row + r) * groups + g]) : set_ints(0);
            for (int n = 0; n < NV; ++n) sum[r][n] = start;
        }
        if constexpr (streams) {
            for (int n = 0; n < NV; ++n)
                for (long b = 0; b < group_bytes; b += 64) fetch_ahead<NV>(s, w[n], at + b);
        }
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
            if constexpr (!streams) errand.step();
            FourVec col[NV];
            for (int n = 0; n < NV; ++n) col[n] = group_codes<kind>(w[n] + at, j);
            for (int r = 0; r < R; ++r) {
                const FourCodes v = set_four(x + r * rows.stride + 4 * j);
                for (int n = 0; n < NV; ++n) sum[r][n] = dot4(sum[r][n], col[n], v);
            }
        }
        Vec scale[NV], low[NV];
        for (int n = 0; n < NV; ++n) {
            scale[n] = load_halves(scales[n] + at);
            low[n] = kind == kind_q4 ? load_halves(scales[n] + at + 32) : zero();
        }
        for (int r = 0; r < R; ++r) {
            const long of = (row + r) * groups + g;
            const Vec by = set1(rows.scale[of]), code_sum = set1(rows.sum[of]);
            for (int n = 0; n < NV; ++n) {
                total[r][n] = fma(mul(to_floats(sum[r][n]), by), scale[n], total[r][n]);
                if constexpr (kind == kind_q4) total[r][n] = fma(code_sum, low[n], total[r][n]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < NV; ++n) sums.put(r, n, total[r][n]);
}

// ---- tiles over rows and columns --------------------------------------------------------------------------------------

// How many rows and vectors of columns fit the registers.
template <Kind kind>
struct TileSize {
#if defined(__AVX512F__)
    static constexpr int rows = kind == kind_bf16 ? 8 : 4, vecs = 3;
#else
    static constexpr int rows = kind == kind_bf16 ? 4 : 2, vecs = 2;
#endif
};

template <Kind kind, int R, int NV, bool streams>
void tile(int rows, const Segment& s, const Input& in, int row, int column, const Errand& errand, Sums& sums) {
    if (rows < R) {
        if constexpr (R > 1) tile<kind, R - 1, NV, streams>(rows, s, in, row, column, errand, sums);
    } else if constexpr (kind == kind_bf16) {
        tile_bf16<R, NV, streams>(s, in, row, column, errand, sums);
    } else {
        tile_groups<kind, R, NV, streams>(s, in, row, column, errand, sums);
    }
}

// Picks the tile for NV vectors of columns and `rows` of the `all` rows of a product.
template <Kind kind, int NV>
void tile_of(int all, int rows, const Segment& s, const Input& in, int row, int column, const Errand& errand, Sums& sums) {
    constexpr int most = TileSize<kind>::rows;
    if (all <= few_rows) {
        tile<kind, std::min(most, few_rows), NV, true>(rows, s, in, row, column, errand, sums);
    } else {
        tile<kind, most, NV, false>(rows, s, in, row, column, errand, sums);
    }
}

// Rounds the sums of a tile and writes them where they belong.
template <class TOut>
void write(const Sums& sums, const Segment& s, int rows, int columns, int column, TOut* to, long stride) {
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; c += Vec::width) {
            Vec sum = load(sums.at + r * unit_columns + c);
            if (s.bias != nullptr) sum = add(sum, load(s.bias + column + c));
            store(to + r * stride + column + c, sum);
        }
}

}  // namespace rs
