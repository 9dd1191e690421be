// Which instruction set the kernels may use: detected once, and only ever lowered by TRIVIUM_ISA.
//
// Compiled without any ISA flag, so that asking the question is safe on every processor.
#pragma once

namespace trivium {

// Levels by strength. Each includes all before it, but for one gap: AVX-VNNI is not part of AVX-512 (see includes).
//
//   kAvx2        AVX2, FMA, F16C
//   kAvxVnni     + 8-bit dot products on 256-bit vectors (client processors without AVX-512)
//   kAvx512      AVX-512 F, VL, BW, DQ
//   kAvx512Vnni  + 8-bit dot products (VNNI) and bfloat16 dot products (BF16)
//   kAmx         + products of tiles (AMX of bfloat16 and of bytes), where the system lets this process use them
enum class Isa { kScalar = 0, kAvx2 = 1, kAvxVnni = 2, kAvx512 = 3, kAvx512Vnni = 4, kAmx = 5 };

// Whether code compiled for `needed` runs where `level` runs.
constexpr bool includes(Isa level, Isa needed) {
  return needed <= level && !(needed == Isa::kAvxVnni && level > Isa::kAvxVnni);
}

// What this processor and operating system can run. Never changes while the process lives. Asks Linux, once, to let
// this process use the tiles of AMX.
Isa detected_isa();

// What kernels are chosen by: detected_isa(), lowered by TRIVIUM_ISA=scalar|avx2|avxvnni|avx512|avx512vnni|amx where it
// is set. Throws std::invalid_argument for an unknown name; a level the processor lacks is lowered to the next it has.
Isa active_isa();

// "scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx".
const char* isa_name(Isa isa);

// The inverse of isa_name. Throws std::invalid_argument that lists the names.
Isa parse_isa(const char* name);

}  // namespace trivium
