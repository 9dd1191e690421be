#include "base/isa.h"

#include <cstdlib>
#include <cstring>
#if defined(TRIVIUM_X86)
#include <cpuid.h>
#endif
#if defined(TRIVIUM_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/check.h"

namespace trivium {
namespace {

constexpr Isa kLevels[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAmx};

#if defined(TRIVIUM_X86)
// CPUID leaf 7, subleaf 1, EAX bit 4: GCC 12's __builtin_cpu_supports does not know the name avxvnni.
bool has_avx_vnni() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 4)) != 0;
}

// CPUID leaf 7, EDX: AMX-BF16 is bit 22, AMX-TILE 24, AMX-INT8 25. Linux keeps the tiles' state from a process until it
// asks (x86 dynamic features: arch_prctl ARCH_REQ_XCOMP_PERM, XTILEDATA is feature 18); other systems are not asked.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr unsigned kTiles = 1U << 22 | 1U << 24 | 1U << 25;
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool has_tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) == kTiles;
  return has_tiles && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

Isa detect() {
#if defined(TRIVIUM_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  const bool avx512vnni = avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  if (avx512vnni) return may_use_tiles() ? Isa::kAmx : Isa::kAvx512Vnni;
  if (avx512) return Isa::kAvx512;
  if (avx2) return has_avx_vnni() ? Isa::kAvxVnni : Isa::kAvx2;
#endif
  return Isa::kScalar;
}

// The strongest level that is at most `limit` and part of what the processor has.
Isa lowered_to(Isa limit) {
  Isa chosen = Isa::kScalar;
  for (const Isa isa : kLevels) {
    if (isa <= limit && includes(detected_isa(), isa)) chosen = isa;
  }
  return chosen;
}

}  // namespace

Isa detected_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa active_isa() {
  static const Isa isa = [] {
    const char* wanted = std::getenv("TRIVIUM_ISA");
    return wanted == nullptr || *wanted == '\0' ? detected_isa() : lowered_to(parse_isa(wanted));
  }();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return "amx";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvxVnni:
      return "avxvnni";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kScalar:
      break;
  }
  return "scalar";
}

Isa parse_isa(const char* name) {
  for (const Isa isa : kLevels) {
    if (std::strcmp(name, isa_name(isa)) == 0) return isa;
  }
  fail("instruction set '%s' is unknown; known are: scalar, avx2, avxvnni, avx512, avx512vnni, amx", name);
}

}  // namespace trivium
