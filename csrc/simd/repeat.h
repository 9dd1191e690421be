// Help for register tiles: loops that are unrolled by the language rather than by the optimiser. Internal linkage:
// include from ISA files only.
//
// An array of accumulators lives in registers only if every index into it is a constant before the compiler decides
// where it lives. GCC unrolls nested loops too late for that in some instances of a tile, and then keeps them on the
// stack.
#pragma once

#include <utility>

namespace trivium {
namespace {

#define TRIV_UNROLLED __attribute__((always_inline))

template <class Fn, int... kIndices>
[[gnu::always_inline]] inline void repeat_over(Fn&& fn, std::integer_sequence<int, kIndices...>) {
  (fn(std::integral_constant<int, kIndices>{}), ...);
}

// fn(0), fn(1), … fn(kCount - 1), each with a constant: repeat<4>([&](auto i) TRIV_UNROLLED { … }).
template <int kCount, class Fn>
[[gnu::always_inline]] inline void repeat(Fn&& fn) {
  repeat_over(fn, std::make_integer_sequence<int, kCount>{});
}

// The same pointer, of which the compiler knows nothing: what was loaded through it before is loaded again rather than
// kept in registers that a tile needs.
template <class T>
[[gnu::always_inline]] inline T* reloaded(T* pointer) {
  asm volatile("" : "+r"(pointer));
  return pointer;
}

}  // namespace
}  // namespace trivium
