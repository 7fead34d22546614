// Parallel regions on the OpenMP runtime that PyTorch has already loaded: one thread pool in the process.
// Its two entry points are handed over at load time, so that this library links against no OpenMP of its own.
#pragma once

#include <type_traits>
#include <utility>

namespace rs {

struct OpenMp {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*thread_num)() = nullptr;
    int (*num_threads)() = nullptr;
    void (*barrier)() = nullptr;
};

OpenMp& openmp();

// Calls body(thread, threads) on up to `threads` threads; on the caller alone where there is no runtime.
template <class Body>
void parallel(int threads, Body&& body) {
    const OpenMp& omp = openmp();
    if (threads <= 1 || omp.parallel == nullptr) {
        body(0, 1);
        return;
    }
    auto trampoline = [](void* data) {
        const OpenMp& inner = openmp();
        (*static_cast<std::remove_reference_t<Body>*>(data))(inner.thread_num(), inner.num_threads());
    };
    omp.parallel(trampoline, &body, static_cast<unsigned>(threads), 0);
}

// All threads of the region meet here.
inline void barrier(int threads) {
    if (threads > 1) openmp().barrier();
}

// Splits `rows` evenly; `body(begin, end)`. Rows never share arithmetic, so the split can't change a result.
template <class Body>
void parallel_rows(int threads, long rows, bool worthwhile, Body&& body) {
    if (!worthwhile || threads <= 1) {
        body(0L, rows);
        return;
    }
    parallel(threads, [&](int thread, int count) { body(rows * thread / count, rows * (thread + 1) / count); });
}

}  // namespace rs
