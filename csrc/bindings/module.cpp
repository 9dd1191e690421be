#include "bindings/bindings.h"

NB_MODULE(_C, m) {
  m.doc() = "Native kernels of Trivium. Use trivium.kernels, which checks arguments and has a stand-in for each.";
  trivium::bindings::bind_runtime(m);
  trivium::bindings::bind_gemm(m);
  trivium::bindings::bind_linear(m);
  trivium::bindings::bind_adapters(m);
  trivium::bindings::bind_program(m);    // after Adapters
  trivium::bindings::bind_attention(m);  // after KVStore
  trivium::bindings::bind_sample(m);
}
