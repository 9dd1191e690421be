// AVX2 with dot products of bytes, compiled with exactly those flags.
#include <immintrin.h>

#include "ops/limits/limits_inl.h"

namespace trivium::limits {
namespace {

double compute(Arithmetic arithmetic, std::size_t loops) {
  if (arithmetic == Arithmetic::kInt8) {
    const __m256i units = _mm256_set1_epi8(1);
    return run_chains(loops, 32, _mm256_set1_epi32(1),
                      [&](__m256i sum) { return _mm256_dpbusd_avx_epi32(sum, units, units); });
  }
  const __m256 half = _mm256_set1_ps(0.5F);
  return run_chains(loops, 8, _mm256_set1_ps(1.0F), [&](__m256 sum) { return _mm256_fmadd_ps(sum, half, half); });
}

std::uint64_t read(const std::uint64_t* words, std::size_t count) { return sum_words(words, count); }

}  // namespace

Functions limits_avxvnni();
Functions limits_avxvnni() { return {compute, read}; }

}  // namespace trivium::limits
