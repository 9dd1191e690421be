// What the sampler's passes need of vectors, written for one lane. lanes_avx2.h and lanes_avx512.h hold the same list.
//
// A comparison gives one bit per lane. Internal linkage: included by ISA files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace trivium::sample {
namespace {

// Lanes of T = float or double, for comparing and selecting.
template <class T>
struct ScalarLanes {
  static constexpr std::size_t kLanes = 1;
  T value;

  static ScalarLanes all(T x) { return {x}; }
  static ScalarLanes load(const T* from) { return {*from}; }
  void store(T* to) const { *to = value; }
};

template <class T>
inline ScalarLanes<T> max(ScalarLanes<T> a, ScalarLanes<T> b) {
  return {a.value > b.value ? a.value : b.value};
}
template <class T>
inline unsigned at_least(ScalarLanes<T> a, ScalarLanes<T> b) {
  return a.value >= b.value ? 1U : 0U;
}
template <class T>
inline unsigned above(ScalarLanes<T> a, ScalarLanes<T> b) {
  return a.value > b.value ? 1U : 0U;
}
template <class T>
inline unsigned equal(ScalarLanes<T> a, ScalarLanes<T> b) {
  return a.value == b.value ? 1U : 0U;
}
template <class T>
inline unsigned unordered(ScalarLanes<T> a, ScalarLanes<T> b) {
  return __builtin_isunordered(a.value, b.value) ? 1U : 0U;
}
// Stores the lanes whose bit is set, one behind the other; may write kLanes elements.
template <class T>
inline void compress(ScalarLanes<T> x, unsigned bits, T* to) {
  if (bits != 0) *to = x.value;
}
template <class T>
inline void compress_ids(ScalarLanes<T>, const std::int32_t* from, unsigned bits, std::int32_t* to) {
  if (bits != 0) *to = *from;
}
// The same for the ids first, first + 1, …
template <class T>
inline void compress_range(ScalarLanes<T>, std::size_t first, unsigned bits, std::int32_t* to) {
  if (bits != 0) *to = static_cast<std::int32_t>(first);
}

// Lanes of double, for arithmetic.
struct ScalarMath {
  static constexpr std::size_t kLanes = 1;
  double value;

  static ScalarMath all(double x) { return {x}; }
  static ScalarMath load(const double* from) { return {*from}; }
  static ScalarMath load(const float* from) { return {static_cast<double>(*from)}; }
  void store(double* to) const { *to = value; }
  void store_whole(std::int32_t* to) const { *to = static_cast<std::int32_t>(value); }  // towards zero
};

inline ScalarMath operator+(ScalarMath a, ScalarMath b) { return {a.value + b.value}; }
inline ScalarMath operator-(ScalarMath a, ScalarMath b) { return {a.value - b.value}; }
inline ScalarMath operator*(ScalarMath a, ScalarMath b) { return {a.value * b.value}; }
inline ScalarMath operator/(ScalarMath a, ScalarMath b) { return {a.value / b.value}; }
inline ScalarMath max(ScalarMath a, ScalarMath b) { return {a.value > b.value ? a.value : b.value}; }
inline ScalarMath min(ScalarMath a, ScalarMath b) { return {a.value < b.value ? a.value : b.value}; }
// a * b + c, for estimates: one rounding or two.
inline ScalarMath fused(ScalarMath a, ScalarMath b, ScalarMath c) { return {a.value * b.value + c.value}; }
// x times 2^n where the low bits of `whole` (n + 1.5 * 2^52) hold n; the product must be a normal number.
inline ScalarMath times_power(ScalarMath x, ScalarMath whole) {
  std::uint64_t bits;
  std::uint64_t power;
  std::memcpy(&bits, &x.value, sizeof bits);
  std::memcpy(&power, &whole.value, sizeof power);
  bits += power << 52;
  std::memcpy(&x.value, &bits, sizeof bits);
  return x;
}
// x where `by` is at least `limit`, else 0.
inline ScalarMath zero_below(ScalarMath x, ScalarMath by, ScalarMath limit) {
  return {by.value < limit.value ? 0.0 : x.value};
}
// Whether all lanes are equal.
inline bool are_equal(ScalarMath a, ScalarMath b) { return a.value == b.value; }
inline double sum(ScalarMath x) { return x.value; }

// Lanes of float, for rough estimates. Products that are added are rounded once.
struct ScalarRough {
  static constexpr std::size_t kLanes = 1;
  float value;

  static ScalarRough all(float x) { return {x}; }
  static ScalarRough load(const float* from) { return {*from}; }
};

inline ScalarRough operator+(ScalarRough a, ScalarRough b) { return {a.value + b.value}; }
inline ScalarRough operator-(ScalarRough a, ScalarRough b) { return {a.value - b.value}; }
inline ScalarRough operator*(ScalarRough a, ScalarRough b) { return {a.value * b.value}; }
inline ScalarRough max(ScalarRough a, ScalarRough b) { return {a.value > b.value ? a.value : b.value}; }
inline ScalarRough fused(ScalarRough a, ScalarRough b, ScalarRough c) {
  const double product = static_cast<double>(a.value) * static_cast<double>(b.value);
  return {static_cast<float>(product + static_cast<double>(c.value))};
}
// The same as for double, with n + 1.5 * 2^23.
inline ScalarRough times_power(ScalarRough x, ScalarRough whole) {
  std::uint32_t bits;
  std::uint32_t power;
  std::memcpy(&bits, &x.value, sizeof bits);
  std::memcpy(&power, &whole.value, sizeof power);
  bits += power << 23;
  std::memcpy(&x.value, &bits, sizeof bits);
  return x;
}
// x where `by` is below `limit`, else 0.
inline ScalarRough only_below(ScalarRough x, ScalarRough by, ScalarRough limit) {
  return {by.value < limit.value ? x.value : 0.0F};
}
inline double sum(ScalarRough x) { return static_cast<double>(x.value); }

struct Scalar {
  template <class T>
  using Lanes = ScalarLanes<T>;
  using Math = ScalarMath;
  using Rough = ScalarRough;
  static constexpr std::size_t kPack = 1;
};

}  // namespace
}  // namespace trivium::sample
