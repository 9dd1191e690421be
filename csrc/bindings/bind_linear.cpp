// Formats of packed weights, and packing.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "bindings/bindings.h"
#include "ops/linear/linear.h"
#include "ops/linear/pack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium::bindings {
namespace {

using Any = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Panels = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::size_t bytes_of_panel(const std::string& name, std::size_t depth) {
  return linear::panel_bytes(linear::format_named(name.c_str()), depth);
}

// The array of an ingredient, whose number of elements must be N * `per_row`.
const void* ingredient(const char* name, const std::optional<Any>& array, std::size_t num_cols, std::size_t per_row,
                       std::size_t item_bytes) {
  if (!array) return nullptr;
  TRIV_CHECK(array->size() == num_cols * per_row, "pack: %s has %zu elements, not %zu x %zu", name, array->size(),
             num_cols, per_row);
  TRIV_CHECK(array->itemsize() == item_bytes, "pack: elements of %s have %zu bytes, not %zu", name, array->itemsize(),
             item_bytes);
  return array->data();
}

std::vector<std::string> list_formats() {
  std::vector<std::string> names;
  for (const linear::Format& format : linear::formats()) names.emplace_back(format.name);
  return names;
}

void pack_codes(const std::string& name, const Any& codes, const Panels& out, const std::optional<Any>& scales,
                const std::optional<Any>& mins, const std::optional<Any>& zeros, const std::optional<Any>& supers,
                const std::optional<Any>& subs, const std::optional<Any>& super_mins,
                const std::optional<Any>& sub_mins) {
  const linear::Format& format = linear::format_named(name.c_str());
  TRIV_CHECK(codes.ndim() == 2, "pack: codes are not [N, K]");
  const std::size_t num_cols = codes.shape(0);
  const std::size_t depth = codes.shape(1);
  const std::size_t code_bytes = format.id == linear::FormatId::kF32 ? 4 : format.id == linear::FormatId::kBf16 ? 2 : 1;
  const std::size_t span = linear::record_group(format);
  const std::size_t groups = span == 0 ? 0 : (depth + span - 1) / span;
  const std::size_t blocks = (depth + 255) / 256;
  const bool per_column = format.id == linear::FormatId::kI8Channel;
  linear::Codes record{};
  record.num_cols = num_cols;
  record.depth = depth;
  record.codes = ingredient("codes", codes, num_cols, depth, code_bytes);
  record.scales = ingredient("scales", scales, num_cols, per_column ? 1 : groups, per_column ? 4 : 2);
  record.mins = static_cast<const std::uint16_t*>(ingredient("mins", mins, num_cols, groups, 2));
  record.zeros = static_cast<const std::uint8_t*>(ingredient("zeros", zeros, num_cols, groups, 1));
  record.supers = static_cast<const std::uint16_t*>(ingredient("supers", supers, num_cols, blocks, 2));
  record.subs = static_cast<const std::uint8_t*>(ingredient("subs", subs, num_cols, groups, 1));
  record.super_mins = static_cast<const std::uint16_t*>(ingredient("super_mins", super_mins, num_cols, blocks, 2));
  record.sub_mins = static_cast<const std::uint8_t*>(ingredient("sub_mins", sub_mins, num_cols, groups, 1));
  const std::size_t num_panels = (num_cols + linear::kPanel - 1) / linear::kPanel;
  const std::size_t expected = num_panels * linear::panel_bytes(format, depth);
  TRIV_CHECK(out.size() == expected, "pack: panels of %zu x %zu in %s take %zu bytes, not %zu", num_cols, depth,
             name.c_str(), expected, out.size());
  const nb::gil_scoped_release released;
  linear::pack(format, record, reinterpret_cast<std::byte*>(out.data()));
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.attr("PANEL_COLUMNS") = linear::kPanel;
  m.def("weight_formats", &list_formats, "Names of the formats that packed weights have.");
  m.def("panel_bytes", &bytes_of_panel, "format"_a, "depth"_a, "Bytes of one panel over depth K.");
  m.def("pack_codes", &pack_codes, "format"_a, "codes"_a, "out"_a, "scales"_a.none() = nb::none(),
        "mins"_a.none() = nb::none(), "zeros"_a.none() = nb::none(), "supers"_a.none() = nb::none(),
        "subs"_a.none() = nb::none(), "super_mins"_a.none() = nb::none(), "sub_mins"_a.none() = nb::none(),
        "Lay out a record of codes in panels.");
}

}  // namespace trivium::bindings
