// AVX2 and FMA, compiled with exactly those flags. Bytes take three instructions per 32 of them.
#include <immintrin.h>

#include "ops/limits/limits_inl.h"

namespace trivium::limits {
namespace {

double compute(Arithmetic arithmetic, std::size_t loops) {
  if (arithmetic == Arithmetic::kInt8) {
    const __m256i units = _mm256_set1_epi8(1);
    const __m256i ones = _mm256_set1_epi16(1);
    return run_chains(loops, 32, _mm256_set1_epi32(1), [&](__m256i sum) {
      __m256i codes = units;
      TRIV_TOUCH(codes);
      return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, units), ones));
    });
  }
  const __m256 half = _mm256_set1_ps(0.5F);
  return run_chains(loops, 8, _mm256_set1_ps(1.0F), [&](__m256 sum) { return _mm256_fmadd_ps(sum, half, half); });
}

std::uint64_t read(const std::uint64_t* words, std::size_t count) { return sum_words(words, count); }

}  // namespace

Functions limits_avx2();
Functions limits_avx2() { return {compute, read}; }

}  // namespace trivium::limits
