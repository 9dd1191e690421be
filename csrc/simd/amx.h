// AMX's tile registers. Include from ISA files only.
//
// Instructions are written out here: the compiler's own names take no template arguments, and GCC 12 does not know that
// they read memory. A right side of bf16 lies as [pairs of elements][columns][2].
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG and TDPBF16PS.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trivium {
namespace {

// What LDTILECFG reads: the shape of each register.
struct alignas(64) TileShapes {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

// Gives the registers their shapes, and back when it goes; until then they are the thread's.
class TileRegisters {
 public:
  explicit TileRegisters(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
  ~TileRegisters() { asm volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

template <int kTile>
inline void tile_load(const void* rows, std::size_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
}

template <int kTile>
inline void tile_store(void* rows, std::size_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride_bytes), "i"(kTile) : "memory");
}

// sum += left x right: even elements of a row are summed, odd ones, then both added to what was there; each sum is
// rounded to nearest even, denormals are zeros.
template <int kSum, int kLeft, int kRight>
inline void tile_multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

}  // namespace
}  // namespace trivium
