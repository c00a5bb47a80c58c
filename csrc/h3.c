/*
 * The whole library is this one translation unit:
 *     cc -O3 -std=c11 -shared -fPIC -o libh3.so csrc/h3.c -lm -lpthread
 * Everything but the functions of h3.h is static.
 */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity, madvise */
#elif defined(__APPLE__)
#define _DARWIN_C_SOURCE
#endif

#if !(defined(__linux__) || defined(__APPLE__)) || !(defined(__x86_64__) || defined(__aarch64__))
#error "Firstlook's engine runs on Linux and macOS, on x86-64 and arm64."
#endif

#include "support.c"
#include "threads.c"
#include "quants.c"
#include "quantize.c"
#include "gguf.c"
#include "kernels_plain.c"
#include "kernels_avx2.c"
#include "kernels_avx512.c"
#include "kernels_neon.c"
#include "kernels.c"
#include "selftest.c"
#include "gemm.c"
#include "attention.c"
#include "model.c"
#include "elementwise.c"
#include "transformer.c"
#include "run.c"
