// AMX, compiled with exactly its flags. Bytes and float32 as on the level below: products take its kernels.
#include "ops/limits/dots512_inl.h"
#include "simd/amx.h"

namespace trivium::limits {
namespace {

constexpr int kSums = 4;
constexpr TileShapes kShapes{1, 0, {}, {64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16}};

// Tiles of zeros: they take as long as any others.
double multiply_tiles(std::size_t loops) {
  const TileRegisters registers(kShapes);
  for (std::size_t loop = 0; loop < loops; ++loop) {
    repeat<kSums>([](auto sum) TRIV_UNROLLED { tile_multiply_bf16<sum, 4, 5>(); });
  }
  return 2.0 * 16 * 16 * 32 * kSums * static_cast<double>(loops);
}

double compute(Arithmetic arithmetic, std::size_t loops) {
  return arithmetic == Arithmetic::kBf16 ? multiply_tiles(loops) : compute_dots512(arithmetic, loops);
}

std::uint64_t read(const std::uint64_t* words, std::size_t count) { return sum_words(words, count); }

}  // namespace

Functions limits_amx();
Functions limits_amx() { return {compute, read}; }

}  // namespace trivium::limits
