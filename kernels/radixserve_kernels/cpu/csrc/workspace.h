// Memory for activations, kept from step to step.
#pragma once

#include <cstdlib>
#include <new>

#include "linear.h"

namespace rs {

// Hands out aligned pieces of one block. What was handed out stays until `start` is called again.
class Workspace {
   public:
    Workspace() = default;
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace() { std::free(memory_); }

    // Makes room for `bytes` in pieces of any size; throws std::bad_alloc.
    void start(size_t bytes) {
        used_ = 0;
        if (bytes <= size_) return;
        std::free(memory_);
        size_ = 0;
        memory_ = static_cast<char*>(std::aligned_alloc(line, rounded(bytes)));
        if (memory_ == nullptr) throw std::bad_alloc();
        size_ = bytes;
    }

    template <class T>
    T* take(long count) {
        T* piece = reinterpret_cast<T*>(memory_ + used_);
        used_ += rounded(sizeof(T) * static_cast<size_t>(count));
        return piece;
    }

    template <class T>
    static size_t room(long count) { return rounded(sizeof(T) * static_cast<size_t>(count)); }

   private:
    static constexpr size_t line = 64;
    static size_t rounded(size_t bytes) { return (bytes + line - 1) / line * line; }
    char* memory_ = nullptr;
    size_t size_ = 0, used_ = 0;
};

// Codes of up to `rows` rows of up to `k` values.
struct CodeBuffers {
    RowCodes codes;

    static long groups(long k) { return (k + group_values - 1) / group_values; }

    static size_t room(long rows, long k) { return Workspace::room<int8_t>(rows * k) + 3 * Workspace::room<float>(rows * groups(k)); }

    void take(Workspace& space, long rows, long k) {
        const long scales = rows * groups(k);
        codes = {space.take<int8_t>(rows * k), k, space.take<float>(scales), space.take<int32_t>(scales), space.take<float>(scales)};
    }

    // Row r of what `linear` is given, x [k], if it wants codes.
    template <class T>
    void encode_row(const Linear& linear, const T* x, long r) const {
        if (!linear.coded()) return;
        const int count = linear.k / group_values;
        for (int g = 0; g < count; ++g) {
            const long at = r * count + g;
            encode(x + g * group_values, group_values, codes.codes + r * codes.stride + g * group_values, codes.scale + at,
                   codes.offset + at, codes.sum + at);
        }
    }

    template <class T>
    Input input(const T* x, long stride) const {
        Input in;
        if constexpr (sizeof(T) == sizeof(bf16)) in.plain = x;
        in.stride = stride;
        in.codes = codes;
        return in;
    }
};

}  // namespace rs
