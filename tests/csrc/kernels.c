/* The engine's inner parts, opened up for tests and measurements: one product, one attention, one unpacker. */
#include "../../csrc/h3.c" /* first: it says which system functions it needs */

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    Engine engine;
    Failure failure;
} Bench;

EXPORT void *bench_open(const char *kernels, size_t threads, size_t head_width) {
    static char unused[1];
    Bench *const bench = allocate(1, sizeof *bench);
    bench->failure = (Failure){unused, 0};
    const size_t floats = larger(gemm_scratch(), attention_scratch(head_width));
    bench->engine.kernels = kernels_named(kernels, &bench->failure);
    bench->engine.threads = threads;
    bench->engine.pool = pool_create(threads, &bench->failure);
    bench->engine.scratch = allocate(threads, sizeof(float *));
    for (size_t i = 0; i < threads; i++) bench->engine.scratch[i] = allocate_floats(1, floats);
    if (bench->engine.kernels) return bench;
    pool_destroy(bench->engine.pool);
    for (size_t i = 0; i < threads; i++) free(bench->engine.scratch[i]);
    free(bench->engine.scratch);
    free(bench);
    return NULL;
}

EXPORT void bench_close(void *handle) {
    Bench *const bench = handle;
    pool_destroy(bench->engine.pool);
    for (size_t i = 0; i < bench->engine.threads; i++) free(bench->engine.scratch[i]);
    free(bench->engine.scratch);
    free(bench);
}

EXPORT void bench_round_inputs(void *handle) {
    ((Bench *)handle)->engine.round_inputs = true;
}

/* output [tokens, rows], or [tokens, rows / 2] with swiglu. */
EXPORT void bench_product(void *handle, uint32_t type, const uint8_t *weight, size_t rows, size_t columns,
                          const float *bias, const float *input, size_t tokens, float *packed, float *output,
                          int swiglu) {
    const Bench *const bench = handle;
    const int index = format_of_type(type);
    const Format *const format = &format_table()[index];
    const Matrix matrix = {weight, rows, columns, columns / format->elements * format->bytes, index};
    const size_t width = swiglu ? rows / 2 : rows;
    const Product product = {
        .weight = &matrix, .bias = bias, .input = input, .tokens = tokens, .packed = packed, .output = output,
        .block = width, .block_stride = width, .row_stride = width, .swiglu = swiglu != 0,
    };
    gemm(&bench->engine, &product);
}

EXPORT void bench_attention(void *handle, const float *heads, size_t count, size_t rows, size_t width,
                            float *output) {
    attention(&((const Bench *)handle)->engine, heads, count, rows, width, output);
}

EXPORT void bench_unpack(void *handle, uint32_t type, const uint8_t *source, size_t count, float *target) {
    ((const Bench *)handle)->engine.kernels->unpack[format_of_type(type)](source, count, target);
}
