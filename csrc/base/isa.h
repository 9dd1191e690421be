// Which instruction set the kernels may use: detected once, and only ever lowered by TRIVIUM_ISA.
//
// Compiled without any ISA flag, so that asking the question is safe on every processor.
#pragma once

namespace trivium {

// Ordered: a larger value includes all smaller ones.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// What this processor and operating system can run. Never changes while the process lives.
Isa detected_isa();

// What kernels are chosen by: detected_isa(), lowered by TRIVIUM_ISA=scalar|avx2|avx512 where it is set.
// Throws std::invalid_argument for an unknown name; a level above the detected one is lowered to it.
Isa active_isa();

// "scalar", "avx2", "avx512".
const char* isa_name(Isa isa);

// The inverse of isa_name. Throws std::invalid_argument that lists the names.
Isa parse_isa(const char* name);

}  // namespace trivium
