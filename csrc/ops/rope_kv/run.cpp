// Selection, and which rows and heads are a member's. Compiled without ISA flags.
#include <algorithm>

#include "base/prefetch.h"
#include "ops/rope_kv/rope_kv.h"

namespace trivium::rope_kv {

#define TRIV_KERNEL(isa, function) void function(const RowArgs& row);
#include "ops/rope_kv/kernels.inc"
#undef TRIV_KERNEL

namespace {

constexpr Kernel kKernels[] = {
#define TRIV_KERNEL(isa, function) {isa, #function, function},
#include "ops/rope_kv/kernels.inc"
#undef TRIV_KERNEL
};

// Fewer tokens per member than this are split by heads instead, so that no member waits for another's whole row.
constexpr std::size_t kMinTokensEach = 4;

// So many tokens ahead their rows and the lines that they are stored in are fetched.
constexpr std::size_t kFetchAhead = 4;

// Tokens of a step with their requests, in order.
class Walk {
 public:
  Walk(const attention::Rows& rows, std::size_t token) : rows_(rows) {
    const std::int32_t* end = rows.starts + rows.num_requests + 1;
    request_ = static_cast<std::size_t>(std::upper_bound(rows.starts, end, static_cast<std::int32_t>(token)) -
                                        rows.starts - 1);
  }

  // The request of `token`, which does not decrease from call to call.
  std::size_t request(std::size_t token) {
    while (static_cast<std::size_t>(rows_.starts[request_ + 1]) <= token) ++request_;
    return request_;
  }

 private:
  const attention::Rows& rows_;
  std::size_t request_;
};

// A token in an odd slot goes to the member that has its neighbour in the even slot: their values share words.
//
//   slots     … 14 15 | 0 1 2 3 …        a cut before slot 3 moves to the right of it
std::size_t whole_pairs(const attention::Rows& rows, std::size_t num_tokens, std::size_t token) {
  if (token == 0 || token >= num_tokens || rows.positions[token] % 2 == 0) return token;
  Walk walk(rows, token);
  return static_cast<std::size_t>(rows.starts[walk.request(token)]) < token ? token + 1 : token;
}

struct Part {
  std::size_t begin, end;        // tokens
  std::size_t q_begin, q_end;    // heads of each
  std::size_t kv_begin, kv_end;  // likewise
};

Part part_of(const attention::Rows& rows, const Args& args, const Team& team) {
  const auto num_tokens = static_cast<std::size_t>(rows.starts[rows.num_requests]);
  const std::size_t num_kv_heads = args.store->num_heads;
  if (num_tokens >= kMinTokensEach * static_cast<std::size_t>(team.size())) {
    const Team::Share share = team.share(num_tokens);
    return {whole_pairs(rows, num_tokens, share.begin),
            whole_pairs(rows, num_tokens, share.end),
            0,
            args.num_heads,
            0,
            num_kv_heads};
  }
  // Storing a key and a value takes about as long as making two queries.
  const Team::Share share = team.share(args.num_heads + 2 * num_kv_heads);
  const auto q_cut = [&](std::size_t unit) { return std::min(unit, args.num_heads); };
  const auto kv_cut = [&](std::size_t unit) { return (std::max(unit, args.num_heads) - args.num_heads) / 2; };
  return {0, num_tokens, q_cut(share.begin), q_cut(share.end), kv_cut(share.begin), kv_cut(share.end)};
}

struct Slot {
  std::byte* page;  // of the layer, head 0
  std::size_t index;
};

Slot slot_of(const attention::Rows& rows, const Args& args, std::size_t request, std::size_t token) {
  const auto position = static_cast<std::size_t>(rows.positions[token]);
  const std::int32_t* pages = rows.page_table + request * rows.pages_per_request;
  const auto page = static_cast<std::size_t>(pages[position / attention::kPageLen]);
  return {attention::head_at(*args.store, args.layer, page, 0), position % attention::kPageLen};
}

// Asks for what a token's keys and values are stored in. A key lies across all lines of the keys, so a token whose page
// nobody has touched yet waits for memory at each; one whose neighbour before it is in the page finds them here.
[[gnu::always_inline]] inline void fetch(const attention::HeadLayout& layout, const Slot& slot, std::size_t kv_begin,
                                         std::size_t kv_end) {
  const std::size_t pair_bytes = (layout.scales_at - layout.values_at) / (attention::kPageLen / 2);
  for (std::size_t g = kv_begin; g < kv_end; ++g) {
    const std::byte* head = slot.page + g * layout.num_bytes;
    prefetch_to_write(head, layout.values_at);
    prefetch_to_write(head + layout.values_at + slot.index / 2 * pair_bytes, pair_bytes);
  }
}

}  // namespace

std::span<const Kernel> all() { return kKernels; }

const Kernel& best(Isa isa) {
  for (const Kernel& kernel : kKernels) {
    if (includes(isa, kernel.isa)) return kernel;
  }
  return kKernels[std::size(kKernels) - 1];
}

void run(const Kernel& kernel, const attention::Rows& rows, const Args& args, Team& team) {
  const attention::Store& store = *args.store;
  const attention::HeadLayout layout = attention::head_layout(store.type, store.width);
  const std::size_t query_bytes = args.num_heads * store.width * (store.type == attention::KVType::kF32 ? 4 : 2);
  const std::size_t row_bytes = (args.num_heads + 2 * store.num_heads) * store.width * sizeof(float);
  const Part part = part_of(rows, args, team);
  Walk walk(rows, part.begin);
  Walk ahead = walk;
  std::size_t fetched = part.begin;
  for (std::size_t t = part.begin; t < part.end; ++t) {
    for (; fetched < std::min(t + kFetchAhead, part.end); ++fetched) {
      const std::size_t request = ahead.request(fetched);
      const Slot slot = slot_of(rows, args, request, fetched);
      const bool is_first = fetched == static_cast<std::size_t>(rows.starts[request]);
      if (is_first || slot.index == 0) fetch(layout, slot, part.kv_begin, part.kv_end);
      prefetch(args.qkv + fetched * args.qkv_stride, row_bytes);
    }
    const Slot slot = slot_of(rows, args, walk.request(t), t);
    kernel.run({&args, &layout, args.qkv + t * args.qkv_stride,
                args.table == nullptr ? nullptr : args.table + t * 2 * args.half,
                static_cast<std::byte*>(args.queries) + t * query_bytes, slot.page, slot.index, part.q_begin,
                part.q_end, part.kv_begin, part.kv_end});
  }
}

}  // namespace trivium::rope_kv
