// Selection, checks, and rows over threads. Compiled without ISA flags.
#include "ops/sample/sample.h"

#include <atomic>
#include <new>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/sample/row.h"

namespace trivium::sample {

#define TRIV_KERNEL(isa, function) const PassTable& function();
#include "ops/sample/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr Kernel kKernels[] = {
#define TRIV_KERNEL(isa, function) {isa, #function, function},
#include "ops/sample/kernels.inc"
#undef TRIV_KERNEL
};

// Below so many logits looked at a second thread costs more than it brings. A greedy row looks at each once, others
// weigh them too, which takes several times as long.
constexpr std::size_t kMinParallelWork = std::size_t{1} << 17;
constexpr std::size_t kWeighingWork = 6;

std::size_t work_of(std::span<const Row> rows, std::size_t vocab_size) {
  std::size_t work = 0;
  for (const Row& row : rows) work += row.is_greedy() && row.num_logprobs < 0 ? 1 : kWeighingWork;
  return work * vocab_size;
}

void check_ids(std::span<const std::int32_t> ids, const char* what, std::size_t row, std::size_t vocab_size) {
  for (const std::int32_t id : ids) {
    TRIV_CHECK(id >= 0 && static_cast<std::size_t>(id) < vocab_size,
               "sample: %s of row %zu name token %d; the vocabulary has %zu", what, row, id, vocab_size);
  }
}

void check_lists(const RowLists& lists, const Row& request, std::size_t row, std::size_t vocab_size) {
  check_ids(lists.bias_ids, "biases", row, vocab_size);
  check_ids(lists.held_back, "held-back tokens", row, vocab_size);
  check_ids(lists.history, "known tokens", row, vocab_size);
  check_ids(lists.spelling_tokens, "bad words", row, vocab_size);
  TRIV_CHECK(lists.biases.size() == lists.bias_ids.size(), "sample: row %zu has %zu biases for %zu tokens", row,
             lists.biases.size(), lists.bias_ids.size());
  TRIV_CHECK(lists.history_start + lists.history.size() <= request.position,
             "sample: known tokens of row %zu reach past its position %u", row, request.position);
  std::size_t spelled = 0;
  for (const std::int32_t length : lists.spelling_lengths) {
    TRIV_CHECK(length >= 0, "sample: row %zu has a spelling of length %d", row, length);
    spelled += static_cast<std::size_t>(length);
  }
  TRIV_CHECK(spelled == lists.spelling_tokens.size(), "sample: spellings of row %zu have %zu tokens, not %zu", row,
             lists.spelling_tokens.size(), spelled);
}

void check_row(const Row& row, std::size_t index, std::size_t vocab_size, const Masks& masks, const Outputs& out) {
  TRIV_CHECK(row.target == -1 || (row.target >= 0 && static_cast<std::size_t>(row.target) < vocab_size),
             "sample: target of row %zu is token %d; the vocabulary has %zu", index, row.target, vocab_size);
  TRIV_CHECK(row.mask_row < 0 || static_cast<std::size_t>(row.mask_row) < masks.rows,
             "sample: row %zu has mask %d of %zu", index, row.mask_row, masks.rows);
  TRIV_CHECK(row.num_logprobs < 0 || out.logprobs != nullptr, "sample: no room for the logprobs of row %zu", index);
  TRIV_CHECK(row.num_logprobs < 0 || static_cast<std::size_t>(row.num_logprobs) <= out.top_stride,
             "sample: row %zu wants %d alternatives; there is room for %zu", index, row.num_logprobs, out.top_stride);
  TRIV_CHECK((row.wants & kWantsChosen) == 0 || out.chosen != nullptr, "sample: no room for what row %zu chose", index);
}

Scratch& scratch() {
  thread_local Scratch memory;
  return memory;
}

// One call's arguments.
struct Batch {
  const PassTable& passes;
  Span2d<const float> logits;
  std::span<const Row> rows;
  std::span<const RowLists> lists;
  const Masks& masks;
  const Outputs& out;

  Error run(std::size_t i) const {
    static const RowLists kNoLists;
    const Row& row = rows[i];
    const RowLists& own = lists.empty() ? kNoLists : lists[i];
    const std::uint32_t* mask =
        row.mask_row < 0 ? nullptr : masks.words + static_cast<std::size_t>(row.mask_row) * masks.stride;
    RowSampler sampler(passes, scratch(), logits.row(i), logits.cols, row, own, mask);
    Report report{};
    if (row.num_logprobs >= 0) {
      report = {out.logprobs + i, out.ranks + i, out.num_tops + i, out.top_ids + i * out.top_stride,
                out.top_logprobs + i * out.top_stride};
    }
    const Error error = sampler.run(report);
    const bool is_chosen = error == Error::kNone && (row.wants & kWantsChosen) != 0;
    if (out.chosen != nullptr) out.chosen[i] = is_chosen ? sampler.raw_logprob() : 0.0;
    out.token_ids[i] = error == Error::kNone ? sampler.token_id() : -1;
    out.errors[i] = static_cast<std::int32_t>(error);
    return error;
  }
};

}  // namespace

std::span<const Kernel> all() { return kKernels; }

const Kernel& best(Isa isa) {
  for (const Kernel& kernel : kKernels) {
    if (includes(isa, kernel.isa)) return kernel;
  }
  return kKernels[std::size(kKernels) - 1];
}

std::size_t sample(const Kernel& kernel, Span2d<const float> logits, std::span<const Row> rows,
                   std::span<const RowLists> lists, const Masks& masks, const Outputs& out) {
  TRIV_CHECK(rows.size() == logits.rows, "sample: %zu rows for logits of [%zu, %zu]", rows.size(), logits.rows,
             logits.cols);
  TRIV_CHECK(rows.empty() || logits.cols > 0, "sample: the vocabulary is empty");
  TRIV_CHECK(lists.empty() || lists.size() == rows.size(), "sample: lists of %zu rows for %zu", lists.size(),
             rows.size());
  TRIV_CHECK(masks.rows == 0 || masks.stride >= ceil_div(logits.cols, 32),
             "sample: masks have %zu words; %zu tokens take %zu", masks.stride, logits.cols, ceil_div(logits.cols, 32));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_row(rows[i], i, logits.cols, masks, out);
    if (!lists.empty()) check_lists(lists[i], rows[i], i, logits.cols);
  }
  const Batch batch{kernel.table(), logits, rows, lists, masks, out};
  std::atomic<std::size_t> failed{0};
  std::atomic<bool> is_out_of_memory{false};
  const auto run_rows = [&](std::size_t begin, std::size_t end) {
    try {
      for (std::size_t i = begin; i < end; ++i) {
        if (batch.run(i) != Error::kNone) failed.fetch_add(1, std::memory_order_relaxed);
      }
    } catch (const std::bad_alloc&) {
      is_out_of_memory.store(true, std::memory_order_relaxed);
    }
  };
  parallel_for(rows.size(), work_of(rows, logits.cols) < kMinParallelWork ? rows.size() : 1, run_rows);
  if (is_out_of_memory.load(std::memory_order_relaxed)) throw std::bad_alloc();
  return failed.load(std::memory_order_relaxed);
}

}  // namespace trivium::sample
