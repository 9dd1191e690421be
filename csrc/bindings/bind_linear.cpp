// Packed weights: formats, packing, rows as floats, and products.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/isa.h"
#include "base/parallel.h"
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
  const std::size_t code_bytes = !linear::is_number(format.id) ? 1 : format.id == linear::FormatId::kF32 ? 4 : 2;
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

using ReadPanels = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

linear::Weight weight_of(const std::string& name, const ReadPanels& panels, std::size_t num_cols, std::size_t depth) {
  const linear::Format& format = linear::format_named(name.c_str());
  const std::size_t expected = linear::num_panels(num_cols) * linear::panel_bytes(format, depth);
  TRIV_CHECK(panels.size() == expected, "panels of %zu x %zu in %s take %zu bytes, not %zu", num_cols, depth,
             name.c_str(), expected, panels.size());
  TRIV_CHECK(reinterpret_cast<std::uintptr_t>(panels.data()) % 16 == 0,
             "panels do not begin at a multiple of 16 bytes");
  return {&format, reinterpret_cast<const std::byte*>(panels.data()), num_cols};
}

void unpack_rows(const std::string& name, const ReadPanels& panels, std::size_t num_cols, const Ids& ids,
                 const Rows& out) {
  const std::size_t depth = out.shape(1);
  const linear::Weight weight = weight_of(name, panels, num_cols, depth);
  TRIV_CHECK(out.shape(0) == ids.shape(0), "unpack_rows: %zu rows for %zu ids", out.shape(0), ids.shape(0));
  for (std::size_t i = 0; i < ids.shape(0); ++i) {
    const std::int64_t id = ids.data()[i];
    TRIV_CHECK(id >= 0 && static_cast<std::size_t>(id) < num_cols, "unpack_rows: no row %lld among %zu",
               static_cast<long long>(id), num_cols);
  }
  const nb::gil_scoped_release released;
  parallel_for(ids.shape(0), 16, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      linear::unpack_row(weight, depth, static_cast<std::size_t>(ids.data()[i]), out.data() + i * depth);
    }
  });
}

const linear::Kernels& kernels_for(const std::optional<std::string>& isa) {
  const Isa level = isa ? parse_isa(isa->c_str()) : active_isa();
  TRIV_CHECK(includes(detected_isa(), level), "instruction set '%s' is not among those of this processor",
             isa_name(level));
  return linear::best(level);
}

void multiply_rows(const ReadRows& x, const std::string& name, const ReadPanels& panels, const Rows& out,
                   const std::optional<std::string>& isa) {
  const std::size_t depth = x.shape(1);
  const linear::Weight weight = weight_of(name, panels, out.shape(1), depth);
  TRIV_CHECK(out.shape(0) == x.shape(0), "multiply: x has M=%zu but out has M=%zu", x.shape(0), out.shape(0));
  const linear::Kernels& kernels = kernels_for(isa);
  const nb::gil_scoped_release released;
  linear::multiply(kernels, weight, depth, x.data(), x.shape(0), out.data());
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
  m.def("unpack_rows", &unpack_rows, "format"_a, "panels"_a, "num_cols"_a, "ids"_a, "out"_a.noconvert(),
        "out [T, K] = rows `ids` [T] of packed panels, as floats.");
  m.def("multiply", &multiply_rows, "x"_a, "format"_a, "panels"_a, "out"_a.noconvert(), "isa"_a.none() = nb::none(),
        "out [M, N] = x [M, K], in the operand format of `format`, times packed panels, transposed.");
}

}  // namespace trivium::bindings
