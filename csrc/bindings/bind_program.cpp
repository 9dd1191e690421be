// Programs: built once from a plan, one instruction per method; run with one call per step.
//
// Arrays that a program keeps pointers to (weights, arena) are kept alive by the Python object that builds it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings/bindings.h"
#include "program/check.h"
#include "program/instructions.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium::bindings {
namespace {

using Int32s = nb::ndarray<const std::int32_t, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Arena = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Seconds = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using At = std::optional<std::size_t>;

std::size_t place(At at) { return at.value_or(program::kNowhere); }

const float* pointer(const std::optional<Floats>& array) { return array ? array->data() : nullptr; }

// A program with the rules that its steps are checked by, and room for what a step brings as lists.
struct Runner {
  program::Program program;
  std::optional<program::Checker> checker;
  std::vector<std::shared_ptr<program::SharedWork>> works;
  std::size_t num_groups = 0;
  std::size_t num_ropes = 0;
  std::vector<program::PageTable> tables;
  std::vector<program::RopeChoice> choices;
  std::vector<std::vector<attention::PageCopy>> copies;
};

operand::Layout make_layout(const std::string& format, std::size_t depth,
                            const std::vector<std::pair<int, int>>& sums) {
  operand::Layout layout{};
  TRIV_CHECK(format == "f32" || format == "bf16" || format == "q8", "operand format '%s' is not f32, bf16 or q8",
             format.c_str());
  layout.format = format == "f32"    ? operand::Format::kF32
                  : format == "bf16" ? operand::Format::kBf16
                                     : operand::Format::kQ8;
  TRIV_CHECK(depth % operand::kGroup == 0, "operand depth %zu is no multiple of %zu", depth, operand::kGroup);
  TRIV_CHECK(sums.size() <= operand::kMaxSums, "an operand has %zu sums; at most %zu fit", sums.size(),
             operand::kMaxSums);
  layout.depth = depth;
  layout.num_sums = sums.size();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto [group, zero] = sums[i];
    TRIV_CHECK((group == 16 || group == 32) && zero >= 0 && zero <= 128, "operand sum (%d, %d) is not known", group,
               zero);
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

linear::EpilogueKind epilogue_named(const std::string& name) {
  if (name == "store") return linear::EpilogueKind::kStore;
  if (name == "add") return linear::EpilogueKind::kAdd;
  TRIV_CHECK(name == "gated", "epilogue '%s' is not store, add or gated", name.c_str());
  return linear::EpilogueKind::kGated;
}

linear::Activation activation_named(const std::string& name) {
  if (name == "silu") return linear::Activation::kSilu;
  TRIV_CHECK(name == "gelu_tanh", "activation '%s' is not silu or gelu_tanh", name.c_str());
  return linear::Activation::kGeluTanh;
}

linear::Tactic tactic_named(const std::string& name) {
  if (name == "auto") return linear::Tactic::kAuto;
  if (name == "direct") return linear::Tactic::kDirect;
  TRIV_CHECK(name == "unpacked", "tactic '%s' is not auto, direct or unpacked", name.c_str());
  return linear::Tactic::kUnpacked;
}

program::PlainOp plain_op_named(const std::string& name) {
  const std::pair<const char*, program::PlainOp> known[] = {
      {"add", program::PlainOp::kAdd},     {"mul", program::PlainOp::kMul},
      {"scale", program::PlainOp::kScale}, {"softcap", program::PlainOp::kSoftCap},
      {"silu", program::PlainOp::kSilu},   {"gelu_tanh", program::PlainOp::kGeluTanh},
  };
  for (const auto& [word, op] : known) {
    if (name == word) return op;
  }
  fail("plain op '%s' is unknown", name.c_str());
}

program::Rows rows_named(const std::string& name) {
  TRIV_CHECK(name == "T" || name == "R", "rows '%s' are not T or R", name.c_str());
  return name == "T" ? program::Rows::kTokens : program::Rows::kWanted;
}

void add_embed(Runner& self, const linear::Weight& table, std::size_t width, float scale, std::size_t out_at) {
  auto made = std::make_unique<program::Embed>();
  made->table = table;
  made->width = width;
  made->scale = scale;
  made->out_at = out_at;
  self.program.add(std::move(made));
}

void add_norm(Runner& self, std::size_t width, float eps, float b_eps, std::size_t a_at, At b_at,
              const std::optional<Floats>& b_weight, const std::optional<Floats>& weight, const std::string& rows,
              bool gathers, At sum_at, At floats_at, const std::optional<operand::Layout>& layout, At operand_at) {
  auto made = std::make_unique<program::Norm>();
  made->width = width;
  made->eps = eps;
  made->b_eps = b_eps;
  made->a_at = a_at;
  made->b_at = place(b_at);
  made->b_weight = pointer(b_weight);
  made->weight = pointer(weight);
  made->rows = rows_named(rows);
  made->gathers = gathers;
  made->sum_at = place(sum_at);
  made->floats_at = place(floats_at);
  if (layout) made->layout = *layout;
  made->operand_at = place(operand_at);
  self.program.add(std::move(made));
}

void add_project(Runner& self, const std::vector<linear::Weight>& parts, const std::vector<std::size_t>& sums,
                 const operand::Layout& layout, std::size_t operand_at, const std::string& rows,
                 const std::string& epilogue, const std::optional<Floats>& bias, At delta_at, std::size_t delta_stride,
                 float scale, float soft_cap, const std::string& activation, At out_at, std::size_t out_stride,
                 const std::optional<operand::Layout>& out_layout, At out_operand_at,
                 const std::vector<std::pair<std::size_t, std::string>>& tactics, const std::string& tactic) {
  TRIV_CHECK(!parts.empty() && parts.size() == sums.size(), "%zu parts with %zu sums", parts.size(), sums.size());
  auto made = std::make_unique<program::Project>();
  made->parts = parts;
  made->sums = sums;
  made->layout = layout;
  made->operand_at = operand_at;
  made->rows = rows_named(rows);
  made->kind = epilogue_named(epilogue);
  made->bias = pointer(bias);
  made->delta_at = place(delta_at);
  made->delta_stride = delta_stride;
  made->scale = scale;
  made->soft_cap = soft_cap;
  made->activation = activation_named(activation);
  made->out_at = place(out_at);
  made->out_stride = out_stride;
  if (out_layout) made->out_layout = *out_layout;
  made->out_operand_at = place(out_operand_at);
  for (const auto& [limit, name] : tactics) made->tactics.emplace_back(limit, tactic_named(name));
  made->tactic = tactic_named(tactic);
  made->check();
  self.program.add(std::move(made));
}

void add_plain(Runner& self, const std::string& op, const std::string& rows, std::size_t width, std::size_t a_at,
               At b_at, float number, std::size_t out_at) {
  auto made = std::make_unique<program::Plain>();
  made->op = plain_op_named(op);
  made->rows = rows_named(rows);
  made->width = width;
  made->a_at = a_at;
  made->b_at = place(b_at);
  made->number = number;
  made->out_at = out_at;
  self.program.add(std::move(made));
}

void add_plain_norm(Runner& self, const std::string& rows, std::size_t count, std::size_t width, float eps,
                    const Floats& weight, std::size_t x_at, std::size_t out_at) {
  TRIV_CHECK(weight.size() == width, "norm of %zu elements with %zu weights", width, weight.size());
  auto made = std::make_unique<program::PlainNorm>();
  made->rows = rows_named(rows);
  made->count = count;
  made->width = width;
  made->eps = eps;
  made->weight = weight.data();
  made->x_at = x_at;
  made->out_at = out_at;
  self.program.add(std::move(made));
}

void add_split(Runner& self, const std::string& rows, std::size_t count, const std::vector<std::size_t>& sizes,
               std::size_t x_at, const std::vector<std::size_t>& outs_at) {
  TRIV_CHECK(sizes.size() == outs_at.size(), "split into %zu sizes and %zu places", sizes.size(), outs_at.size());
  auto made = std::make_unique<program::Split>();
  made->rows = rows_named(rows);
  made->count = count;
  made->sizes = sizes;
  made->x_at = x_at;
  made->outs_at = outs_at;
  self.program.add(std::move(made));
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

rope_kv::NormKind norm_named(const std::string& name) {
  if (name == "none") return rope_kv::NormKind::kNone;
  if (name == "head") return rope_kv::NormKind::kHead;
  TRIV_CHECK(name == "full", "norm of heads '%s' is not none, head or full", name.c_str());
  return rope_kv::NormKind::kFull;
}

void set_limits(Runner& self, std::size_t max_tokens, std::size_t max_rows, std::size_t vocab_size,
                std::size_t page_len, const std::vector<std::pair<std::size_t, std::size_t>>& groups,
                const std::vector<attention::Store>& stores) {
  program::Limits limits{max_tokens, max_rows, vocab_size, page_len, {}};
  for (const auto& [num_pages, window] : groups) limits.groups.push_back({num_pages, window});
  self.num_groups = groups.size();
  self.checker.emplace(std::move(limits));
  self.program.keep(stores);
}

void check_lengths(const Runner& self, const Int32s& token_ids, const Int32s& positions, const Int32s& starts,
                   const Int32s& kv_lens, const Int32s& copies, const std::vector<Int32s>& page_tables) {
  TRIV_CHECK(positions.size() == token_ids.size(), "step has %zu positions for %zu tokens", positions.size(),
             token_ids.size());
  TRIV_CHECK(starts.size() == kv_lens.size() + 1, "step has %zu starts for %zu requests", starts.size(),
             kv_lens.size());
  TRIV_CHECK(copies.ndim() == 2 && copies.shape(1) == 3, "step.copies is not [C, 3]");
  for (const Int32s& table : page_tables) {
    TRIV_CHECK(table.ndim() == 2 && table.shape(0) == kv_lens.size(), "a page table has not %zu rows", kv_lens.size());
  }
  TRIV_CHECK(self.checker.has_value(), "program: run before its limits were set");
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
         const std::vector<Int32s>& page_tables, const std::vector<std::pair<Int32s, Floats>>& ropes,
         const std::optional<Seconds>& seconds, const std::optional<std::pair<std::size_t, std::size_t>>& part) {
  check_lengths(self, token_ids, positions, starts, kv_lens, copies, page_tables);
  self.tables.clear();
  for (const Int32s& table : page_tables) self.tables.push_back({table.data(), table.shape(1)});
  self.choices.clear();
  for (const auto& [variants, frequencies] : ropes) {
    TRIV_CHECK(variants.size() == kv_lens.size(), "step has %zu rope variants for %zu requests", variants.size(),
               kv_lens.size());
    self.choices.push_back({variants.data(), frequencies.data()});
  }
  sort_copies(self, copies);
  const program::Step step{token_ids.size(), kv_lens.size(), logit_rows.size(), token_ids.data(),
                           positions.data(), starts.data(),  kv_lens.data(),    logit_rows.data(),
                           pointer(embeds),  self.tables,    self.choices,      self.copies};
  auto* bytes = reinterpret_cast<std::byte*>(arena.data());
  TRIV_CHECK(!seconds || seconds->size() == self.program.size(), "%zu times for %zu instructions",
             seconds ? seconds->size() : 0, self.program.size());
  const program::Part wanted = part ? program::Part{part->first, part->second} : program::Part{0, self.program.size()};
  const nb::gil_scoped_release released;
  self.checker->check(step);
  self.program.run(step, bytes, wanted, seconds ? seconds->data() : nullptr);
}

void add_rope_table(Runner& self, std::size_t rope, std::size_t half, float factor, std::size_t out_at) {
  auto made = std::make_unique<program::RopeTable>();
  made->rope = rope;
  made->half = half;
  made->factor = factor;
  made->out_at = out_at;
  self.program.add(std::move(made));
}

void add_rope_kv(Runner& self, const attention::Store& store, std::size_t group, std::size_t layer,
                 std::size_t num_heads, const std::string& norm, float eps, const std::optional<Floats>& q_norm,
                 const std::optional<Floats>& k_norm, std::size_t qkv_at, std::size_t qkv_stride, At table_at,
                 std::size_t half, float query_factor, std::size_t q_at) {
  auto made = std::make_unique<program::RopeKv>();
  made->store = store;
  made->group = group;
  made->layer = layer;
  made->num_heads = num_heads;
  made->norm = norm_named(norm);
  made->eps = eps;
  made->q_weight = pointer(q_norm);
  made->k_weight = pointer(k_norm);
  made->qkv_at = qkv_at;
  made->qkv_stride = qkv_stride;
  made->table_at = place(table_at);
  made->half = half;
  made->query_factor = query_factor;
  made->queries_at = q_at;
  self.program.add(std::move(made));
}

// The work of layers that read the same pages through the same window; made by the first of them.
std::pair<std::shared_ptr<program::SharedWork>, bool> work_of(Runner& self, std::size_t group,
                                                              const attention::Geometry& geometry) {
  for (const auto& work : self.works) {
    const attention::Geometry& known = work->geometry;
    if (work->group == group && known.window == geometry.window && known.num_heads == geometry.num_heads) {
      return {work, false};
    }
  }
  self.works.push_back(std::make_shared<program::SharedWork>());
  self.works.back()->group = group;
  self.works.back()->geometry = geometry;
  return {self.works.back(), true};
}

void add_attend(Runner& self, const attention::Store& store, std::size_t group, std::size_t layer,
                std::size_t num_heads, std::size_t window, float soft_cap, std::size_t q_at, At out_at,
                const std::optional<operand::Layout>& layout, At operand_at) {
  TRIV_CHECK(num_heads % store.num_heads == 0, "%zu query heads over %zu KV heads", num_heads, store.num_heads);
  auto made = std::make_unique<program::Attend>();
  std::tie(made->shared, made->plans) = work_of(self, group, {num_heads, store.num_heads, store.width, window});
  made->store = store;
  made->layer = layer;
  made->soft_cap = soft_cap;
  made->queries_at = q_at;
  made->floats_at = place(out_at);
  if (layout) made->layout = *layout;
  made->operand_at = place(operand_at);
  self.program.add(std::move(made));
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
  nb::class_<Runner>(m, "Program", "A flat list of instructions over one arena.")
      .def(nb::init<>())
      .def("__len__", [](const Runner& self) { return self.program.size(); })
      .def("embed", &add_embed, "table"_a, "width"_a, "scale"_a, "out_at"_a)
      .def("rope_table", &add_rope_table, "rope"_a, "half"_a, "factor"_a, "out_at"_a)
      .def("norm", &add_norm, "width"_a, "eps"_a, "b_eps"_a, "a_at"_a, "b_at"_a.none(), "b_weight"_a.none(),
           "weight"_a.none(), "rows"_a, "gathers"_a, "sum_at"_a.none(), "floats_at"_a.none(), "layout"_a.none(),
           "operand_at"_a.none())
      .def("project", &add_project, "parts"_a, "sums"_a, "layout"_a, "operand_at"_a, "rows"_a, "epilogue"_a,
           "bias"_a.none(), "delta_at"_a.none(), "delta_stride"_a, "scale"_a, "soft_cap"_a, "activation"_a,
           "out_at"_a.none(), "out_stride"_a, "out_layout"_a.none(), "out_operand_at"_a.none(), "tactics"_a, "tactic"_a)
      .def("rope_kv", &add_rope_kv, "store"_a, "group"_a, "layer"_a, "num_heads"_a, "norm"_a, "eps"_a,
           "q_norm"_a.none(), "k_norm"_a.none(), "qkv_at"_a, "qkv_stride"_a, "table_at"_a.none(), "half"_a,
           "query_factor"_a, "q_at"_a)
      .def("attend", &add_attend, "store"_a, "group"_a, "layer"_a, "num_heads"_a, "window"_a, "soft_cap"_a, "q_at"_a,
           "out_at"_a.none(), "layout"_a.none(), "operand_at"_a.none())
      .def("plain", &add_plain, "op"_a, "rows"_a, "width"_a, "a_at"_a, "b_at"_a.none(), "number"_a, "out_at"_a)
      .def("plain_norm", &add_plain_norm, "rows"_a, "count"_a, "width"_a, "eps"_a, "weight"_a, "x_at"_a, "out_at"_a)
      .def("split", &add_split, "rows"_a, "count"_a, "sizes"_a, "x_at"_a, "outs_at"_a)
      .def("limit", &set_limits, "max_tokens"_a, "max_rows"_a, "vocab_size"_a, "page_len"_a, "groups"_a, "stores"_a,
           "Set what steps are checked by; groups are (pages, window or 0).")
      .def(
          "seal", [](Runner& self) { self.program.seal(); }, "Allocate scratch; after the last instruction.")
      .def("run", &run, "arena"_a, "token_ids"_a, "positions"_a, "starts"_a, "kv_lens"_a, "logit_rows"_a,
           "embeds"_a.none(), "copies"_a, "page_tables"_a, "ropes"_a, "seconds"_a.none() = nb::none(),
           "part"_a.none() = nb::none(),
           "Check a step and run it, or a part of the instructions; adds each one's seconds to `seconds`.");
}

}  // namespace trivium::bindings
