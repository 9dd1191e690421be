#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bindings/bindings.h"
#include "ops/sample/sample.h"

namespace nb = nanobind;

namespace trivium::bindings {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Records = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MaskWords = nb::ndarray<const std::uint32_t, nb::ndim<2>, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// (logprobs [R], ranks [R], num_tops [R], top_ids [R, K], top_logprobs [R, K])
using Reports =
    std::tuple<Vector<double>, Vector<std::int64_t>, Vector<std::int32_t>, Matrix<std::int32_t>, Matrix<double>>;

// Lists of all rows in flat arrays, which are filled under the GIL and read without it. They keep their memory.
class FlatLists {
 public:
  // `items`: (row, tokens, history_start, position, bad_words, held_back, logit_bias) per row that has lists.
  std::span<const sample::RowLists> read(const nb::list& items, std::size_t num_rows) {
    ids_.clear();
    lengths_.clear();
    biases_.clear();
    places_.clear();
    for (const nb::handle item : items) read_row(nb::borrow<nb::tuple>(item), num_rows);
    rows_.assign(items.size() == 0 ? 0 : num_rows, {});
    for (const Places& at : places_) {
      sample::RowLists& row = rows_[at.row];
      row.bias_ids = span(ids_, at.bias_ids);
      row.biases = span(biases_, at.biases);
      row.held_back = span(ids_, at.held_back);
      row.history = span(ids_, at.history);
      row.history_start = at.history_start;
      row.spelling_tokens = span(ids_, at.spelling_tokens);
      row.spelling_lengths = span(lengths_, at.spelling_lengths);
    }
    return rows_;
  }

 private:
  // Half-open.
  struct Slice {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  struct Places {
    std::size_t row = 0;
    std::size_t history_start = 0;
    Slice bias_ids, biases, held_back, history, spelling_tokens, spelling_lengths;
  };

  template <class T>
  static std::span<const T> span(const std::vector<T>& all, Slice slice) {
    return {all.data() + slice.begin, slice.end - slice.begin};
  }

  void read_row(const nb::tuple& item, std::size_t num_rows) {
    TRIV_CHECK(item.size() == 7, "sample: lists of a row are %zu things, not 7", item.size());
    Places at;
    at.row = nb::cast<std::size_t>(item[0]);
    TRIV_CHECK(at.row < num_rows, "sample: lists of row %zu of %zu", at.row, num_rows);
    at.history_start = nb::cast<std::size_t>(item[2]);
    at.history = read_ids(item[1], at.history_start, nb::cast<std::size_t>(item[3]));
    at.spelling_tokens.begin = ids_.size();
    at.spelling_lengths.begin = lengths_.size();
    for (const nb::handle spelling : item[4]) {
      const Slice slice = read_ids(spelling, 0, SIZE_MAX);
      lengths_.push_back(static_cast<std::int32_t>(slice.end - slice.begin));
    }
    at.spelling_tokens.end = ids_.size();
    at.spelling_lengths.end = lengths_.size();
    at.held_back = read_ids(item[5], 0, SIZE_MAX);
    at.bias_ids.begin = ids_.size();
    at.biases.begin = biases_.size();
    for (const auto& [token, bias] : nb::cast<nb::dict>(item[6])) {
      ids_.push_back(nb::cast<std::int32_t>(token));
      biases_.push_back(nb::cast<double>(bias));
    }
    at.bias_ids.end = ids_.size();
    at.biases.end = biases_.size();
    places_.push_back(at);
  }

  // Ids [start, end) of a sequence, as far as it has them. Lists and tuples are read in place, a few ns per id.
  Slice read_ids(const nb::handle& sequence, std::size_t start, std::size_t end) {
    const nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), "sample: token ids must be a sequence"));
    if (!fast.is_valid()) throw nb::python_error();
    PyObject** items = PySequence_Fast_ITEMS(fast.ptr());
    const auto size = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
    const Slice slice{ids_.size(), ids_.size() + (std::min(end, size) > start ? std::min(end, size) - start : 0)};
    ids_.reserve(slice.end);
    for (std::size_t i = start; i < std::min(end, size); ++i) {
      const long id = PyLong_AsLong(items[i]);
      if (id == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
      TRIV_CHECK(id >= 0 && id <= INT32_MAX, "sample: %ld is not a token id", id);
      ids_.push_back(static_cast<std::int32_t>(id));
    }
    return slice;
  }

  std::vector<std::int32_t> ids_;
  std::vector<std::int32_t> lengths_;
  std::vector<double> biases_;
  std::vector<Places> places_;
  std::vector<sample::RowLists> rows_;
};

void check_size(const char* name, std::size_t size, std::size_t num_rows) {
  TRIV_CHECK(size == num_rows, "sample: %s has %zu rows; logits have %zu", name, size, num_rows);
}

sample::Outputs outputs(std::size_t num_rows, const Vector<std::int32_t>& token_ids, const Vector<std::int32_t>& errors,
                        const std::optional<Vector<double>>& chosen, const std::optional<Reports>& reports) {
  sample::Outputs out{};
  check_size("token_ids", token_ids.size(), num_rows);
  check_size("errors", errors.size(), num_rows);
  out.token_ids = token_ids.data();
  out.errors = errors.data();
  if (chosen) {
    check_size("chosen", chosen->size(), num_rows);
    out.chosen = chosen->data();
  }
  if (reports) {
    const auto& [logprobs, ranks, num_tops, top_ids, top_logprobs] = *reports;
    check_size("logprobs", logprobs.size(), num_rows);
    check_size("ranks", ranks.size(), num_rows);
    check_size("num_tops", num_tops.size(), num_rows);
    check_size("top_ids", top_ids.shape(0), num_rows);
    check_size("top_logprobs", top_logprobs.shape(0), num_rows);
    TRIV_CHECK(top_ids.shape(1) == top_logprobs.shape(1), "sample: room for %zu ids but %zu logprobs", top_ids.shape(1),
               top_logprobs.shape(1));
    out.logprobs = logprobs.data();
    out.ranks = ranks.data();
    out.num_tops = num_tops.data();
    out.top_ids = top_ids.data();
    out.top_logprobs = top_logprobs.data();
    out.top_stride = top_ids.shape(1);
  }
  return out;
}

const sample::Kernel& kernel_for(const std::optional<std::string>& isa) {
  if (!isa) return sample::best(active_isa());
  const Isa level = parse_isa(isa->c_str());
  TRIV_CHECK(includes(detected_isa(), level),
             "instruction set '%s' is not among those of '%s', which this processor has", isa->c_str(),
             isa_name(detected_isa()));
  return sample::best(level);
}

std::size_t bind_sample_rows(const Logits& logits, const Records& records, const nb::list& lists,
                             const std::optional<MaskWords>& masks, const Vector<std::int32_t>& token_ids,
                             const Vector<std::int32_t>& errors, const std::optional<Vector<double>>& chosen,
                             const std::optional<Reports>& reports, const std::optional<std::string>& isa) {
  const std::size_t num_rows = logits.shape(0);
  TRIV_CHECK(logits.size() == 0 || (logits.stride(0) >= 0 && (logits.stride(1) == 1 || logits.shape(1) == 1)),
             "sample: logits must be dense in their last axis and not reversed");
  TRIV_CHECK(records.size() == num_rows * sizeof(sample::Row), "sample: %zu bytes of records; %zu rows take %zu",
             records.size(), num_rows, num_rows * sizeof(sample::Row));
  TRIV_CHECK(!masks || masks->size() == 0 || (masks->stride(0) >= 0 && (masks->stride(1) == 1 || masks->shape(1) == 1)),
             "sample: masks must be dense in their last axis and not reversed");
  const sample::Kernel& kernel = kernel_for(isa);
  const sample::Outputs out = outputs(num_rows, token_ids, errors, chosen, reports);
  // One engine samples at a time in a thread, so one set of lists per thread is enough.
  thread_local FlatLists flat;
  thread_local std::vector<sample::Row> rows;
  rows.resize(num_rows);
  if (num_rows > 0) std::memcpy(rows.data(), records.data(), records.size());
  const std::span<const sample::RowLists> row_lists = flat.read(lists, num_rows);
  sample::Masks words{};
  if (masks) words = {masks->data(), masks->shape(0), static_cast<std::size_t>(masks->stride(0))};
  const Span2d<const float> values{logits.data(), num_rows, logits.shape(1),
                                   static_cast<std::size_t>(logits.stride(0))};
  const nb::gil_scoped_release unlocked;
  return sample::sample(kernel, values, rows, row_lists, words, out);
}

std::vector<std::pair<std::string, std::string>> list_kernels() {
  std::vector<std::pair<std::string, std::string>> kernels;
  for (const sample::Kernel& kernel : sample::all()) kernels.emplace_back(isa_name(kernel.isa), kernel.name);
  return kernels;
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.attr("SAMPLE_ROW_BYTES") = sizeof(sample::Row);
  m.def("sample_kernels", &list_kernels, "All compiled sampler levels as (instruction set, name), strongest first.");
  m.def("sample", &bind_sample_rows, nb::arg("logits").noconvert(), nb::arg("records").noconvert(), nb::arg("lists"),
        nb::arg("masks").none().noconvert(), nb::arg("token_ids").noconvert(), nb::arg("errors").noconvert(),
        nb::arg("chosen").none().noconvert(), nb::arg("reports").none().noconvert(), nb::arg("isa") = nb::none(),
        "Draw or score one token per row of logits [R, V]; returns how many rows have an error.");
}

}  // namespace trivium::bindings
