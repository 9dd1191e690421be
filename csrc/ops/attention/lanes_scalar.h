// What sixteen lanes of floats can do, written as loops. lanes_avx2.h and lanes_avx512.h hold the same list.
//
// Sixteen on every level, so that what is added in which order does not depend on the level. Include from ISA files
// only.
#pragma once

#include <cstdint>

#include "ops/attention/exp2.h"
#include "ops/operand/operand_inl.h"

namespace trivium::attention {
namespace {

struct Lanes {
  float value[16];

  static Lanes zero() { return {}; }
  static Lanes broadcast(float from) {
    Lanes lanes;
    for (float& lane : lanes.value) lane = from;
    return lanes;
  }
  static Lanes load(const float* from) {
    Lanes lanes;
    __builtin_memcpy(lanes.value, from, sizeof lanes.value);
    return lanes;
  }
  void store(float* to) const { __builtin_memcpy(to, value, sizeof value); }
};

// Applies a function of three lanes to every lane.
template <class Fn>
inline Lanes each(const Lanes& a, const Lanes& b, const Lanes& c, Fn&& fn) {
  Lanes lanes;
  for (int i = 0; i < 16; ++i) lanes.value[i] = fn(a.value[i], b.value[i], c.value[i]);
  return lanes;
}

inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return each(a, b, c, [](float x, float y, float z) { return __builtin_fmaf(x, y, z); });
}
inline Lanes mul(Lanes a, Lanes b) {
  return each(a, b, b, [](float x, float y, float) { return x * y; });
}
inline Lanes add(Lanes a, Lanes b) {
  return each(a, b, b, [](float x, float y, float) { return x + y; });
}
inline Lanes sub(Lanes a, Lanes b) {
  return each(a, b, b, [](float x, float y, float) { return x - y; });
}
inline Lanes div(Lanes a, Lanes b) {
  return each(a, b, b, [](float x, float y, float) { return x / y; });
}
// The second where one is NaN, as the processors' maximum does.
inline Lanes max(Lanes a, Lanes b) {
  return each(a, b, b, [](float x, float y, float) { return x > y ? x : y; });
}

inline float greatest(Lanes a) {
  float most = a.value[0];
  for (const float lane : a.value) most = lane > most ? lane : most;
  return most;
}

// Lanes whose bit is not set become `other`.
inline Lanes keep(Lanes a, std::uint32_t bits, Lanes other) {
  for (int i = 0; i < 16; ++i) a.value[i] = (bits >> i & 1U) != 0 ? a.value[i] : other.value[i];
  return a;
}

inline Lanes exp2(Lanes x) {
  const Lanes bounded = each(x, x, x, [](float lane, float, float) {
    const float above = kLeastExponent > lane ? kLeastExponent : lane;
    return 127.0F < above ? 127.0F : above;
  });
  // Adding and taking away 1.5 * 2^23 leaves the nearest even integer.
  const Lanes rounder = Lanes::broadcast(operand::kRounder);
  const Lanes whole = sub(add(bounded, rounder), rounder);
  const Lanes power = exp2_fraction(sub(bounded, whole));
  return each(x, power, whole, [](float lane, float fraction_power, float exponent) {
    const auto biased = static_cast<std::uint32_t>(static_cast<int>(lane == lane ? exponent : 0.0F) + 127) << 23;
    return lane < kLeastExponent ? 0.0F : fraction_power * operand::float_of(biased);
  });
}

// Sixteen words of two bf16 each, as floats.
inline Lanes low_halves(const void* words) {
  std::uint32_t word[16];
  __builtin_memcpy(word, words, sizeof word);
  Lanes lanes;
  for (int i = 0; i < 16; ++i) lanes.value[i] = operand::float_of(word[i] << 16);
  return lanes;
}
inline Lanes high_halves(const void* words) {
  std::uint32_t word[16];
  __builtin_memcpy(word, words, sizeof word);
  Lanes lanes;
  for (int i = 0; i < 16; ++i) lanes.value[i] = operand::float_of(word[i] & 0xFFFF0000U);
  return lanes;
}

}  // namespace
}  // namespace trivium::attention
