#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings/bindings.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/pack.h"

namespace nb = nanobind;

namespace trivium::bindings {
namespace {

// The last axis must be dense; the others may have any stride that is not negative.
using Input2d = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Output2d = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Input3d = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu>;
using Output3d = nb::ndarray<float, nb::ndim<3>, nb::device::cpu>;
using Panels = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using PanelsOut = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <class Array>
void check_strides(const char* op, const char* name, const Array& array) {
  if (array.size() == 0) return;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    const std::int64_t stride = array.stride(axis);
    const bool is_last = axis + 1 == array.ndim();
    TRIV_CHECK(stride >= 0 && (!is_last || stride == 1 || array.shape(axis) <= 1),
               "%s: axis %zu of %s has stride %lld; the last axis must be dense and no stride negative", op, axis, name,
               static_cast<long long>(stride));
  }
}

void check_same(const char* op, const char* letter, const char* name_a, std::size_t a, const char* name_b,
                std::size_t b) {
  TRIV_CHECK(a == b, "%s: %s has %s=%zu but %s has %s=%zu", op, name_a, letter, a, name_b, letter, b);
}

template <class T, class Array>
Span2d<T> matrix(const Array& array) {
  return {array.data(), array.shape(0), array.shape(1), static_cast<std::size_t>(array.stride(0))};
}

template <class T, class Array>
gemm::Batch<T> batch(const Array& array) {
  return {{array.data(), array.shape(1), array.shape(2), static_cast<std::size_t>(array.stride(1))},
          static_cast<std::size_t>(array.stride(0))};
}

// The kernel for `isa`, or for the active level; a level this processor lacks is refused rather than run.
const gemm::Kernel& kernel_for(const std::optional<std::string>& isa) {
  if (!isa) return gemm::best(active_isa());
  const Isa level = parse_isa(isa->c_str());
  TRIV_CHECK(level <= detected_isa(), "instruction set '%s' is above '%s', which this processor has", isa->c_str(),
             isa_name(detected_isa()));
  return gemm::best(level);
}

void check_panels(const char* op, std::size_t panels, std::size_t width, std::size_t num_cols) {
  TRIV_CHECK(width == gemm::kPanelWidth, "%s: panels are %zu wide; this module packs %zu", op, width,
             gemm::kPanelWidth);
  TRIV_CHECK(panels == gemm::num_panels(num_cols), "%s: %zu panels given; N=%zu takes %zu", op, panels, num_cols,
             gemm::num_panels(num_cols));
}

void bind_pack(const Input2d& weight, const PanelsOut& out) {
  check_strides("pack", "weight", weight);
  check_panels("pack", out.shape(0), out.shape(2), weight.shape(0));
  check_same("pack", "K", "out", out.shape(1), "weight", weight.shape(1));
  const nb::gil_scoped_release unlocked;
  gemm::pack(matrix<const float>(weight), out.data());
}

void bind_gemm_packed(const Input2d& a, const Panels& panels, const Output2d& out,
                      const std::optional<std::string>& isa) {
  check_strides("gemm", "a", a);
  check_strides("gemm", "out", out);
  check_panels("gemm", panels.shape(0), panels.shape(2), out.shape(1));
  check_same("gemm", "K", "a", a.shape(1), "panels", panels.shape(1));
  check_same("gemm", "M", "out", out.shape(0), "a", a.shape(0));
  const gemm::Kernel& kernel = kernel_for(isa);
  const nb::gil_scoped_release unlocked;
  gemm::gemm_packed(kernel, matrix<const float>(a), panels.data(), matrix<float>(out));
}

void bind_matmul_nt(const Input3d& a, const Input3d& b, const Output3d& out, const std::optional<std::string>& isa) {
  check_strides("matmul_nt", "a", a);
  check_strides("matmul_nt", "b", b);
  check_strides("matmul_nt", "out", out);
  check_same("matmul_nt", "B", "b", b.shape(0), "a", a.shape(0));
  check_same("matmul_nt", "B", "out", out.shape(0), "a", a.shape(0));
  check_same("matmul_nt", "K", "b", b.shape(2), "a", a.shape(2));
  check_same("matmul_nt", "M", "out", out.shape(1), "a", a.shape(1));
  check_same("matmul_nt", "N", "out", out.shape(2), "b", b.shape(1));
  const gemm::Kernel& kernel = kernel_for(isa);
  const nb::gil_scoped_release unlocked;
  gemm::matmul_nt(kernel, a.shape(0), batch<const float>(a), batch<const float>(b), batch<float>(out));
}

void bind_matmul_nn(const Input3d& a, const Input3d& b, const Output3d& out, const std::optional<std::string>& isa) {
  check_strides("matmul_nn", "a", a);
  check_strides("matmul_nn", "b", b);
  check_strides("matmul_nn", "out", out);
  check_same("matmul_nn", "B", "b", b.shape(0), "a", a.shape(0));
  check_same("matmul_nn", "B", "out", out.shape(0), "a", a.shape(0));
  check_same("matmul_nn", "K", "b", b.shape(1), "a", a.shape(2));
  check_same("matmul_nn", "M", "out", out.shape(1), "a", a.shape(1));
  check_same("matmul_nn", "N", "out", out.shape(2), "b", b.shape(2));
  const gemm::Kernel& kernel = kernel_for(isa);
  const nb::gil_scoped_release unlocked;
  gemm::matmul_nn(kernel, a.shape(0), batch<const float>(a), batch<const float>(b), batch<float>(out));
}

std::vector<std::pair<std::string, std::string>> list_kernels() {
  std::vector<std::pair<std::string, std::string>> kernels;
  for (const gemm::Kernel& kernel : gemm::all()) kernels.emplace_back(isa_name(kernel.isa), kernel.name);
  return kernels;
}

}  // namespace

void bind_gemm(nb::module_& m) {
  m.attr("PANEL_WIDTH") = gemm::kPanelWidth;
  m.def("gemm_kernels", &list_kernels, "All compiled GEMM kernels as (instruction set, name), strongest first.");
  m.def("pack", &bind_pack, nb::arg("weight"), nb::arg("out").noconvert(),
        "Pack weight [N, K] into out [panels, K, PANEL_WIDTH].");
  m.def("gemm", &bind_gemm_packed, nb::arg("a"), nb::arg("panels"), nb::arg("out").noconvert(),
        nb::arg("isa") = nb::none(), "out [M, N] = a [M, K] times the packed weight [N, K], transposed.");
  m.def("matmul_nt", &bind_matmul_nt, nb::arg("a"), nb::arg("b"), nb::arg("out").noconvert(),
        nb::arg("isa") = nb::none(), "out [B, M, N] = a [B, M, K] times b [B, N, K], transposed.");
  m.def("matmul_nn", &bind_matmul_nn, nb::arg("a"), nb::arg("b"), nb::arg("out").noconvert(),
        nb::arg("isa") = nb::none(), "out [B, M, N] = a [B, M, K] times b [B, K, N].");
}

}  // namespace trivium::bindings
