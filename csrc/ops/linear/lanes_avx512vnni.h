// Lanes512 with dot products of bytes (VNNI) and of bfloat16.
#pragma once

#include "ops/linear/lanes_avx512.h"

namespace trivium::linear {
namespace {

struct LanesVnni512 : Lanes512 {
  static constexpr bool kHasOneDot = true;
  static constexpr int kMaxRows = 12;
  static constexpr int kDirectRows = 4;  // most rows that read a packed panel without unpacking it
  // Of 32 registers, 8 x 2 vectors take 8 dot + 16 acc + w + x = 26, and 12 x 1 take 12 + 12 + w + x = 26; a mask or
  // two fit beside.
  static constexpr int int_vectors(int rows) { return rows <= 8 ? 2 : 1; }
  // 12 x 2: 24 acc + 2 w + 1 x.
  static constexpr int float_vectors(int) { return 2; }

  template <int kBits>
  struct Dot {
    using Weights = __m512i;
    __m512i sum;
    static Weights weights(__m512i codes) { return codes; }
    void start() { sum = _mm512_setzero_si512(); }
    void start(const std::uint32_t* init) { sum = splat_units(init); }
    void add(int, Weights weights, const std::uint32_t* units) {
      sum = _mm512_dpbusd_epi32(sum, weights, splat_units(units));
    }
    __m512i finish(const std::uint32_t*, bool) const { return sum; }
  };

  static Floats dot_pairs(Floats acc, Pairs weights, const std::uint32_t* units) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(weights), reinterpret_cast<__m512bh>(splat_units(units)));
  }
};

}  // namespace
}  // namespace trivium::linear
