// Programs: built once from a plan, run with one call per step.
//
// Arrays that a program keeps pointers to (weights, arena) are kept alive by the Python object that builds it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings/bindings.h"
#include "bindings/runner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium::bindings {
namespace {

operand::Layout make_layout(const std::string& format, std::size_t depth,
                            const std::vector<std::pair<int, int>>& sums) {
  constexpr std::pair<const char*, operand::Format> kNames[] = {{"f32", operand::Format::kF32},
                                                                {"bf16", operand::Format::kBf16},
                                                                {"q8", operand::Format::kQ8},
                                                                {"q8_wide", operand::Format::kQ8Wide}};
  const auto* found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& each) { return format == each.first; });
  TRIV_CHECK(found != std::end(kNames), "operand format '%s' is not f32, bf16, q8 or q8_wide", format.c_str());
  operand::Layout layout{};
  layout.format = found->second;
  TRIV_CHECK(depth % layout.group() == 0, "operand depth %zu is no multiple of %zu", depth, layout.group());
  TRIV_CHECK(sums.size() <= operand::kMaxSums, "an operand has %zu sums; at most %zu fit", sums.size(),
             operand::kMaxSums);
  layout.depth = depth;
  layout.num_sums = sums.size();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto [group, zero] = sums[i];
    const bool is_wide = layout.format == operand::Format::kQ8Wide;
    const bool is_group = is_wide ? group == 64 : group == 16 || group == 32;
    TRIV_CHECK(is_group && zero >= 0 && zero <= 128, "operand sum (%d, %d) is not known", group, zero);
    layout.sums[i] = {static_cast<std::uint8_t>(group), static_cast<std::uint8_t>(zero)};
  }
  return layout;
}

linear::Weight make_weight(const std::string& format, const Bytes& panels, std::size_t num_cols, std::size_t depth) {
  const linear::Format& known = linear::format_named(format.c_str());
  const std::size_t num_panels = (num_cols + linear::kPanel - 1) / linear::kPanel;
  const std::size_t expected = num_panels * linear::panel_bytes(known, depth);
  TRIV_CHECK(panels.size() == expected, "panels of %zu x %zu in %s take %zu bytes, not %zu", num_cols, depth,
             format.c_str(), expected, panels.size());
  TRIV_CHECK(reinterpret_cast<std::uintptr_t>(panels.data()) % 64 == 0, "panels do not begin on a cache line");
  return {&known, reinterpret_cast<const std::byte*>(panels.data()), num_cols};
}

attention::KVType kv_type_named(const std::string& name) {
  if (name == "bf16") return attention::KVType::kBf16;
  if (name == "f32") return attention::KVType::kF32;
  TRIV_CHECK(name == "i8", "KV type '%s' is not bf16, f32 or i8", name.c_str());
  return attention::KVType::kI8;
}

attention::Store make_store(const std::string& type, std::size_t num_layers, std::size_t num_pages,
                            std::size_t num_heads, std::size_t width) {
  TRIV_CHECK(width > 0 && width % 2 == 0 && width <= attention::kMaxWidth, "head width %zu is not even and 2 to %zu",
             width, attention::kMaxWidth);
  return {kv_type_named(type), num_layers, num_pages, num_heads, width, nullptr};
}

void set_limits(Runner& self, std::size_t max_tokens, std::size_t max_rows, std::size_t vocab_size,
                std::size_t page_len, const std::vector<std::pair<std::size_t, std::size_t>>& groups,
                const std::vector<attention::Store>& stores) {
  program::Limits limits{max_tokens, max_rows, vocab_size, page_len, {}};
  for (const auto& [num_pages, window] : groups) limits.groups.push_back({num_pages, window});
  self.num_groups = groups.size();
  self.checker.emplace(std::move(limits), self.adapters);
  self.program.keep(stores);
}

void check_lengths(const Runner& self, const Int32s& token_ids, const Int32s& positions, const Int32s& starts,
                   const Int32s& kv_lens, const Int32s& copies) {
  TRIV_CHECK(positions.size() == token_ids.size(), "step has %zu positions for %zu tokens", positions.size(),
             token_ids.size());
  TRIV_CHECK(starts.size() == kv_lens.size() + 1, "step has %zu starts for %zu requests", starts.size(),
             kv_lens.size());
  TRIV_CHECK(copies.ndim() == 2 && copies.shape(1) == 3, "step.copies is not [C, 3]");
  TRIV_CHECK(self.checker.has_value(), "program: run before its limits were set");
}

// Reads an array in place; one that would have to be converted is refused, since the copy would not live long enough.
// Lists of arrays are read item by item: a vector of them would be allocated in every step.
template <class Array>
Array array_in(nb::handle item, const char* name) {
  Array array;
  if (!nb::try_cast(item, array, false)) {
    throw nb::type_error((std::string(name) + " is not a dense array of the type that a step has").c_str());
  }
  return array;
}

void read_tables(Runner& self, const nb::sequence& page_tables, std::size_t num_requests) {
  self.tables.clear();
  for (const nb::handle item : page_tables) {
    const auto table = array_in<Int32s>(item, "a page table");
    TRIV_CHECK(table.ndim() == 2 && table.shape(0) == num_requests, "a page table has not %zu rows", num_requests);
    self.tables.push_back({table.data(), table.shape(1)});
  }
}

void read_ropes(Runner& self, const nb::sequence& ropes, std::size_t num_requests) {
  self.choices.clear();
  for (const nb::handle item : ropes) {
    const auto pair = nb::borrow<nb::sequence>(item);
    TRIV_CHECK(nb::len(pair) == 2, "a rope of a step is %zu things, not variants and frequencies", nb::len(pair));
    const nb::object first = pair[0];
    const nb::object second = pair[1];
    const auto variants = array_in<Int32s>(first, "rope variants");
    const auto frequencies = array_in<Floats>(second, "rope frequencies");
    TRIV_CHECK(variants.size() == num_requests, "step has %zu rope variants for %zu requests", variants.size(),
               num_requests);
    self.choices.push_back({variants.data(), frequencies.data()});
  }
}

void sort_copies(Runner& self, const Int32s& copies) {
  self.copies.resize(self.num_groups);
  for (auto& of_group : self.copies) of_group.clear();
  for (std::size_t i = 0; i < copies.shape(0); ++i) {
    const std::int32_t* copy = copies.data() + 3 * i;
    TRIV_CHECK(static_cast<std::size_t>(copy[0]) < self.num_groups, "step copies a page of group %d of %zu", copy[0],
               self.num_groups);
    self.copies[static_cast<std::size_t>(copy[0])].push_back({copy[1], copy[2]});
  }
}

void run(Runner& self, const Arena& arena, const Int32s& token_ids, const Int32s& positions, const Int32s& starts,
         const Int32s& kv_lens, const Int32s& logit_rows, const std::optional<Floats>& embeds, const Int32s& copies,
         const nb::sequence& page_tables, const nb::sequence& ropes, const std::optional<Seconds>& seconds,
         const std::optional<std::pair<std::size_t, std::size_t>>& part, const std::optional<Int32s>& adapter_slot) {
  check_lengths(self, token_ids, positions, starts, kv_lens, copies);
  read_tables(self, page_tables, kv_lens.size());
  read_ropes(self, ropes, kv_lens.size());
  sort_copies(self, copies);
  TRIV_CHECK(!adapter_slot || adapter_slot->size() == kv_lens.size(), "step has %zu adapter slots for %zu requests",
             adapter_slot ? adapter_slot->size() : 0, kv_lens.size());
  const program::Step step{token_ids.size(),
                           kv_lens.size(),
                           logit_rows.size(),
                           token_ids.data(),
                           positions.data(),
                           starts.data(),
                           kv_lens.data(),
                           logit_rows.data(),
                           pointer(embeds),
                           self.tables,
                           self.choices,
                           self.copies,
                           adapter_slot ? adapter_slot->data() : nullptr};
  auto* bytes = reinterpret_cast<std::byte*>(arena.data());
  TRIV_CHECK(!seconds || seconds->size() == self.program.size(), "%zu times for %zu instructions",
             seconds ? seconds->size() : 0, self.program.size());
  const program::Part wanted = part ? program::Part{part->first, part->second} : program::Part{0, self.program.size()};
  const nb::gil_scoped_release released;
  self.checker->check(step);
  self.program.run(step, bytes, wanted, seconds ? seconds->data() : nullptr);
}

void read_operand(const operand::Layout& layout, const Arena& arena, std::size_t at,
                  const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
  TRIV_CHECK(out.shape(1) == layout.depth, "rows of an operand have %zu elements, not %zu", layout.depth, out.shape(1));
  TRIV_CHECK(at + out.shape(0) * layout.row_bytes() <= arena.size(), "the operand ends past the arena");
  for (std::size_t r = 0; r < out.shape(0); ++r) {
    operand::read_row(layout, arena.data() + at, out.shape(0), r, out.data() + r * layout.depth);
  }
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<operand::Layout>(m, "OperandLayout", "How rows of activations are stored for a product.")
      .def(
          "__init__",
          [](operand::Layout* self, const std::string& format, std::size_t depth,
             const std::vector<std::pair<int, int>>& sums) {
            new (self) operand::Layout(make_layout(format, depth, sums));
          },
          "format"_a, "depth"_a, "sums"_a)
      .def_prop_ro("row_bytes", &operand::Layout::row_bytes);
  nb::class_<linear::Weight>(m, "Weight", "A packed matrix; keep its panels alive.")
      .def(
          "__init__",
          [](linear::Weight* self, const std::string& format, const Bytes& panels, std::size_t num_cols,
             std::size_t depth) { new (self) linear::Weight(make_weight(format, panels, num_cols, depth)); },
          "format"_a, "panels"_a, "num_cols"_a, "depth"_a);
  nb::class_<attention::Store>(m, "KVStore", "The pages of one KV group.")
      .def(
          "__init__",
          [](attention::Store* self, const Arena& data, const std::string& type, std::size_t num_layers,
             std::size_t num_pages, std::size_t num_heads, std::size_t width) {
            attention::Store store = make_store(type, num_layers, num_pages, num_heads, width);
            TRIV_CHECK(data.size() == store.num_bytes(), "a KV store takes %zu bytes, not %zu", store.num_bytes(),
                       data.size());
            TRIV_CHECK(reinterpret_cast<std::uintptr_t>(data.data()) % 64 == 0, "a KV store begins on a cache line");
            store.data = reinterpret_cast<std::byte*>(data.data());
            new (self) attention::Store(store);
          },
          "data"_a, "type"_a, "num_layers"_a, "num_pages"_a, "num_heads"_a, "width"_a, nb::keep_alive<1, 2>());
  m.def(
      "kv_store_bytes",
      [](const std::string& type, std::size_t num_layers, std::size_t num_pages, std::size_t num_heads,
         std::size_t width) { return make_store(type, num_layers, num_pages, num_heads, width).num_bytes(); },
      "type"_a, "num_layers"_a, "num_pages"_a, "num_heads"_a, "width"_a, "Bytes of a KV store.");
  m.def("query_factor", &attention::query_factor, "scale"_a, "soft_cap"_a,
        "What queries are multiplied with before they are rounded.");
  m.def("read_operand", &read_operand, "layout"_a, "arena"_a, "at"_a, "out"_a,
        "Rows of an operand in the arena as floats [rows, depth].");
  nb::class_<Runner> cls(m, "Program", "A flat list of instructions over one arena.");
  def_instructions(cls);
  cls.def(nb::init<>())
      .def("__len__", [](const Runner& self) { return self.program.size(); })
      .def("limit", &set_limits, "max_tokens"_a, "max_rows"_a, "vocab_size"_a, "page_len"_a, "groups"_a, "stores"_a,
           "Set what steps are checked by; groups are (pages, window or 0).")
      .def(
          "seal", [](Runner& self) { self.program.seal(); }, "Allocate scratch; after the last instruction.")
      .def("run", &run, "arena"_a, "token_ids"_a, "positions"_a, "starts"_a, "kv_lens"_a, "logit_rows"_a,
           "embeds"_a.none(), "copies"_a, "page_tables"_a, "ropes"_a, "seconds"_a.none() = nb::none(),
           "part"_a.none() = nb::none(), "adapter_slot"_a.none() = nb::none(),
           "Check a step and run it, or a part of the instructions; adds each one's seconds to `seconds`.");
}

}  // namespace trivium::bindings
