// Counts what a process allocates: preloaded, its functions stand before the C library's; NumPy is given the handler
// below for the data of arrays (NEP 49), whose small blocks NumPy keeps for itself and would not ask malloc for again.
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static atomic_long num_calls, num_arrays;

static void note(void) { atomic_fetch_add(&num_calls, 1); }

void* malloc(size_t size) { return note(), __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return note(), __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return note(), __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) { return note(), __libc_memalign(alignment, size); }
void* memalign(size_t alignment, size_t size) { return note(), __libc_memalign(alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
  note();
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : ENOMEM;
}

long count_calls(void) { return atomic_load(&num_calls); }
long count_arrays(void) { return atomic_load(&num_arrays); }

static void* array_malloc(void* context, size_t size) {
  (void)context;
  atomic_fetch_add(&num_arrays, 1);
  return __libc_malloc(size);
}
static void* array_calloc(void* context, size_t count, size_t size) {
  (void)context;
  atomic_fetch_add(&num_arrays, 1);
  return __libc_calloc(count, size);
}
static void* array_realloc(void* context, void* old, size_t size) {
  (void)context;
  atomic_fetch_add(&num_arrays, 1);
  return __libc_realloc(old, size);
}
static void array_free(void* context, void* block, size_t size) {
  (void)context;
  (void)size;
  __libc_free(block);
}

// PyDataMem_Handler of numpy/ndarraytypes.h.
struct {
  char name[127];
  unsigned char version;
  void* context;
  void* (*malloc)(void*, size_t);
  void* (*calloc)(void*, size_t, size_t);
  void* (*realloc)(void*, void*, size_t);
  void (*free)(void*, void*, size_t);
} array_handler = {"counting", 1, NULL, array_malloc, array_calloc, array_realloc, array_free};
