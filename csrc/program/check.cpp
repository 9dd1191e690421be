#include "program/check.h"

#include <algorithm>

#include "base/check.h"

namespace trivium::program {

void Checker::check(const Step& step) {
  TRIV_CHECK(step.num_tokens <= limits_.max_tokens, "step has %zu tokens; the plan was made for at most %zu",
             step.num_tokens, limits_.max_tokens);
  TRIV_CHECK(step.num_rows <= limits_.max_rows, "step wants %zu logits rows; the plan was made for at most %zu",
             step.num_rows, limits_.max_rows);
  TRIV_CHECK(step.page_tables.size() == limits_.groups.size(), "step has %zu page tables, not %zu",
             step.page_tables.size(), limits_.groups.size());
  check_requests(step);
  check_tokens(step);
  check_rows(step);
  check_adapters(step);
  TRIV_CHECK(step.copies.size() == limits_.groups.size(), "step has copies of %zu KV groups, not %zu",
             step.copies.size(), limits_.groups.size());
  for (std::size_t group = 0; group < limits_.groups.size(); ++group) {
    check_copies(step, group);
    check_group(step, group);
  }
}

void Checker::check_copies(const Step& step, std::size_t group) const {
  const std::size_t limit = limits_.groups[group].num_pages;
  for (const auto& [source, target] : step.copies[group]) {
    const bool is_page = static_cast<std::size_t>(source) < limit && static_cast<std::size_t>(target) < limit;
    TRIV_CHECK(is_page && source != target, "step copies page %d to %d of group %zu, which has %zu pages", source,
               target, group, limit);
  }
}

void Checker::check_requests(const Step& step) const {
  TRIV_CHECK(step.num_requests > 0 && step.starts[0] == 0, "step has no request, or does not begin at token 0");
  for (std::size_t b = 0; b < step.num_requests; ++b) {
    TRIV_CHECK(step.starts[b] < step.starts[b + 1], "step.starts[%zu] is %d after %d: a request without tokens", b + 1,
               step.starts[b + 1], step.starts[b]);
    TRIV_CHECK(step.kv_lens[b] >= step.starts[b + 1] - step.starts[b], "step.kv_lens[%zu] is %d; its tokens are %d", b,
               step.kv_lens[b], step.starts[b + 1] - step.starts[b]);
  }
  const auto end = static_cast<std::size_t>(step.starts[step.num_requests]);
  TRIV_CHECK(end == step.num_tokens, "step.starts covers %zu of %zu tokens", end, step.num_tokens);
}

void Checker::check_tokens(const Step& step) const {
  for (std::size_t b = 0; b < step.num_requests; ++b) {
    // request      | starts[b] ........ starts[b + 1] |
    // positions    | kv_len - count ..... kv_len - 1  |      position of token t = kv_len - starts[b + 1] + t
    const std::int32_t first = step.kv_lens[b] - step.starts[b + 1];
    for (std::int32_t t = step.starts[b]; t < step.starts[b + 1]; ++t) {
      TRIV_CHECK(step.positions[t] == first + t, "step.positions[%d] is %d; kv_lens says %d", t, step.positions[t],
                 first + t);
      const auto token = static_cast<std::size_t>(step.token_ids[t]);
      TRIV_CHECK(token < limits_.vocab_size, "step.token_ids[%d] is %d; the vocabulary has %zu", t, step.token_ids[t],
                 limits_.vocab_size);
    }
  }
}

void Checker::check_rows(const Step& step) const {
  for (std::size_t r = 0; r < step.num_rows; ++r) {
    const std::int32_t row = step.logit_rows[r];
    const bool ascends = r == 0 ? row >= 0 : row > step.logit_rows[r - 1];
    TRIV_CHECK(ascends && static_cast<std::size_t>(row) < step.num_tokens,
               "step.logit_rows[%zu] is %d: rows must ascend within %zu tokens", r, row, step.num_tokens);
  }
}

void Checker::check_adapters(const Step& step) const {
  if (step.adapters == nullptr) return;
  for (std::size_t b = 0; b < step.num_requests; ++b) {
    const std::int32_t slot = step.adapters[b];
    TRIV_CHECK(slot == -1 || (adapters_ != nullptr && adapters_->holds(slot)),
               "step.adapter_slot[%zu] is %d: no adapter is loaded there", b, slot);
  }
}

void Checker::check_group(const Step& step, std::size_t group) {
  const PageTable& table = step.page_tables[group];
  const GroupLimits& limits = limits_.groups[group];
  const auto page_len = static_cast<std::int32_t>(limits_.page_len);
  written_.clear();
  for (std::size_t b = 0; b < step.num_requests; ++b) {
    // page         0 ....... first seen ....... first written ....... end ....... table's width
    // entry        |  any, or -1   |        a page that the group has       |  any, or -1  |
    const std::int32_t begin = step.positions[step.starts[b]];
    const std::int32_t window = static_cast<std::int32_t>(limits.window);
    const std::int32_t seen = window == 0 ? 0 : std::max(begin - window + 1, 0) / page_len;
    const std::int32_t end = (step.kv_lens[b] - 1) / page_len + 1;
    TRIV_CHECK(static_cast<std::size_t>(end) <= table.pages_per_request,
               "step.page_tables[%zu] has %zu pages a request; request %zu needs %d", group, table.pages_per_request, b,
               end);
    const std::int32_t* pages = table.pages + b * table.pages_per_request;
    for (std::int32_t column = seen; column < end; ++column) {
      TRIV_CHECK(static_cast<std::size_t>(pages[column]) < limits.num_pages,
                 "step.page_tables[%zu][%zu, %d] is %d; the group has %zu pages", group, b, column, pages[column],
                 limits.num_pages);
      if (column >= begin / page_len) written_.push_back(pages[column]);
    }
  }
  std::sort(written_.begin(), written_.end());
  const auto twice = std::adjacent_find(written_.begin(), written_.end());
  TRIV_CHECK(twice == written_.end(), "step.page_tables[%zu]: two requests of the step write page %d", group, *twice);
}

}  // namespace trivium::program
