// Adapters: prepared by any thread, copied, so that nothing of the caller's is kept; put into slots between steps.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings/bindings.h"
#include "program/adapters.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium::bindings {
namespace {

using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Given = std::optional<std::tuple<FloatMatrix, FloatMatrix, float>>;  // A [r, K], B [N, r], scale

// What Python holds of an adapter.
struct Prepared {
  program::PreparedAdapter factors;
  std::size_t num_bytes = 0;
};

Prepared prepare(const program::Adapters& self, const std::vector<Given>& given) {
  TRIV_CHECK(given.size() == self.products().size(), "adapters: factors of %zu products, not of %zu", given.size(),
             self.products().size());
  for (std::size_t p = 0; p < given.size(); ++p) {
    if (!given[p]) continue;
    const auto& [a, b, scale] = *given[p];
    const program::AdaptedProduct& product = self.products()[p];
    const bool fits =
        a.shape(0) > 0 && b.shape(1) == a.shape(0) && a.shape(1) == product.depth && b.shape(0) == product.width;
    TRIV_CHECK(fits, "adapters: product %zu [%zu, %zu] has A [%zu, %zu] and B [%zu, %zu]", p, product.width,
               product.depth, a.shape(0), a.shape(1), b.shape(0), b.shape(1));
    TRIV_CHECK(std::isfinite(scale), "adapters: product %zu has the scale %g", p, static_cast<double>(scale));
  }
  const nb::gil_scoped_release released;
  std::vector<adapter::Factors> factors(given.size());
  for (std::size_t p = 0; p < given.size(); ++p) {
    if (!given[p]) continue;
    const auto& [a, b, scale] = *given[p];
    factors[p] = adapter::make_factors(a.data(), b.data(), a.shape(0), a.shape(1), b.shape(0), scale);
  }
  std::size_t num_bytes = 0;
  for (const adapter::Factors& each : factors) num_bytes += sizeof(float) * (each.a.size() + each.b.size());
  return {std::make_shared<const std::vector<adapter::Factors>>(std::move(factors)), num_bytes};
}

std::shared_ptr<program::Adapters> make(std::size_t max_rows, std::size_t max_sites,
                                        const std::vector<std::pair<std::size_t, std::size_t>>& products) {
  std::vector<program::AdaptedProduct> known;
  for (const auto& [depth, width] : products) known.push_back({depth, width});
  return std::make_shared<program::Adapters>(max_rows, max_sites, std::move(known));
}

}  // namespace

void bind_adapters(nb::module_& m) {
  m.attr("MAX_ADAPTERS") = program::kMaxAdapters;
  nb::class_<Prepared>(m, "PreparedAdapter", "An adapter as steps read it.")
      .def_ro("num_bytes", &Prepared::num_bytes, "Memory that it takes.");
  nb::class_<program::Adapters>(m, "Adapters", "The adapters that a program's steps may use, by slot.")
      .def(nb::new_(&make), "max_rows"_a, "max_sites"_a, "products"_a)
      .def("prepare", &prepare, "factors"_a,
           "Copy an adapter: per product (A [r, K], B [N, r], scale), or None. From any thread, also while steps run.")
      .def(
          "load",
          [](program::Adapters& self, std::size_t slot, const Prepared& prepared) {
            self.load(slot, prepared.factors);
          },
          "slot"_a, "prepared"_a, "Put an adapter into a free slot. Between steps.")
      .def("unload", &program::Adapters::unload, "slot"_a, "Free a slot.");
}

}  // namespace trivium::bindings
