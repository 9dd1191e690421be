// Where one element of a key or value lies in a page, for every way of storing them.
//
// A page holds kPageLen = 16 tokens of one KV group's layer: G heads one after the other, each head's keys and then its
// values, so that what one work item reads of a page is one contiguous piece (4 KiB of bf16 at D = 64).
//
//   store     [layers][pages][G] heads             head = keys | values | scales (kI8 only), padded to 64 bytes
//
// One 64-byte vector of keys is one step of a score for 16 tokens at once; one of values is one step of an output for
// 16 columns at once. So neither product ever adds across lanes. P is D padded to a multiple of 16; columns past D are
// zeros that nobody reads back.
//
//   kBf16   keys    [D / 2][16 tokens][2]           t0: k0 k1 | t1: k0 k1 | … | t15: k0 k1      elements 0 and 1
//                                                   t0: k2 k3 | t1: k2 k3 | …                    elements 2 and 3 …
//           values  [8 pairs of tokens][P][2]       c0: t0 t1 | c1: t0 t1 | …                    tokens 0 and 1
//                                                   c0: t2 t3 | …                                tokens 2 and 3 …
//   kF32    keys    [D][16 tokens]                  values  [16 tokens][P]
//   kI8     as kBf16 with signed bytes; then 16 floats that scale the keys and 16 that scale the values, by token.
//           Per token and head: a = greatest |x|, scale = a / 127, unit = round to nearest even(x * (127 / a));
//           a below 2^-120 gives zeros and scale 0, a value that is not finite makes the scale NaN.
//
// Slots that hold no token may hold anything: they are never multiplied. For that a value stored in an even slot clears
// its neighbour in the next one, which shares its pairs and cannot have been written yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/team.h"
#include "ops/attention/attention.h"

namespace trivium::attention {

// One head of one page.
struct HeadLayout {
  KVType type;
  std::size_t width;         // D
  std::size_t padded_width;  // P
  std::size_t values_at;     // bytes before the values
  std::size_t scales_at;     // bytes before the scales: the end of the values
  std::size_t num_bytes;
};
HeadLayout head_layout(KVType type, std::size_t width);

// Where a head's bytes begin.
std::byte* head_at(const Store& store, std::size_t layer, std::size_t page, std::size_t head);

// Stores one token's key and value [D] of one head. For tests: a step's tokens are stored by ops/rope_kv.
void write_token(const Store& store, std::size_t layer, std::size_t page, std::size_t head, std::size_t slot,
                 const float* key, const float* value);

// Reads back what a kernel sees: the rounded key and value [D] of one token.
void read_token(const Store& store, std::size_t layer, std::size_t page, std::size_t head, std::size_t slot, float* key,
                float* value);

// A page to copy, all layers: source, target.
struct PageCopy {
  std::int32_t source;
  std::int32_t target;
};

// Copies pages in the order given (a target may be a later source). Members share the layers; ends without a barrier.
void copy_pages(const Store& store, std::span<const PageCopy> copies, Team& team);

// A page's bytes, all layers: what export_page writes and import_page reads, [layers][G] heads.
std::size_t page_bytes(const Store& store);
void export_page(const Store& store, std::size_t page, std::span<std::byte> content);

// Throws std::invalid_argument when the size is not a page's, or a number in it is not finite; then nothing is written.
void import_page(const Store& store, std::size_t page, std::span<const std::byte> content);

}  // namespace trivium::attention
