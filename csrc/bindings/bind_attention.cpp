// Pages, rotations and attention of one layer, for tests and for whoever moves pages. The executor runs the same
// functions through bind_program.cpp.
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
#include "base/parallel.h"
#include "base/team.h"
#include "bindings/bindings.h"
#include "ops/attention/attention.h"
#include "ops/attention/pages.h"
#include "ops/attention/plan.h"
#include "ops/rope_kv/rope_kv.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace trivium::bindings {
namespace {

using Int32s = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32Table = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatCube = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatTableOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatCubeOut = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using BytesIn = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A step's requests, tokens and pages.
struct Paging {
  Int32s starts;
  Int32s positions;
  Int32s kv_lens;
  Int32Table page_table;

  attention::Rows rows() const {
    return {starts.data(), positions.data(), kv_lens.data(), page_table.data(), kv_lens.size(), page_table.shape(1)};
  }
};

void check_request(const Paging& paging, std::size_t b, std::size_t num_pages, std::size_t window) {
  const std::int32_t begin = paging.starts.data()[b];
  const std::int32_t end = paging.starts.data()[b + 1];
  const std::int32_t kv_len = paging.kv_lens.data()[b];
  TRIV_CHECK(begin < end && static_cast<std::size_t>(end) <= paging.positions.size() && end - begin <= kv_len,
             "request %zu has tokens %d to %d of %zu and %d keys", b, begin, end, paging.positions.size(), kv_len);
  for (std::int32_t t = begin; t < end; ++t) {
    TRIV_CHECK(paging.positions.data()[t] == kv_len - end + t, "token %d is at position %d, not %d", t,
               paging.positions.data()[t], kv_len - end + t);
  }
  const auto first = static_cast<std::size_t>(kv_len - (end - begin));
  const std::size_t seen = window == 0 || first < window ? 0 : first + 1 - window;
  const std::size_t last_page = static_cast<std::size_t>(kv_len - 1) / attention::kPageLen;
  const std::size_t each = paging.page_table.shape(1);
  TRIV_CHECK(last_page < each, "request %zu needs %zu pages; the table has %zu", b, last_page + 1, each);
  for (std::size_t page = seen / attention::kPageLen; page <= last_page; ++page) {
    const std::int32_t id = paging.page_table.data()[b * each + page];
    TRIV_CHECK(static_cast<std::size_t>(id) < num_pages, "page %zu of request %zu is %d; the store has %zu", page, b,
               id, num_pages);
  }
}

void check_paging(const Paging& paging, std::size_t num_pages, std::size_t window) {
  const std::size_t count = paging.kv_lens.size();
  TRIV_CHECK(paging.starts.size() == count + 1 && paging.page_table.shape(0) == count,
             "%zu starts and %zu rows of pages for %zu requests", paging.starts.size(), paging.page_table.shape(0),
             count);
  TRIV_CHECK(
      paging.starts.data()[0] == 0 && static_cast<std::size_t>(paging.starts.data()[count]) == paging.positions.size(),
      "starts cover %d to %d of %zu tokens", paging.starts.data()[0], paging.starts.data()[count],
      paging.positions.size());
  for (std::size_t b = 0; b < count; ++b) check_request(paging, b, num_pages, window);
}

// The kernel for `isa`, or for the active level; a level this processor lacks is refused rather than run.
template <class Best>
auto& kernel_for(const std::optional<std::string>& isa, Best&& best) {
  if (!isa) return best(active_isa());
  const Isa level = parse_isa(isa->c_str());
  TRIV_CHECK(includes(detected_isa(), level), "this processor ('%s') does not run '%s'", isa_name(detected_isa()),
             isa->c_str());
  return best(level);
}

void check_size(const char* name, std::size_t size, std::size_t expected) {
  TRIV_CHECK(size == expected, "%s has %zu elements, not %zu", name, size, expected);
}

std::size_t query_bytes(const attention::Store& store) { return store.type == attention::KVType::kF32 ? 4 : 2; }

void check_layer(const attention::Store& store, std::size_t layer) {
  TRIV_CHECK(layer < store.num_layers, "layer %zu of a store of %zu", layer, store.num_layers);
}

void check_place(const attention::Store& store, std::size_t layer, std::size_t page, std::size_t head,
                 std::size_t slot) {
  check_layer(store, layer);
  TRIV_CHECK(page < store.num_pages && head < store.num_heads && slot < attention::kPageLen,
             "no page %zu, head %zu, slot %zu in a store of %zu pages and %zu heads", page, head, slot, store.num_pages,
             store.num_heads);
}

void bind_pages(nb::module_& m) {
  m.def("kv_page_bytes", &attention::page_bytes, "store"_a, "Bytes of one page, all layers.");
  m.def(
      "kv_export_page",
      [](const attention::Store& store, std::size_t page, const BytesOut& out) {
        attention::export_page(store, page, {reinterpret_cast<std::byte*>(out.data()), out.size()});
      },
      "store"_a, "page"_a, nb::arg("out").noconvert(), "Copy a page, all layers, to out [kv_page_bytes].");
  m.def(
      "kv_import_page",
      [](const attention::Store& store, std::size_t page, const BytesIn& content) {
        attention::import_page(store, page, {reinterpret_cast<const std::byte*>(content.data()), content.size()});
      },
      "store"_a, "page"_a, "content"_a, "Write what kv_export_page gave; refuses numbers that are not finite.");
  m.def(
      "kv_copy_pages",
      [](const attention::Store& store, const std::vector<std::pair<std::int32_t, std::int32_t>>& copies) {
        std::vector<attention::PageCopy> list;
        for (const auto& [source, target] : copies) {
          for (const std::int32_t page : {source, target}) {
            TRIV_CHECK(static_cast<std::size_t>(page) < store.num_pages, "page %d of a store of %zu", page,
                       store.num_pages);
          }
          list.push_back({source, target});
        }
        const nb::gil_scoped_release unlocked;
        run_team([&](Team& team) { attention::copy_pages(store, list, team); });
      },
      "store"_a, "copies"_a, "Copy pages (source, target), all layers, in the order given.");
  m.def(
      "kv_write_token",
      [](const attention::Store& store, std::size_t layer, std::size_t page, std::size_t head, std::size_t slot,
         const Floats& key, const Floats& value) {
        check_place(store, layer, page, head, slot);
        check_size("key", key.size(), store.width);
        check_size("value", value.size(), store.width);
        attention::write_token(store, layer, page, head, slot, key.data(), value.data());
      },
      "store"_a, "layer"_a, "page"_a, "head"_a, "slot"_a, "key"_a, "value"_a, "Store one token's key and value [D].");
  m.def(
      "kv_read_token",
      [](const attention::Store& store, std::size_t layer, std::size_t page, std::size_t head, std::size_t slot,
         const FloatsOut& key, const FloatsOut& value) {
        check_place(store, layer, page, head, slot);
        check_size("key", key.size(), store.width);
        check_size("value", value.size(), store.width);
        attention::read_token(store, layer, page, head, slot, key.data(), value.data());
      },
      "store"_a, "layer"_a, "page"_a, "head"_a, "slot"_a, nb::arg("key").noconvert(), nb::arg("value").noconvert(),
      "Read back one token's rounded key and value [D].");
}

void rope_table(const Paging& paging, const FloatTable& frequencies, const Int32s& variants, float factor,
                const FloatCubeOut& out) {
  const std::size_t half = frequencies.shape(1);
  check_paging(paging, SIZE_MAX, 0);
  check_size("out", out.size(), paging.positions.size() * 2 * half);
  check_size("variants", variants.size(), paging.kv_lens.size());
  for (std::size_t b = 0; b < variants.size(); ++b) {
    TRIV_CHECK(static_cast<std::size_t>(variants.data()[b]) < frequencies.shape(0), "variant %d of %zu",
               variants.data()[b], frequencies.shape(0));
  }
  const rope_kv::TableArgs args{frequencies.data(), variants.data(), half, factor, out.data()};
  const nb::gil_scoped_release unlocked;
  run_team([&](Team& team) { rope_kv::fill_table(paging.rows(), args, team); });
}

void rope_and_store(const Paging& paging, const attention::Store& store, std::size_t layer, const FloatTable& qkv,
                    const std::optional<std::pair<Floats, Floats>>& norms, float eps,
                    const std::optional<FloatCube>& table, float query_factor, const BytesOut& queries,
                    const std::optional<std::string>& isa) {
  check_paging(paging, store.num_pages, 0);
  check_layer(store, layer);
  const std::size_t width = store.width;
  const std::size_t num_tokens = paging.positions.size();
  const std::size_t kv_size = store.num_heads * width;
  const std::size_t num_heads = qkv.shape(1) / width - 2 * store.num_heads;
  TRIV_CHECK(qkv.shape(0) == num_tokens && qkv.shape(1) > 2 * kv_size && qkv.shape(1) % width == 0,
             "qkv is [%zu, %zu]; there are %zu tokens, and 2 * %zu heads of %zu beside the queries", qkv.shape(0),
             qkv.shape(1), num_tokens, store.num_heads, width);
  check_size("queries", queries.size(), num_tokens * num_heads * width * query_bytes(store));
  rope_kv::Args args{};
  args.qkv = qkv.data();
  args.qkv_stride = qkv.shape(1);
  args.num_heads = num_heads;
  args.eps = eps;
  if (norms) {
    args.norm = norms->first.size() == width && norms->second.size() == width ? rope_kv::NormKind::kHead
                                                                              : rope_kv::NormKind::kFull;
    if (args.norm == rope_kv::NormKind::kFull) {
      check_size("the norm of queries", norms->first.size(), num_heads * width);
      check_size("the norm of keys", norms->second.size(), kv_size);
    }
    args.q_weight = norms->first.data();
    args.k_weight = norms->second.data();
  }
  if (table) {
    TRIV_CHECK(table->shape(0) == num_tokens && table->shape(1) == 2 && 2 * table->shape(2) <= width,
               "table is [%zu, %zu, %zu]; there are %zu tokens of width %zu", table->shape(0), table->shape(1),
               table->shape(2), num_tokens, width);
    args.table = table->data();
    args.half = table->shape(2);
  }
  args.query_factor = query_factor;
  args.queries = queries.data();
  args.store = &store;
  args.layer = layer;
  const rope_kv::Kernel& kernel = kernel_for(isa, rope_kv::best);
  const nb::gil_scoped_release unlocked;
  run_team([&](Team& team) { rope_kv::run(kernel, paging.rows(), args, team); });
}

void attend(const Paging& paging, const attention::Store& store, std::size_t layer, const BytesIn& queries,
            std::size_t window, float soft_cap, const FloatTableOut& out, const std::optional<std::string>& isa) {
  check_paging(paging, store.num_pages, window);
  check_layer(store, layer);
  const std::size_t num_heads = out.shape(1) / store.width;
  TRIV_CHECK(out.shape(0) == paging.positions.size() && num_heads > 0 && out.shape(1) % store.width == 0 &&
                 num_heads % store.num_heads == 0,
             "out is [%zu, %zu]; there are %zu tokens and %zu KV heads of %zu", out.shape(0), out.shape(1),
             paging.positions.size(), store.num_heads, store.width);
  check_size("queries", queries.size(), out.size() * query_bytes(store));
  TRIV_CHECK(soft_cap >= 0, "a soft cap of %g", static_cast<double>(soft_cap));
  const attention::Kernel& kernel = kernel_for(isa, attention::best);
  const nb::gil_scoped_release unlocked;
  attention::Work work;
  work.build(paging.rows(), {num_heads, store.num_heads, store.width, window}, num_threads());
  const attention::Args args{&store, layer, queries.data(), soft_cap, {out.data(), out.shape(1), nullptr, nullptr}};
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = attention::scratch_bytes(store.width);
  std::vector<std::byte> scratch(bytes * static_cast<std::size_t>(num_threads()) + kLine);
  std::byte* const begin = scratch.data() + (kLine - reinterpret_cast<std::uintptr_t>(scratch.data()) % kLine) % kLine;
  run_team([&](Team& team) {
    attention::run(kernel, work, args, team, begin + bytes * static_cast<std::size_t>(team.index()));
  });
}

std::vector<std::pair<std::string, std::string>> list_kernels() {
  std::vector<std::pair<std::string, std::string>> kernels;
  for (const attention::Kernel& kernel : attention::all()) kernels.emplace_back(isa_name(kernel.isa), kernel.name);
  return kernels;
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention_kernels", &list_kernels,
        "All compiled attention kernels as (instruction set, name), strongest first.");
  bind_pages(m);
  nb::class_<Paging>(m, "Paging", "Requests, tokens and pages of a step; keep its arrays alive.")
      .def(
          "__init__",
          [](Paging* self, const Int32s& starts, const Int32s& positions, const Int32s& kv_lens,
             const Int32Table& page_table) { new (self) Paging{starts, positions, kv_lens, page_table}; },
          "starts"_a, "positions"_a, "kv_lens"_a, "page_table"_a);
  m.def("rope_table", &rope_table, "paging"_a, "frequencies"_a, "variants"_a, "factor"_a, nb::arg("out").noconvert(),
        "Cosines and sines [T, 2, half] of a step's tokens.");
  m.def("rope_and_store", &rope_and_store, "paging"_a, "store"_a, "layer"_a, "qkv"_a, "norms"_a.none(), "eps"_a,
        "table"_a.none(), "query_factor"_a, nb::arg("queries").noconvert(), "isa"_a = nb::none(),
        "Norm, rotate and round qkv [T, (H + 2 G) * D]; queries [T, H, D] to bytes, keys and values to pages.");
  m.def("attend", &attend, "paging"_a, "store"_a, "layer"_a, "queries"_a, "window"_a, "soft_cap"_a,
        nb::arg("out").noconvert(), "isa"_a = nb::none(), "Attended rows [T, H * D] of one layer.");
}

}  // namespace trivium::bindings
