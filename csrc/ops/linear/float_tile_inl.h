// The register tile of products with float weights (kF32 and kBf16 operands). Internal linkage: ISA files only.
//
// kRows rows by kVecs vectors of columns; per 4-byte unit of the operand (one k of f32, two of bf16):
//
//   acc[r][v] = acc[r][v] + x[r] * w[v]       one chain per output, k ascending
//
//   f32 panel    [k][32 columns]            bf16 panel   [k / 2][32 columns][2]        128 bytes per unit
//   f16 panel    [k][32 columns], widened as it is read: the bits of the same numbers in f32        64 bytes per unit
#pragma once

#include <cstddef>

#include "ops/linear/ahead_inl.h"
#include "simd/repeat.h"

namespace trivium::linear {
namespace {

struct F32 {
  static constexpr std::size_t kBytes = 4;  // of a column per unit
  template <class L>
  using Weights = typename L::Floats;
  template <class L>
  static Weights<L> load(const std::byte* from) {
    return L::load(reinterpret_cast<const float*>(from));
  }
  template <class L>
  static typename L::Floats step(typename L::Floats acc, Weights<L> w, const std::uint32_t* x) {
    return L::fma(w, L::splat(reinterpret_cast<const float*>(x)), acc);
  }
};

struct F16 : F32 {
  static constexpr std::size_t kBytes = 2;
  template <class L>
  static Weights<L> load(const std::byte* from) {
    return L::halves(reinterpret_cast<const std::uint16_t*>(from));
  }
};

struct Bf16 {
  static constexpr std::size_t kBytes = 4;
  template <class L>
  using Weights = typename L::Pairs;
  template <class L>
  static Weights<L> load(const std::byte* from) {
    return L::load_pairs(from);
  }
  template <class L>
  static typename L::Floats step(typename L::Floats acc, Weights<L> w, const std::uint32_t* x) {
    return L::dot_pairs(acc, w, x);
  }
};

constexpr int kUnits = 16;  // of a step: half a group of f32, a whole one of bf16
constexpr int kUnrolled = 4;

template <class F>
std::size_t float_steps(const TileArgs& t) {
  return t.num_blocks * t.block_bytes / (kUnits * kPanel * F::kBytes);
}

template <class L, class F, int kRows, int kVecs>
[[gnu::always_inline]] inline Ahead run_float_columns(const TileArgs& t, std::size_t col, Ahead ahead) {
  typename L::Floats acc[kRows][kVecs];
  repeat<kRows>([&](auto r) TRIV_UNROLLED { repeat<kVecs>([&](auto v) TRIV_UNROLLED { acc[r][v] = L::zero(); }); });
  const std::byte* panel = t.blocks + F::kBytes * col;
  const std::uint32_t* units = t.units;
  const std::size_t stride = t.stride;
  for (std::size_t s = float_steps<F>(t); s != 0; --s) {
    for (int u = 0; u < kUnits; u += kUnrolled) {
      repeat<kUnrolled>([&](auto) TRIV_UNROLLED {
        typename F::template Weights<L> w[kVecs];
        repeat<kVecs>([&](auto v) TRIV_UNROLLED { w[v] = F::template load<L>(panel + F::kBytes * v * L::kCols); });
        repeat<kRows>([&](auto r) TRIV_UNROLLED {
          repeat<kVecs>([&](auto v) TRIV_UNROLLED { acc[r][v] = F::template step<L>(acc[r][v], w[v], units + r); });
        });
        panel += kPanel * F::kBytes;
        units += stride;
      });
    }
    if constexpr (kRows >= kAheadRows) ahead.template fetch<L, Into::kL2>();
  }
  repeat<kRows>([&](auto r) TRIV_UNROLLED {
    repeat<kVecs>([&](auto v) TRIV_UNROLLED {
      L::store(acc[r][v], t.out + static_cast<std::size_t>(r) * kPanel + col + static_cast<std::size_t>(v * L::kCols));
    });
  });
  return ahead;
}

template <class L, class F, int kRows>
void run_float_tile(const TileArgs& t) {
  constexpr int kVecs = L::float_vectors(kRows);
  constexpr std::size_t kCols = kVecs * L::kCols;
  Ahead ahead(t, kPanel / kCols * float_steps<F>(t));
  for (std::size_t col = 0; col < kPanel; col += kCols) ahead = run_float_columns<L, F, kRows, kVecs>(t, col, ahead);
}

template <class L, class F, int kRows>
struct FloatTiles {
  TileFn tiles[kRows];
  constexpr FloatTiles() : tiles{} { fill<kRows>(); }
  template <int kRow>
  constexpr void fill() {
    tiles[kRow - 1] = run_float_tile<L, F, kRow>;
    if constexpr (kRow > 1) fill<kRow - 1>();
  }
};

}  // namespace
}  // namespace trivium::linear
