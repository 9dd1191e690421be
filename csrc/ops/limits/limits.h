// What this machine does at most, found by trying: reading memory and cache, and multiply-adds that touch registers
// only. Predictions and shares of "the roofline" are relative to these.
//
// Source of the idea: Williams, Waterman, Patterson 2009, Roofline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/isa.h"

namespace trivium::limits {

// Per second, with all threads of the pool. A multiply-add is two operations.
struct Limits {
  double memory_bytes;  // read in order, from memory
  double cache_bytes;   // read in order, from the last level of cache
  double int8_ops;      // dot products of bytes, as the level's kernels do them
  double bf16_ops;      // of bfloat16; where the level has none, as many as of float32
  double f32_ops;
};

// Measures, in about half a second; takes 160 MiB for that time. Throws std::bad_alloc where there is no room for it.
Limits measure(Isa isa);

// Of readings before and after: arithmetic has one rate, and less was read where others had the cores, which would let
// every promise pass; memory's may change meanwhile.
Limits settled(const Limits& before, const Limits& after);

enum class Arithmetic : std::uint8_t { kInt8, kBf16, kF32 };

struct Functions {
  double (*compute)(Arithmetic arithmetic, std::size_t loops);           // returns how many operations were done
  std::uint64_t (*read)(const std::uint64_t* words, std::size_t count);  // returns their sum; count is a multiple of 64
};

struct Kernel {
  Isa isa;
  const char* name;
  Functions (*functions)();  // to be called where the level runs, nowhere else
};

// Every compiled kernel, strongest first, scalar last; and the strongest for a level.
std::span<const Kernel> all();
const Kernel& best(Isa isa);

}  // namespace trivium::limits
