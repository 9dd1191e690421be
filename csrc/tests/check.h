// The smallest test runner that names what failed: TEST(sentence) { EXPECT(condition, "x=%d", x); }
#pragma once

#include <cstdio>
#include <vector>

namespace trivium::tests {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& registry() {
  static std::vector<Test> tests;
  return tests;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, void (*run)()) { registry().push_back({name, run}); }
};

}  // namespace trivium::tests

#define TEST(name)                                                              \
  static void name();                                                           \
  static const ::trivium::tests::Registration name##_registration(#name, name); \
  static void name()

// The format must begin with a literal; the rest are its values.
#define EXPECT(condition, ...)                                    \
  do {                                                            \
    if (!(condition)) {                                           \
      ++::trivium::tests::failures();                             \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
    }                                                             \
  } while (false)
