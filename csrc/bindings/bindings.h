// What the parts of the module share: array types, and one function per op that adds its bindings.
//
// Here shapes are checked, the GIL is released, and nothing is computed.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace trivium::bindings {

void bind_runtime(nanobind::module_& m);
void bind_adapters(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_gemm(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_sample(nanobind::module_& m);

}  // namespace trivium::bindings
