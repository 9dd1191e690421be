// Lanes512 with dot products of bytes (VNNI) and of bfloat16.
#pragma once

#include "ops/linear/lanes_avx512.h"

namespace trivium::linear {
namespace {

struct LanesVnni512 : Lanes512 {
  static constexpr bool kUnpacks = true;
  static constexpr std::size_t kNear = 4096;
  static constexpr int kMaxRows = 8;
  static constexpr int kMaxFloatRows = 12;
  // Of 32 registers, 8 x 2 vectors take 8 dot + 16 acc + w + x = 26; a mask or two fit beside.
  static constexpr int int_vectors(int) { return 2; }
  // 12 x 2: 24 acc + 2 w + 1 x.
  static constexpr int float_vectors(int) { return 2; }

  template <int kBits, int kQuadsOf>
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
