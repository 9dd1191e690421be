// Multiply-adds of AVX-512 with dot products of bytes and of bfloat16. Include from ISA files only.
#pragma once

#include <immintrin.h>

#include "ops/limits/limits_inl.h"

namespace trivium::limits {
namespace {

inline double compute_dots512(Arithmetic arithmetic, std::size_t loops) {
  if (arithmetic == Arithmetic::kInt8) {
    const __m512i units = _mm512_set1_epi8(1);
    return run_chains(loops, 64, _mm512_set1_epi32(1),
                      [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, units, units); });
  }
  if (arithmetic == Arithmetic::kBf16) {
    const auto half = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3F003F00));
    return run_chains(loops, 32, _mm512_set1_ps(1.0F), [&](__m512 sum) { return _mm512_dpbf16_ps(sum, half, half); });
  }
  const __m512 half = _mm512_set1_ps(0.5F);
  return run_chains(loops, 16, _mm512_set1_ps(1.0F), [&](__m512 sum) { return _mm512_fmadd_ps(sum, half, half); });
}

}  // namespace
}  // namespace trivium::limits
