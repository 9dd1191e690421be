// What a vector of floats can do, written for one lane. vec_avx2.h and vec_avx512.h hold the same list, nothing more.
//
// Include from ISA files and `_inl.h` files only. Everything has internal linkage: the same name compiled with other
// flags in another file must never be merged by the linker.
#pragma once

namespace trivium {
namespace {

struct VecScalar {
  static constexpr int kLanes = 1;
  float value;

  static VecScalar zero() { return {0.0F}; }
  static VecScalar broadcast(const float* from) { return {*from}; }
  static VecScalar load(const float* from) { return {*from}; }  // any alignment
  void store(float* to) const { *to = value; }                  // any alignment
};

// a * b + c, rounded once. The builtin rather than std::fma: a std inline could be emitted as a weak symbol.
[[maybe_unused]] inline VecScalar fma(VecScalar a, VecScalar b, VecScalar c) {
  return {__builtin_fmaf(a.value, b.value, c.value)};
}

[[maybe_unused]] inline VecScalar mul(VecScalar a, VecScalar b) { return {a.value * b.value}; }

[[maybe_unused]] inline VecScalar add(VecScalar a, VecScalar b) { return {a.value + b.value}; }

}  // namespace
}  // namespace trivium
