#include "base/isa.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace trivium {
namespace {

constexpr Isa kLevels[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

Isa detect() {
#if defined(TRIVIUM_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kScalar;
}

}  // namespace

Isa detected_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa active_isa() {
  static const Isa isa = [] {
    const char* wanted = std::getenv("TRIVIUM_ISA");
    if (wanted == nullptr || *wanted == '\0') return detected_isa();
    const Isa limit = parse_isa(wanted);
    return limit < detected_isa() ? limit : detected_isa();
  }();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
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
  fail("instruction set '%s' is unknown; known are: scalar, avx2, avx512", name);
}

}  // namespace trivium
