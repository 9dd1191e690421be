// float16 to float32, without instructions for it. Internal linkage: ISA files include it too.
#pragma once

#include <cstdint>

namespace trivium::linear {
namespace {

// Exact. Shifting the fields into place gives the value times 2^-112, subnormals included.
[[maybe_unused]] inline float float_of_half(std::uint16_t half) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFU) << 13;
  const float value = __builtin_bit_cast(float, magnitude) * 0x1p112F;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const bool is_special = (half & 0x7C00U) == 0x7C00U;  // infinity or NaN
  const std::uint32_t bits = is_special ? magnitude | 0x7F800000U : __builtin_bit_cast(std::uint32_t, value);
  return __builtin_bit_cast(float, bits | sign);
}

}  // namespace
}  // namespace trivium::linear
