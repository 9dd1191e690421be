// Instruction sets, threads, and how this module was built.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "base/isa.h"
#include "base/parallel.h"
#include "bindings/bindings.h"
#include "ops/limits/limits.h"

namespace nb = nanobind;

namespace trivium::bindings {

void bind_runtime(nb::module_& m) {
  m.def(
      "detected_isa", [] { return std::string(isa_name(detected_isa())); },
      "Name of the strongest instruction set that this processor runs: scalar, avx2, avxvnni, avx512, avx512vnni or "
      "amx.");
  m.def(
      "active_isa", [] { return std::string(isa_name(active_isa())); },
      "Name of the instruction set that kernels are chosen by: the detected one, lowered by TRIVIUM_ISA.");
  m.def("compiler", [] { return std::string(TRIVIUM_COMPILER); }, "Compiler and version that built this module.");
  m.def("kernel_version", [] { return std::string(TRIVIUM_KERNEL_VERSION); }, "Digest of the sources of the kernels.");
  m.def("usable_cores", &usable_cores, "Cores this process may use, by affinity and cgroup quota.");
  m.def("num_threads", &num_threads, "Threads that kernels use, the caller included.");
  m.def(
      "machine_limits",
      [] {
        const limits::Limits found = limits::measure(active_isa());
        return std::make_tuple(found.memory_bytes, found.cache_bytes, found.int8_ops, found.bf16_ops, found.f32_ops);
      },
      nb::call_guard<nb::gil_scoped_release>(),
      "Measure what all threads do at most, per second: bytes of memory, of cache, operations in int8, bf16, f32.");
  m.def("set_num_threads", &set_num_threads, nb::arg("count"), nb::call_guard<nb::gil_scoped_release>(),
        "Set the number of threads, 1 to 1024.");
}

}  // namespace trivium::bindings
