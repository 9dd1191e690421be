// Argument checks whose message names the values. No iostream, no formatting library.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

namespace trivium {

// Throws std::invalid_argument with a printf-style message (at most 255 characters).
[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  char message[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof message, format, values);
  va_end(values);
  throw std::invalid_argument(message);
}

}  // namespace trivium

// check(condition, "gemm: a has K=%zu but the weight has K=%zu", ...): the message is only made on failure.
#define TRIV_CHECK(condition, ...)                  \
  do {                                              \
    if (!(condition)) ::trivium::fail(__VA_ARGS__); \
  } while (false)
