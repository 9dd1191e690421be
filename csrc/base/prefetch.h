// Asking for memory before it is needed.
//
// Rows that other cores have written lie in those cores' caches: who reads them line by line waits some 50 ns at each,
// which costs more than all arithmetic of a norm. Asked for a few rows ahead, they are there.
#pragma once

#include <cstddef>

namespace trivium {

inline constexpr std::size_t kCacheLine = 64;

// Inlined by force, here and in whoever does nothing else: GCC drops calls of functions without another effect.
[[gnu::always_inline]] inline void prefetch(const void* begin, std::size_t num_bytes) {
  const auto* bytes = static_cast<const char*>(begin);
  for (std::size_t i = 0; i < num_bytes; i += kCacheLine) __builtin_prefetch(bytes + i, 0);
}

[[gnu::always_inline]] inline void prefetch_to_write(const void* begin, std::size_t num_bytes) {
  const auto* bytes = static_cast<const char*>(begin);
  for (std::size_t i = 0; i < num_bytes; i += kCacheLine) __builtin_prefetch(bytes + i, 1);
}

}  // namespace trivium
