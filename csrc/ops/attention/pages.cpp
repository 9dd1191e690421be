#include "ops/attention/pages.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/attention/pages_inl.h"

namespace trivium::attention {
namespace {

constexpr std::size_t kLanes = 16;      // columns of one vector of values
constexpr std::size_t kLineBytes = 64;  // heads begin on cache lines

constexpr std::size_t round_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

std::size_t element_bytes(KVType type) { return type == KVType::kF32 ? 4 : type == KVType::kBf16 ? 2 : 1; }

// One layer of one page: G heads.
std::size_t slice_bytes(const Store& store) { return store.num_heads * store.head_bytes(); }

float bf16_at(const std::byte* at) {
  std::uint16_t unit;
  std::memcpy(&unit, at, sizeof unit);
  return operand::float_of(std::uint32_t{unit} << 16);
}

float float_at(const std::byte* at) {
  float value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Element `index` of a head's block, which is counted as pages.h draws it.
float element_at(KVType type, const std::byte* block, std::size_t index, float scale) {
  switch (type) {
    case KVType::kF32:
      return float_at(block + 4 * index);
    case KVType::kBf16:
      return bf16_at(block + 2 * index);
    case KVType::kI8:
      return static_cast<float>(static_cast<std::int8_t>(block[index])) * scale;
  }
  return 0.0F;
}

// Whether every number of a head is finite; bytes always are.
bool is_finite(const HeadLayout& layout, const std::byte* head) {
  if (layout.type == KVType::kI8) {
    for (std::size_t i = 0; i < 2 * kPageLen; ++i) {
      if (!std::isfinite(float_at(head + layout.scales_at + 4 * i))) return false;
    }
    return true;
  }
  const std::size_t bytes = element_bytes(layout.type);
  for (std::size_t i = 0; i < layout.scales_at / bytes; ++i) {
    if (!std::isfinite(element_at(layout.type, head, i, 1.0F))) return false;
  }
  return true;
}

void check_page(const Store& store, std::size_t page, std::size_t size) {
  TRIV_CHECK(page < store.num_pages, "page %zu of a store of %zu pages", page, store.num_pages);
  TRIV_CHECK(size == page_bytes(store), "a page takes %zu bytes, not %zu", page_bytes(store), size);
}

}  // namespace

HeadLayout head_layout(KVType type, std::size_t width) {
  TRIV_CHECK(width >= 2 && width <= kMaxWidth && width % 2 == 0, "head width must be even, 2 to %zu, not %zu",
             kMaxWidth, width);
  const std::size_t padded = round_up(width, kLanes);
  const std::size_t unit = kPageLen * element_bytes(type);
  const std::size_t scales_at = (width + padded) * unit;
  const std::size_t scales = type == KVType::kI8 ? 2 * kPageLen * sizeof(float) : 0;
  return {type, width, padded, width * unit, scales_at, round_up(scales_at + scales, kLineBytes)};
}

std::size_t Store::head_bytes() const { return head_layout(type, width).num_bytes; }

std::size_t Store::num_bytes() const { return num_layers * num_pages * num_heads * head_bytes(); }

std::byte* head_at(const Store& store, std::size_t layer, std::size_t page, std::size_t head) {
  return store.data + ((layer * store.num_pages + page) * store.num_heads + head) * store.head_bytes();
}

void write_token(const Store& store, std::size_t layer, std::size_t page, std::size_t head, std::size_t slot,
                 const float* key, const float* value) {
  write_head(head_layout(store.type, store.width), head_at(store, layer, page, head), slot, key, value);
}

void read_token(const Store& store, std::size_t layer, std::size_t page, std::size_t head, std::size_t slot, float* key,
                float* value) {
  const HeadLayout layout = head_layout(store.type, store.width);
  const std::byte* keys = head_at(store, layer, page, head);
  const std::byte* values = keys + layout.values_at;
  const bool has_scales = store.type == KVType::kI8;
  const float key_scale = has_scales ? float_at(keys + layout.scales_at + 4 * slot) : 1.0F;
  const float value_scale = has_scales ? float_at(keys + layout.scales_at + 4 * (kPageLen + slot)) : 1.0F;
  const std::size_t pair = store.type == KVType::kF32 ? 1 : 2;  // elements, or tokens, that lie side by side
  for (std::size_t i = 0; i < store.width; ++i) {
    const std::size_t key_index = (i / pair * kPageLen + slot) * pair + i % pair;
    const std::size_t value_index = (slot / pair * layout.padded_width + i) * pair + slot % pair;
    key[i] = element_at(store.type, keys, key_index, key_scale);
    value[i] = element_at(store.type, values, value_index, value_scale);
  }
}

void copy_pages(const Store& store, std::span<const PageCopy> copies, Team& team) {
  const Team::Share layers = team.share(store.num_layers);
  for (std::size_t layer = layers.begin; layer < layers.end; ++layer) {
    for (const PageCopy& copy : copies) {
      if (copy.source == copy.target) continue;
      std::memcpy(head_at(store, layer, static_cast<std::size_t>(copy.target), 0),
                  head_at(store, layer, static_cast<std::size_t>(copy.source), 0), slice_bytes(store));
    }
  }
}

std::size_t page_bytes(const Store& store) { return store.num_layers * slice_bytes(store); }

void export_page(const Store& store, std::size_t page, std::span<std::byte> content) {
  check_page(store, page, content.size());
  const std::size_t slice = slice_bytes(store);
  for (std::size_t layer = 0; layer < store.num_layers; ++layer) {
    std::memcpy(content.data() + layer * slice, head_at(store, layer, page, 0), slice);
  }
}

void import_page(const Store& store, std::size_t page, std::span<const std::byte> content) {
  check_page(store, page, content.size());
  const HeadLayout layout = head_layout(store.type, store.width);
  for (std::size_t at = 0; at < content.size(); at += layout.num_bytes) {
    TRIV_CHECK(is_finite(layout, content.data() + at), "the content for page %zu holds a number that is not finite",
               page);
  }
  const std::size_t slice = slice_bytes(store);
  for (std::size_t layer = 0; layer < store.num_layers; ++layer) {
    std::memcpy(head_at(store, layer, page, 0), content.data() + layer * slice, slice);
  }
}

}  // namespace trivium::attention
