// Runs every registered test, or those whose name contains the first argument; exits 1 if one failed.
#include <cstring>

#include "tests/check.h"

int main(int argc, char** argv) {
  using namespace trivium::tests;
  int passed = 0;
  int failed = 0;
  for (const Test& test : registry()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = failures();
    test.run();
    const bool has_passed = failures() == before;
    std::printf("%s %s\n", has_passed ? "ok    " : "FAILED", test.name);
    ++(has_passed ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
