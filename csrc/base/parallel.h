// The one pool of compute threads, and the loop that uses it.
//
// The pool is made at first use, with one thread per usable core (the caller is one of them). Work is handed out in
// chunks by an atomic counter, so which thread runs which chunk is not fixed: results must not depend on it, and do
// not, because no kernel sums across chunks.
#pragma once

#include <cstddef>
#include <type_traits>

namespace trivium {

// Cores this process may use: the affinity mask, lowered by the cgroup's CPU quota (v2 and v1), at least 1.
int usable_cores();

// Threads that parallel_for uses, the caller included.
int num_threads();

// Sets the number of threads, 1 to 1024. Must not be called while a parallel_for runs in another thread: it waits for
// it. Throws std::invalid_argument outside that range.
void set_num_threads(int count);

namespace internal {
using ChunkFn = void (*)(void* context, std::size_t begin, std::size_t end);
void run_chunks(std::size_t range, std::size_t grain, ChunkFn fn, void* context);
}  // namespace internal

// Calls fn(begin, end) for disjoint chunks of at most `grain` that cover [0, range), and returns when all are done.
//
// Runs in the caller alone when one chunk is enough, when there is one thread, or when the pool is busy for another
// caller (nested loops included). `fn` must not throw. Safe after fork(): the child makes its own pool.
template <class Fn>
void parallel_for(std::size_t range, std::size_t grain, Fn&& fn) {
  internal::run_chunks(
      range, grain,
      [](void* context, std::size_t begin, std::size_t end) {
        (*static_cast<std::remove_reference_t<Fn>*>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&fn)));
}

}  // namespace trivium
