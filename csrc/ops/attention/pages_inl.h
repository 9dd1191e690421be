// Writing one token into a head of a page; see pages.h for the drawing. Internal linkage: included by pages.cpp and by
// ISA files.
//
// Plain loops that the compiler turns into each level's vectors; every operation is exact or rounds once, so all levels
// write the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/pages.h"
#include "ops/operand/operand_inl.h"

namespace trivium::attention {
namespace {

inline void write_f32(const float* key, const float* value, std::size_t width, std::size_t padded_width,
                      std::size_t slot, float* keys, float* values) {
  for (std::size_t i = 0; i < width; ++i) keys[i * kPageLen + slot] = key[i];
  for (std::size_t i = 0; i < width; ++i) values[slot * padded_width + i] = value[i];
}

// A row of pairs of tokens: the even slot's value is the low half of a word. Writing it clears the high half.
template <class Word, class Unit>
inline void write_pairs(const Unit* units, std::size_t width, std::size_t slot, Word* words) {
  constexpr int kHalf = 4 * sizeof(Word);
  if (slot % 2 == 0) {
    for (std::size_t i = 0; i < width; ++i) words[i] = units[i];
  } else {
    constexpr Word kLow = static_cast<Word>((Word{1} << kHalf) - 1);
    for (std::size_t i = 0; i < width; ++i) {
      words[i] = static_cast<Word>((words[i] & kLow) | static_cast<Word>(Word{units[i]} << kHalf));
    }
  }
}

inline void write_bf16(const float* key, const float* value, std::size_t width, std::size_t padded_width,
                       std::size_t slot, std::uint32_t* keys, std::uint32_t* values) {
  std::uint16_t units[kMaxWidth];
  for (std::size_t i = 0; i < width; ++i) units[i] = operand::bf16_of(key[i]);
  for (std::size_t i = 0; i < width; i += 2) {
    keys[i / 2 * kPageLen + slot] = units[i] | (std::uint32_t{units[i + 1]} << 16);
  }
  for (std::size_t i = 0; i < width; ++i) units[i] = operand::bf16_of(value[i]);
  write_pairs(units, width, slot, values + slot / 2 * padded_width);
}

// Signed bytes of one vector, and their scale.
inline float write_bytes(const float* x, std::size_t width, std::uint8_t* units) {
  std::uint32_t greatest = 0;  // |x| by its bits, so that NaN counts as the greatest
  for (std::size_t i = 0; i < width; ++i) {
    const std::uint32_t size = operand::bits_of(x[i]) & 0x7FFFFFFFU;
    greatest = size > greatest ? size : greatest;
  }
  const bool is_zero = greatest < 0x03800000U;  // below 2^-120
  const float a = operand::float_of(greatest);
  const float inverse = is_zero ? 0.0F : 127.0F / a;
  for (std::size_t i = 0; i < width; ++i) {
    units[i] = static_cast<std::uint8_t>(operand::bits_of(x[i] * inverse + operand::kRounder));
  }
  if (greatest >= 0x7F800000U) return operand::float_of(0x7FC00000U);
  return is_zero ? 0.0F : a / 127.0F;
}

inline void write_i8(const float* key, const float* value, std::size_t width, std::size_t padded_width,
                     std::size_t slot, std::uint16_t* keys, std::uint16_t* values, float* scales) {
  std::uint8_t units[kMaxWidth];
  scales[slot] = write_bytes(key, width, units);
  for (std::size_t i = 0; i < width; i += 2) {
    keys[i / 2 * kPageLen + slot] = static_cast<std::uint16_t>(units[i] | (units[i + 1] << 8));
  }
  scales[kPageLen + slot] = write_bytes(value, width, units);
  write_pairs(units, width, slot, values + slot / 2 * padded_width);
}

inline void write_head(const HeadLayout& layout, std::byte* head, std::size_t slot, const float* key,
                       const float* value) {
  std::byte* values = head + layout.values_at;
  switch (layout.type) {
    case KVType::kF32:
      write_f32(key, value, layout.width, layout.padded_width, slot, reinterpret_cast<float*>(head),
                reinterpret_cast<float*>(values));
      return;
    case KVType::kBf16:
      write_bf16(key, value, layout.width, layout.padded_width, slot, reinterpret_cast<std::uint32_t*>(head),
                 reinterpret_cast<std::uint32_t*>(values));
      return;
    case KVType::kI8:
      write_i8(key, value, layout.width, layout.padded_width, slot, reinterpret_cast<std::uint16_t*>(head),
               reinterpret_cast<std::uint16_t*>(values), reinterpret_cast<float*>(head + layout.scales_at));
      return;
  }
}

}  // namespace
}  // namespace trivium::attention
