#include <cstring>
#include <stdexcept>
#include <string>

#include "base/isa.h"
#include "tests/check.h"

namespace trivium {

TEST(names_of_instruction_sets_are_read_back) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAmx}) {
    EXPECT(parse_isa(isa_name(isa)) == isa, "%s", isa_name(isa));
  }
}

TEST(an_unknown_name_is_refused_with_the_known_ones) {
  std::string message;
  try {
    parse_isa("sse9");
  } catch (const std::invalid_argument& error) {
    message = error.what();
  }
  EXPECT(message.find("'sse9'") != std::string::npos && message.find("avx512") != std::string::npos, "%s",
         message.c_str());
}

TEST(the_active_level_is_never_above_the_detected_one) {
  EXPECT(includes(detected_isa(), active_isa()), "%s, %s", isa_name(active_isa()), isa_name(detected_isa()));
}

}  // namespace trivium
