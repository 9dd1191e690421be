// AVX-512 with bfloat16 dot products, compiled with exactly those flags.
#include "ops/attention/lanes_avx512.h"
// Lanes first: what follows is written on them.
#include "ops/attention/attention_inl.h"

namespace trivium::attention {
namespace {

// Pairs of bf16 by the processor's instruction, which flushes denormals and rounds to nearest even after each addition.
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

Functions attention_avx512vnni();
// 6 x 4 and 12 x 2 tiles: 24 accumulators + 4 or 2 vectors of keys or values; units come as broadcast memory operands.
Functions attention_avx512vnni() { return Level<Bf16Dot, 12, 24>::functions(); }

}  // namespace trivium::attention
