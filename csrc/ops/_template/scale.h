// A complete toy op to copy: y[i] = factor * x[i].
//
// x, y: `size` floats; y may be x itself, but must not overlap it otherwise. No alignment is needed. Exact: one
// rounding. Threads: may be called from several at once.
//
// To make an op of it: copy the folder, rename `scale`, write the scalar kernel and its test first, list the files in
// CMakeLists.txt (plain sources under trivium_plain, ISA files under trivium_isa), then bind it in bindings/.
#pragma once

#include <cstddef>
#include <span>

#include "base/isa.h"

namespace trivium::scale {

using ScaleFn = void (*)(float factor, const float* x, float* y, std::size_t size);

struct Kernel {
  Isa isa;
  const char* name;
  ScaleFn run;
};

// Every compiled kernel, strongest first, scalar last.
std::span<const Kernel> all();

// The strongest kernel that needs no more than `isa`.
const Kernel& best(Isa isa);

}  // namespace trivium::scale
