// Lanes256 with dot products of bytes (AVX-VNNI).
#pragma once

#include "ops/linear/lanes_avx2.h"

namespace trivium::linear {
namespace {

struct LanesVnni256 : Lanes256 {
  static constexpr bool kUnpacks = false;
  static constexpr std::size_t kNear = 0;
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxFloatRows = 4;
  // Of 16 registers, 4 x 2 vectors take 4 dot + 8 acc + w + x = 14.
  static constexpr int int_vectors(int rows) { return rows <= 2 ? 4 : 2; }
  static constexpr int float_vectors(int rows) { return rows == 1 ? 4 : 2; }

  template <int kBits, int kQuadsOf>
  struct Dot {
    using Weights = __m256i;
    __m256i sum;
    static Weights weights(__m256i codes) { return codes; }
    void start() { sum = _mm256_setzero_si256(); }
    void start(const std::uint32_t* init) { sum = splat_units(init); }
    void add(int, Weights weights, const std::uint32_t* units) {
      sum = _mm256_dpbusd_avx_epi32(sum, weights, splat_units(units));
    }
    __m256i finish(const std::uint32_t*, bool) const { return sum; }
  };
};

}  // namespace
}  // namespace trivium::linear
