// Pairs of bf16 by AVX-512's own instructions. Included by ISA files that have them, after their lanes.
#pragma once

#include "ops/attention/arithmetic.h"

namespace trivium::attention {
namespace {

// The processor's dot product flushes denormals and rounds to nearest even after each addition.
struct Bf16Dot {
  static constexpr std::size_t kStep = 2;
  using Unit = std::uint32_t;
  using Right = __m512bh;

  static Right load(const std::byte* vector) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(vector)); }
  static Lanes dot(Lanes acc, const Right& right, const Unit* unit) {
    return {_mm512_dpbf16_ps(acc.value, right, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*unit))))};
  }

  static void load_query(const void* query, std::size_t width, Unit* units) {
    for (std::size_t i = 0; i < width / 2; ++i) units[i * kBundleRows] = static_cast<const std::uint32_t*>(query)[i];
  }
  static void store_shares(Unit* units, Lanes low, Lanes high) {
    _mm512_storeu_si512(units, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.value, low.value)));
  }
  // Sixteen pairs of signed bytes as pairs of bf16.
  static void widen(const std::byte* bytes, std::uint32_t* words) {
    const auto half = [bytes](int index) {
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + index)));
    };
    _mm512_storeu_si512(words, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(half(1), half(0))));
  }
};

}  // namespace
}  // namespace trivium::attention
