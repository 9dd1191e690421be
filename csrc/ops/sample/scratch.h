// Memory of one thread that grows to what its rows need and is then reused.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace trivium::sample {

// An array on a cache line whose size only grows. What it held is lost when it grows.
template <class T>
class Buffer {
 public:
  // At least `size` elements, not initialised.
  T* at_least(std::size_t size) {
    if (capacity_ < size) {
      memory_.reset();
      capacity_ = 0;
      memory_.reset(static_cast<T*>(::operator new[](size * sizeof(T), std::align_val_t{64})));
      capacity_ = size;
    }
    return memory_.get();
  }

  // At least `size` elements that are zero when they are new. Who changes them sets them back.
  T* zeros(std::size_t size) {
    if (capacity_ < size) {
      T* fresh = at_least(size);
      std::fill(fresh, fresh + size, T{});
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(T* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  std::unique_ptr<T[], Free> memory_;
  std::size_t capacity_ = 0;
};

// A token with what it is ranked by.
template <class T>
struct Ranked {
  T value;
  std::int32_t id;
};

// Lists of values of one type, each as long as a row may be.
template <class T>
struct Lists {
  Buffer<T> maxima;
  Buffer<T> values[2];  // candidates, before and after a filter
  Buffer<std::int32_t> ids[2];
  Buffer<T> head;  // a beginning of rank order
  Buffer<std::int32_t> head_ids;
  Buffer<T> folded;
  Buffer<T> members[2];  // of one bucket, before and after it is divided
  Buffer<Ranked<T>> ranked;
};

struct Scratch {
  Lists<float> f32;
  Lists<double> f64;
  Lists<double> keys;  // of typical
  Buffer<double> key_weights[2];
  Buffer<float> raw_maxima;
  Buffer<double> raw_sums;
  Buffer<double> edited;
  Buffer<double> sums;
  Buffer<double> weights;
  Buffer<double> scaled;
  Buffer<std::uint32_t> marks;  // [V] zero between rows
};

}  // namespace trivium::sample
