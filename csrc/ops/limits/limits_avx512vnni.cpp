// AVX-512 with dot products of bytes and of bfloat16, compiled with exactly those flags.
#include "ops/limits/dots512_inl.h"

namespace trivium::limits {
namespace {

std::uint64_t read(const std::uint64_t* words, std::size_t count) { return sum_words(words, count); }

}  // namespace

Functions limits_avx512vnni();
Functions limits_avx512vnni() { return {compute_dots512, read}; }

}  // namespace trivium::limits
