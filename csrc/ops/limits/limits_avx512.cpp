// AVX-512, compiled with exactly those flags. Bytes take three instructions per 64 of them.
#include <immintrin.h>

#include "ops/limits/limits_inl.h"

namespace trivium::limits {
namespace {

double compute(Arithmetic arithmetic, std::size_t loops) {
  if (arithmetic == Arithmetic::kInt8) {
    const __m512i units = _mm512_set1_epi8(1);
    const __m512i ones = _mm512_set1_epi16(1);
    return run_chains(loops, 64, _mm512_set1_epi32(1), [&](__m512i sum) {
      __m512i codes = units;
      TRIV_TOUCH(codes);
      return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, units), ones));
    });
  }
  const __m512 half = _mm512_set1_ps(0.5F);
  return run_chains(loops, 16, _mm512_set1_ps(1.0F), [&](__m512 sum) { return _mm512_fmadd_ps(sum, half, half); });
}

std::uint64_t read(const std::uint64_t* words, std::size_t count) { return sum_words(words, count); }

}  // namespace

Functions limits_avx512();
Functions limits_avx512() { return {compute, read}; }

}  // namespace trivium::limits
