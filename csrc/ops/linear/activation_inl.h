// exp and what gates are made of, on any lanes. Internal linkage: included by ISA files only.
//
// All levels run the same operations in the same order, fused where written so, and give the same bits.
#pragma once

#include "ops/linear/linear.h"

namespace trivium::linear {
namespace {

// e^x, relative error below 2e-7 for -87 <= x <= 88; below, at most e^-87; above, at least e^88. NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts (Cody and Waite); e^r by its Taylor series to r^7, whose rest
// is below 6e-9.
template <class L>
inline typename L::Floats exp_of(typename L::Floats x) {
  using Floats = typename L::Floats;
  const Floats rounder = L::splat(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  x = L::min(L::splat(88.0F), L::max(L::splat(-87.0F), x));
  const Floats shifted = L::fma(x, L::splat(1.44269504F), rounder);
  const Floats n = L::add(shifted, L::negated(rounder));
  const Floats part = L::fma(n, L::splat(-0.693359375F), x);
  const Floats r = L::fma(n, L::splat(2.12194440e-4F), part);
  Floats sum = L::splat(1.0F / 5040);
  sum = L::fma(sum, r, L::splat(1.0F / 720));
  sum = L::fma(sum, r, L::splat(1.0F / 120));
  sum = L::fma(sum, r, L::splat(1.0F / 24));
  sum = L::fma(sum, r, L::splat(1.0F / 6));
  sum = L::fma(sum, r, L::splat(0.5F));
  sum = L::fma(sum, r, L::splat(1.0F));
  sum = L::fma(sum, r, L::splat(1.0F));
  return L::mul(sum, L::power_of_two(shifted));
}

// x / (1 + e^-y)
template <class L>
inline typename L::Floats gated_by(typename L::Floats x, typename L::Floats y) {
  return L::div(x, L::add(L::splat(1.0F), exp_of<L>(L::negated(y))));
}

// silu: x / (1 + e^-x). gelu_tanh: x (1 + tanh(u)) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
// Relative error below 4e-7 while the exponent stays in the range of exp_of; absolute below 1e-36 * |x| beyond.
template <class L, Activation activation>
inline typename L::Floats activated(typename L::Floats x) {
  if constexpr (activation == Activation::kSilu) return gated_by<L>(x, x);
  const typename L::Floats square = L::mul(x, x);
  const typename L::Floats inner = L::fma(square, L::splat(0.0713548163F), L::splat(1.59576912F));
  return gated_by<L>(x, L::mul(x, inner));
}

// tanh, relative error below 6e-7. Below 0.55 by a polynomial in x^2 (minimax fit), beyond as 1 - 2 / (e^2|x| + 1).
constexpr float kTanh[5] = {-0.333333135F, 0.133324802F, -0.0538405366F, 0.0210206099F, -0.0061988072F};

template <class L>
inline typename L::Floats tanh_of(typename L::Floats x) {
  using Floats = typename L::Floats;
  const Floats square = L::mul(x, x);
  Floats sum = L::splat(kTanh[4]);
  for (int i = 3; i >= 0; --i) sum = L::fma(sum, square, L::splat(kTanh[i]));
  const Floats small = L::fma(L::mul(x, square), sum, x);
  const Floats size = L::magnitude(x);
  const Floats grown = exp_of<L>(L::add(size, size));
  const Floats large = L::add(L::splat(1.0F), L::negated(L::div(L::splat(2.0F), L::add(grown, L::splat(1.0F)))));
  const Floats signed_large = L::select_less(x, L::zero(), L::negated(large), large);
  return L::select_less(size, L::splat(0.55F), small, signed_large);
}

}  // namespace
}  // namespace trivium::linear
