// Loops that do nothing but what is to be counted. Include from ISA files only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/limits/limits.h"
#include "simd/repeat.h"

// Makes the compiler believe that a register changes, so that nothing is computed once for all rounds.
#if defined(TRIVIUM_X86)
#define TRIV_TOUCH(value) asm volatile("" : "+x"(value))
#else
#define TRIV_TOUCH(value) asm volatile("" : "+w"(value))
#endif

namespace trivium::limits {
namespace {

// Independent chains hide the latency of four to five cycles at two instructions a cycle.
constexpr int kChains = 12;

// Returns how many multiply-adds were done: `loops` rounds of kChains steps of `per_step`.
template <class Vector, class Step>
inline double run_chains(std::size_t loops, double per_step, Vector start, Step step) {
  Vector acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = start;
  for (std::size_t loop = 0; loop < loops; ++loop) {
    repeat<kChains>([&](auto i) TRIV_UNROLLED {
      Vector next = step(acc[i]);
      TRIV_TOUCH(next);
      acc[i] = next;
    });
  }
  return 2.0 * per_step * static_cast<double>(loops) * kChains;
}

inline std::uint64_t sum_words(const std::uint64_t* words, std::size_t count) {
  std::uint64_t lanes[64] = {};  // 8 vectors of 512 bits, 16 of 256
  for (std::size_t i = 0; i < count; i += 64) {
    for (std::size_t l = 0; l < 64; ++l) lanes[l] += words[i + l];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

}  // namespace
}  // namespace trivium::limits
