// Random packed weights and operands for the tests of products. All buffers are exactly as long as they are said to be,
// so that sanitizers see any overrun.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "base/team.h"
#include "ops/linear/linear.h"
#include "ops/linear/pack.h"
#include "ops/operand/operand.h"
#include "tests/draw.h"

namespace trivium::linear::tests {

// Bytes on a cache line; no more than asked for.
class Aligned {
 public:
  explicit Aligned(std::size_t size) : size_(size), bytes_(static_cast<std::byte*>(::operator new[](size, kAlign))) {
    std::memset(bytes_.get(), 0xEE, size);
  }
  std::byte* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, kAlign); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

using trivium::tests::normal;

// The float16 nearest to a value between 2^-14 and 65504 (tests draw from there); sign kept.
inline std::uint16_t half_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t magnitude = (bits & 0x7FFFFFFFU) + 0x1000U - (112U << 23);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | magnitude >> 13);
}

// A random matrix [N, K] in one format: its codes, and the same packed.
class Matrix {
 public:
  Matrix(const Format& format, std::size_t num_cols, std::size_t depth, unsigned seed)
      : format_(format),
        num_cols_(num_cols),
        depth_(depth),
        engine_(seed),
        panels_(num_panels(num_cols) * panel_bytes(format, depth)) {
    fill();
    Codes codes{};
    codes.num_cols = num_cols;
    codes.depth = depth;
    codes.codes = codes_.data();
    codes.scales = format.id == FormatId::kI8Channel ? static_cast<const void*>(channel_.data()) : scales_.data();
    codes.mins = mins_.data();
    codes.zeros = zeros_.data();
    codes.supers = scales_.data();
    codes.subs = subs_.data();
    codes.super_mins = mins_.data();
    codes.sub_mins = sub_mins_.data();
    pack(format, codes, panels_.data());
  }

  Weight weight() const { return {&format_, panels_.data(), num_cols_}; }
  std::size_t depth() const { return depth_; }

  std::vector<float> row(std::size_t n) const {
    std::vector<float> values(depth_);
    unpack_row(weight(), depth_, n, values.data());
    return values;
  }

 private:
  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(engine_() % below); }
  float between(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }

  // The first digit of a format's name.
  int bits() const {
    const char* digit = format_.name;
    while (*digit < '0' || *digit > '9') ++digit;
    return *digit - '0';
  }

  void fill() {
    const std::size_t size = num_cols_ * depth_;
    if (format_.operand != operand::Format::kQ8) {
      const std::vector<float> values = normal(size, static_cast<unsigned>(engine_()));
      codes_.resize(size * (format_.id == FormatId::kF32 ? 4 : 2));
      for (std::size_t i = 0; i < size; ++i) {
        std::uint32_t word;
        std::memcpy(&word, &values[i], sizeof word);
        if (format_.id == FormatId::kF32) std::memcpy(&codes_[i * 4], &word, 4);
        const auto high = static_cast<std::uint16_t>(word >> 16);
        if (format_.id == FormatId::kBf16) std::memcpy(&codes_[i * 2], &high, 2);
        const std::uint16_t half = std::abs(values[i]) < 0x1p-14F ? std::uint16_t{1} : half_of(values[i]);
        if (format_.id == FormatId::kF16) std::memcpy(&codes_[i * 2], &half, 2);
      }
      return;
    }
    codes_.resize(size);
    for (std::uint8_t& code : codes_) code = static_cast<std::uint8_t>(draw(1U << bits()));
    const bool is_super = format_.block == 256;
    const std::size_t unit = is_super ? 256 : format_.block;
    const std::size_t entries = num_cols_ * ((depth_ + unit - 1) / unit);
    for (std::size_t n = 0; n < num_cols_; ++n) channel_.push_back(between(0.001F, 0.01F));
    for (std::size_t i = 0; i < entries; ++i) {
      scales_.push_back(half_of(between(0.001F, 0.1F)));
      mins_.push_back(half_of(between(-0.5F, -0.01F)));
      zeros_.push_back(static_cast<std::uint8_t>(draw(17)));
    }
    if (!is_super) return;
    const bool has_nibbles = format_.id == FormatId::kQ2K;
    for (std::size_t i = 0; i < num_cols_ * ((depth_ + format_.group - 1) / format_.group); ++i) {
      const auto sub = static_cast<int>(draw(has_nibbles ? 16 : 64));
      const bool is_signed = format_.id == FormatId::kQ3K || format_.id == FormatId::kQ6K;
      subs_.push_back(static_cast<std::uint8_t>(is_signed ? sub - 32 : sub));
      sub_mins_.push_back(static_cast<std::uint8_t>(draw(has_nibbles ? 16 : 64)));
    }
  }

  const Format& format_;
  std::size_t num_cols_;
  std::size_t depth_;
  std::mt19937 engine_;
  std::vector<std::uint8_t> codes_;
  std::vector<float> channel_;
  std::vector<std::uint16_t> scales_, mins_;
  std::vector<std::uint8_t> zeros_, subs_, sub_mins_;
  Aligned panels_;
};

// Rows of activations as an operand.
class Rows {
 public:
  Rows(const operand::Layout& layout, const float* values, std::size_t num_rows, std::size_t width)
      : layout_(layout), num_rows_(num_rows), words_(num_rows * layout.row_bytes()) {
    operand::write_rows(values, num_rows, width, layout, words_.data());
  }
  const operand::Layout& layout() const { return layout_; }
  const void* data() const { return words_.data(); }
  std::size_t num_rows() const { return num_rows_; }

  // What the operand stands for.
  std::vector<float> row(std::size_t m) const {
    std::vector<float> values(layout_.depth);
    operand::read_row(layout_, words_.data(), num_rows_, m, values.data());
    return values;
  }

 private:
  operand::Layout layout_;
  std::size_t num_rows_;
  Aligned words_;
};

// A format, and what the left side of its product is.
struct Pairing {
  const Format* format;
  operand::Format left;
};

// Every format with every operand that its product takes.
inline std::vector<Pairing> pairings() {
  std::vector<Pairing> found;
  for (const Format& format : formats()) {
    for (const operand::Format left : {format.operand, operand::Format::kQ8Wide}) {
      if (fits(format, left)) found.push_back({&format, left});
    }
  }
  return found;
}

inline Epilogue store_to(float* out, std::size_t out_stride) {
  Epilogue epilogue{};
  epilogue.kind = EpilogueKind::kStore;
  epilogue.scale = 1.0F;
  epilogue.out = out;
  epilogue.out_stride = out_stride;
  return epilogue;
}

// Runs a product on the pool's team.
inline void run_all(const Kernels& kernels, const Product& product, Tactic tactic = Tactic::kAuto) {
  check(product);
  run_team([&](Team& team) {
    const Aligned scratch(scratch_bytes(product.layout.depth));
    run(kernels, product, tactic, team, scratch.data());
  });
}

// y = rows * matrix^T, [M, N].
inline std::vector<float> multiply(const Kernels& kernels, const Matrix& matrix, const Rows& rows,
                                   Tactic tactic = Tactic::kAuto) {
  const Weight weight = matrix.weight();
  const std::size_t sum = 0;
  std::vector<float> out(rows.num_rows() * weight.num_cols, NAN);
  Product product{};
  product.parts = {&weight, 1};
  product.sums = {&sum, 1};
  product.layout = rows.layout();
  product.operand = rows.data();
  product.num_rows = rows.num_rows();
  product.epilogue = store_to(out.data(), weight.num_cols);
  run_all(kernels, product, tactic);
  return out;
}

}  // namespace trivium::linear::tests
