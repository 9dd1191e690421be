// Philox4x32-10: the random number of a place, addressed as trivium/sampling/philox.py draws it.
//
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
#pragma once

#include <array>
#include <cstdint>

namespace trivium::sample {

inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = std::uint64_t{counter[0]} * 0xD2511F53U;
    const std::uint64_t odd = std::uint64_t{counter[2]} * 0xCD9E8D57U;
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(even)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

// In [0, 1): 27 bits of the block's first word and 26 of its second.
inline double uniform(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
  const auto words =
      philox4x32({position, 0, choice, 0}, {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t whole = (std::uint64_t{words[0] >> 5} << 26) + (words[1] >> 6);
  return static_cast<double>(whole) * 0x1p-53;
}

}  // namespace trivium::sample
