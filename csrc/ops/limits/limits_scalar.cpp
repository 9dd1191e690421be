// One lane, in plain C++, for every processor.
#include "ops/limits/limits_inl.h"

namespace trivium::limits {
namespace {

double compute(Arithmetic arithmetic, std::size_t loops) {
  if (arithmetic == Arithmetic::kInt8) {
    std::int32_t acc[kChains] = {};
    std::int32_t weight = 3;
    for (std::size_t loop = 0; loop < loops; ++loop) {
      for (std::int32_t& sum : acc) {
        asm volatile("" : "+r"(weight));
        sum += weight * 5;
        asm volatile("" : "+r"(sum));
      }
    }
    return 2.0 * static_cast<double>(loops) * kChains;
  }
  return run_chains(loops, 1, 1.0F, [](float sum) { return sum * 0.5F + 0.5F; });
}

std::uint64_t read(const std::uint64_t* words, std::size_t count) { return sum_words(words, count); }

}  // namespace

Functions limits_scalar();
Functions limits_scalar() { return {compute, read}; }

}  // namespace trivium::limits
