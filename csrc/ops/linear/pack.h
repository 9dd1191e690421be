// From codes to panels: the only writer of packed weights.
//
// Codes and scale records come as plain arrays, row-major, one row per output column; G = ceil(K / g) groups per row,
// S = ceil(K / 256) superblocks. Which arrays a format reads (the others are ignored and may be null):
//
//   f32                codes float [N, K]
//   bf16               codes uint16 [N, K]
//   i8_c               codes uint8 [N, K]; scales float [N]
//   i8_gN i4 i5 iq4    codes; scales float16 [N, G]
//   i4m i5m            codes; scales; mins float16 [N, G]
//   i4z                codes; scales; zeros uint8 [N, G]
//   q3_k               codes; supers float16 [N, S]; subs int8 [N, G], -32 to 31
//   q6_k               codes; supers; subs int8 [N, G]
//   q2_k q4_k q5_k     codes; supers; subs uint8 [N, G]; super_mins float16 [N, S]; sub_mins uint8 [N, G]
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/format.h"

namespace trivium::linear {

struct Codes {
  std::size_t num_cols;  // N
  std::size_t depth;     // K
  const void* codes;
  const void* scales;
  const std::uint16_t* mins;
  const std::uint8_t* zeros;
  const std::uint16_t* supers;
  const std::uint8_t* subs;  // q3_k, q6_k: int8
  const std::uint16_t* super_mins;
  const std::uint8_t* sub_mins;
};

// Values of k per entry of `scales` or `subs`: g above; K for i8_c, 0 for f32 and bf16.
std::size_t record_group(const Format& format);

// Fills ceil(N / kPanel) panels of panel_bytes(format, K), all threads. Panels need no alignment here. Throws
// std::invalid_argument when a code or sub-scale has bits that the format cannot hold.
void pack(const Format& format, const Codes& codes, std::byte* panels);

}  // namespace trivium::linear
