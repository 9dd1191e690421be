// Powers of two on lanes: how exact they are, and what they give where floats end.
#include <cmath>
#include <limits>

#include "ops/attention/lanes_scalar.h"
#include "tests/check.h"

namespace trivium::attention {
namespace {

float power(float x) { return exp2(Lanes::broadcast(x)).value[3]; }

}  // namespace

TEST(powers_of_two_are_within_their_bound) {
  double worst = 0;
  for (int i = 0; i < 400000; ++i) {
    const float x = -126.0F + 150.0F * static_cast<float>(i) / 400000.0F;
    worst = std::max(worst, std::abs(power(x) / std::exp2(double{x}) - 1));
  }
  EXPECT(worst <= 1.7e-7, "relative error %g", worst);
}

TEST(powers_of_two_are_exact_at_integers_and_nothing_below_the_least_normal) {
  for (int n = -126; n <= 24; ++n) {
    const float got = power(static_cast<float>(n));
    EXPECT(got == std::ldexp(1.0F, n), "2^%d = %g", n, static_cast<double>(got));
  }
  for (const float x : {std::nextafter(-126.0F, -200.0F), -1e30F, std::numeric_limits<float>::lowest(), -INFINITY}) {
    EXPECT(power(x) == 0.0F, "2^%g = %g", static_cast<double>(x), static_cast<double>(power(x)));
  }
  EXPECT(std::isnan(power(NAN)), "%g", static_cast<double>(power(NAN)));
  EXPECT(power(1e30F) >= std::ldexp(1.0F, 127), "%g", static_cast<double>(power(1e30F)));
}

}  // namespace trivium::attention
