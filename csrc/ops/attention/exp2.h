// Powers of two by a polynomial, on any lanes. Internal linkage: included by lanes_*.h.
//
//   2^x = 2^n * 2^f,  n = x rounded to nearest even,  f = x - n in [-1/2, 1/2], exact
//   2^f = 1 + f * (c1 + f * (c2 + …)), degree 5
//
// The polynomial is the best of its degree in relative error among those with the constant 1, by linear programming:
// 9.2e-8, and 1.6e-7 in all with float32's roundings (tests/test_attention_exp2.cpp). 2^0 is exactly 1. Below
// kLeastExponent the result is exactly 0, so no share is ever a denormal.
#pragma once

namespace trivium::attention {
namespace {

inline constexpr float kLeastExponent = -126.0F;
inline constexpr float kExp2Terms[] = {0.693146978F, 0.240222421F, 0.0555073374F, 0.00967151264F, 0.00132647275F};

template <class L>
inline L exp2_fraction(L f) {
  L sum = L::broadcast(kExp2Terms[4]);
  sum = fma(sum, f, L::broadcast(kExp2Terms[3]));
  sum = fma(sum, f, L::broadcast(kExp2Terms[2]));
  sum = fma(sum, f, L::broadcast(kExp2Terms[1]));
  sum = fma(sum, f, L::broadcast(kExp2Terms[0]));
  return fma(sum, f, L::broadcast(1.0F));
}

}  // namespace
}  // namespace trivium::attention
