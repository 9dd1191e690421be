// The instructions of a program, one method each: names become kinds, offsets and pointers are kept.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings/runner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium::bindings {
namespace {

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

// The products that an instruction's delta is for, side by side.
std::vector<adapter::Site> sites_of(const Runner& self, const std::vector<std::size_t>& products) {
  TRIV_CHECK(self.adapters != nullptr, "a product takes a delta before any adapter_delta");
  const auto known = self.adapters->products();
  std::vector<adapter::Site> sites;
  for (const std::size_t product : products) {
    TRIV_CHECK(product < known.size(), "adapter_delta: product %zu; there are %zu", product, known.size());
    TRIV_CHECK(known[product].depth == known[products[0]].depth, "adapter_delta: products of %zu and %zu inputs",
               known[products[0]].depth, known[product].depth);
    sites.push_back({product, known[product].width});
  }
  return sites;
}

void add_adapter_delta(Runner& self, const std::shared_ptr<program::Adapters>& adapters,
                       const std::vector<std::size_t>& products, const std::string& rows, std::size_t x_at,
                       std::size_t out_at) {
  TRIV_CHECK(!products.empty() && products.size() <= adapters->max_sites(), "adapter_delta: %zu products; 1 to %zu",
             products.size(), adapters->max_sites());
  TRIV_CHECK(self.adapters == nullptr || self.adapters == adapters, "a program has one set of adapters");
  auto made = std::make_unique<program::AdapterDelta>();
  made->plans = self.adapters == nullptr;
  self.adapters = adapters;
  made->adapters = adapters;
  made->sites = sites_of(self, products);
  made->depth = adapters->products()[products[0]].depth;
  made->rows = rows_named(rows);
  made->x_at = x_at;
  made->out_at = out_at;
  self.program.add(std::move(made));
}

void add_project(Runner& self, const std::vector<linear::Weight>& parts, const std::vector<std::size_t>& sums,
                 const operand::Layout& layout, std::size_t operand_at, const std::string& rows,
                 const std::string& epilogue, const std::optional<Floats>& bias, At delta_at, std::size_t delta_stride,
                 float scale, float soft_cap, const std::string& activation, At out_at, std::size_t out_stride,
                 const std::optional<operand::Layout>& out_layout, At out_operand_at,
                 const std::vector<std::pair<std::size_t, std::string>>& tactics, const std::string& tactic,
                 const std::vector<std::size_t>& delta_of) {
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
  if (!delta_of.empty()) {
    made->adapters = self.adapters;
    made->delta_sites = sites_of(self, delta_of);
  }
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

rope_kv::NormKind norm_named(const std::string& name) {
  if (name == "none") return rope_kv::NormKind::kNone;
  if (name == "head") return rope_kv::NormKind::kHead;
  TRIV_CHECK(name == "full", "norm of heads '%s' is not none, head or full", name.c_str());
  return rope_kv::NormKind::kFull;
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

}  // namespace

void def_instructions(nb::class_<Runner>& cls) {
  cls.def("embed", &add_embed, "table"_a, "width"_a, "scale"_a, "out_at"_a)
      .def("rope_table", &add_rope_table, "rope"_a, "half"_a, "factor"_a, "out_at"_a)
      .def("norm", &add_norm, "width"_a, "eps"_a, "b_eps"_a, "a_at"_a, "b_at"_a.none(), "b_weight"_a.none(),
           "weight"_a.none(), "rows"_a, "gathers"_a, "sum_at"_a.none(), "floats_at"_a.none(), "layout"_a.none(),
           "operand_at"_a.none())
      .def("project", &add_project, "parts"_a, "sums"_a, "layout"_a, "operand_at"_a, "rows"_a, "epilogue"_a,
           "bias"_a.none(), "delta_at"_a.none(), "delta_stride"_a, "scale"_a, "soft_cap"_a, "activation"_a,
           "out_at"_a.none(), "out_stride"_a, "out_layout"_a.none(), "out_operand_at"_a.none(), "tactics"_a, "tactic"_a,
           "delta_of"_a)
      .def("adapter_delta", &add_adapter_delta, "adapters"_a, "products"_a, "rows"_a, "x_at"_a, "out_at"_a)
      .def("rope_kv", &add_rope_kv, "store"_a, "group"_a, "layer"_a, "num_heads"_a, "norm"_a, "eps"_a,
           "q_norm"_a.none(), "k_norm"_a.none(), "qkv_at"_a, "qkv_stride"_a, "table_at"_a.none(), "half"_a,
           "query_factor"_a, "q_at"_a)
      .def("attend", &add_attend, "store"_a, "group"_a, "layer"_a, "num_heads"_a, "window"_a, "soft_cap"_a, "q_at"_a,
           "out_at"_a.none(), "layout"_a.none(), "operand_at"_a.none())
      .def("plain", &add_plain, "op"_a, "rows"_a, "width"_a, "a_at"_a, "b_at"_a.none(), "number"_a, "out_at"_a)
      .def("plain_norm", &add_plain_norm, "rows"_a, "count"_a, "width"_a, "eps"_a, "weight"_a, "x_at"_a, "out_at"_a)
      .def("split", &add_split, "rows"_a, "count"_a, "sizes"_a, "x_at"_a, "outs_at"_a);
}

}  // namespace trivium::bindings
