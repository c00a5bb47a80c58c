/*
 * The product of tokens and a quantized weight.
 *
 * A task is GROUP panels of weight rows for up to CHUNK tokens. It unpacks K_BLOCK columns of them into its
 * thread's scratch, uses them for its tokens, and forgets them; its output tile stays in cache until all columns
 * are summed. Input values are copied once, block of columns by block of columns, so that a task reads them in
 * order; this also allows the output to lie where the input was.
 *
 * Where the engine was opened so, inputs of 4-bit weights are rounded to 8 bits while they are copied, each 32 of them
 * by their largest; such products are sums of small integers.
 */
#include <string.h>

#include "internal.h"

enum {
    LINEAR_FLOATS = PANEL * K_BLOCK,
    PANEL_FLOATS = PANEL * K_BLOCK,
    WIDTH = GROUP * PANEL, /* outputs of a task for each token */
    TASKS_PER_THREAD = 4,
    LEAST_TOKENS = 48      /* fewer would spend more time on unpacking than on multiplying */
};

static size_t gemm_scratch(void) {
    return LINEAR_FLOATS + PANEL_FLOATS + (size_t)CHUNK * WIDTH;
}

typedef struct {
    const Engine *engine;
    const Product *product;
    size_t chunks; /* parts that the tokens are cut into */
} GemmTask;

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t divide_up(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

/* Rows of columns [task * K_BLOCK ...) of all tokens: packed[first * tokens + t * count + i]. */
static void pack_input(void *context, size_t task, size_t worker) {
    const Product *const product = ((const GemmTask *)context)->product;
    (void)worker;
    const size_t columns = product->weight->columns;
    const size_t first = task * K_BLOCK, count = smaller(K_BLOCK, columns - first);
    float *target = product->packed + first * product->tokens;
    for (size_t t = 0; t < product->tokens; t++, target += count) {
        const size_t row = product->gather ? (size_t)product->gather[t] : t;
        memcpy(target, product->input + row * columns + first, count * sizeof *target);
    }
}

/*
 * The columns that a row's panel needs next, `bytes` from here. Rows are too far apart for the processor to foresee,
 * and each has its own page. Asking for what lies beyond the file is harmless.
 */
static void prefetch_next(const uint8_t *source, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(source + bytes + i);
}

/* ---- inputs in 8 bits, for 4-bit weights ---- */

static bool rounds_inputs(const Engine *engine, const Matrix *weight) {
    return engine->round_inputs && engine->kernels->multiply_levels && levels_of(weight->format);
}

/* As pack_input: groups of columns [task * K_BLOCK ...) of all tokens; group g of token t at [g * tokens + t]. */
static void round_input(void *context, size_t task, size_t worker) {
    const Product *const product = ((const GemmTask *)context)->product;
    (void)worker;
    const size_t columns = product->weight->columns;
    const size_t first = task * K_BLOCK, groups = smaller(K_BLOCK, columns - first) / ROUNDED;
    Rounded *const target = (Rounded *)(void *)product->packed + first / ROUNDED * product->tokens;
    for (size_t t = 0; t < product->tokens; t++) {
        const size_t row = product->gather ? (size_t)product->gather[t] : t;
        const float *const source = product->input + row * columns + first;
        for (size_t g = 0; g < groups; g++) target[g * product->tokens + t] = round_values(source + g * ROUNDED);
    }
}

/* Quads, scales and shifts of a panel, from rows of each in `linear`. Interleaving only moves the 4 bytes of a quad. */
static LevelPanel unpack_levels(const Kernels *kernels, const Matrix *weight, size_t row, size_t first, size_t count,
                                float *linear, float *panel) {
    enum { QUADS = K_BLOCK / 4, GROUPS = K_BLOCK / ROUNDED };
    const Format *const format = &format_table()[weight->format];
    const size_t rows = smaller(PANEL, weight->rows - row), offset = first / format->elements * format->bytes;
    float *const scales = linear + PANEL * QUADS, *const shifts = scales + PANEL * GROUPS;
    float *const panel_scales = panel + PANEL * QUADS, *const panel_shifts = panel_scales + PANEL * GROUPS;
    const size_t bytes = count / format->elements * format->bytes;
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *const source = weight->data + (row + r) * weight->row_bytes + offset;
        prefetch_next(source, bytes);
        levels_of(weight->format)(source, count, (uint8_t *)(linear + r * QUADS), scales + r * GROUPS,
                                  shifts + r * GROUPS);
    }
    kernels->interleave(linear, QUADS, rows, count / 4, panel);
    kernels->interleave(scales, GROUPS, rows, count / ROUNDED, panel_scales);
    kernels->interleave(shifts, GROUPS, rows, count / ROUNDED, panel_shifts);
    return (LevelPanel){panel, panel_scales, panel_shifts};
}

/* ---- one task ---- */

static void unpack_panel(const Kernels *kernels, const Matrix *weight, size_t row, size_t first, size_t count,
                         float *linear, float *panel) {
    const Format *const format = &format_table()[weight->format];
    const size_t rows = smaller(PANEL, weight->rows - row);
    const size_t offset = first / format->elements * format->bytes, bytes = count / format->elements * format->bytes;
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *const source = weight->data + (row + r) * weight->row_bytes + offset;
        prefetch_next(source, bytes);
        kernels->unpack[weight->format](source, count, linear + r * K_BLOCK);
    }
    kernels->interleave(linear, K_BLOCK, rows, count, panel);
}

/* The weight row that panel `index` of a group starts at; weight->rows when there is none. */
static size_t panel_row(const Product *product, size_t group, size_t index) {
    const size_t rows = product->weight->rows;
    if (!product->swiglu) return smaller(rows, (group * GROUP + index) * PANEL);
    const size_t pairs = GROUP / 2, half = rows / 2;
    const size_t row = (group * pairs + index % pairs) * PANEL;
    return row >= half ? rows : row + (index < pairs ? 0 : half);
}

/* tile [tokens][WIDTH] = the group's panels times tokens [first_token ...). */
static void fill_tile(const GemmTask *context, size_t group, size_t first_token, size_t tokens, float *scratch) {
    const Product *const product = context->product;
    const Kernels *const kernels = context->engine->kernels;
    const Matrix *const weight = product->weight;
    const bool rounding = rounds_inputs(context->engine, weight);
    float *const linear = scratch, *const panel = linear + LINEAR_FLOATS, *const tile = panel + PANEL_FLOATS;
    for (size_t first = 0; first < weight->columns; first += K_BLOCK) {
        const size_t count = smaller(K_BLOCK, weight->columns - first);
        const float *const input = product->packed + first * product->tokens + first_token * count;
        const Rounded *const rounded =
            (const Rounded *)(const void *)product->packed + first / ROUNDED * product->tokens + first_token;
        for (size_t index = 0; index < GROUP; index++) {
            const size_t row = panel_row(product, group, index);
            float *const output = tile + index * PANEL;
            if (row >= weight->rows) continue;
            if (rounding) {
                const LevelPanel levels = unpack_levels(kernels, weight, row, first, count, linear, panel);
                kernels->multiply_levels(&levels, rounded, product->tokens, count / ROUNDED, tokens, output, WIDTH,
                                         first > 0);
            } else {
                unpack_panel(kernels, weight, row, first, count, linear, panel);
                kernels->multiply(panel, input, count, 1, count, tokens, output, WIDTH, first > 0);
            }
        }
    }
}

static float *output_at(const Product *product, size_t token, size_t column) {
    return product->output + column / product->block * product->block_stride + token * product->row_stride +
           column % product->block;
}

static void store_plain(const Product *product, size_t group, size_t first_token, size_t tokens, const float *tile) {
    const size_t first = group * WIDTH, end = smaller(first + WIDTH, product->weight->rows);
    for (size_t t = 0; t < tokens; t++, tile += WIDTH) {
        for (size_t column = first, next; column < end; column = next) {
            next = smaller(end, column - column % product->block + product->block);
            float *const target = output_at(product, first_token + t, column);
            for (size_t i = 0; i < next - column; i++) {
                const float bias = product->bias ? product->bias[column + i] : 0.0f;
                target[i] = tile[column - first + i] + bias;
            }
        }
    }
}

static void store_swiglu(const GemmTask *context, size_t group, size_t first_token, size_t tokens,
                         const float *tile) {
    const Product *const product = context->product;
    const size_t half = product->weight->rows / 2, width = WIDTH / 2, first = group * width;
    const size_t count = smaller(width, half - first);
    for (size_t t = 0; t < tokens; t++, tile += WIDTH)
        context->engine->kernels->silu_multiply(tile, tile + width, count,
                                                output_at(product, first_token + t, first));
}

static void multiply_group(void *context, size_t task, size_t worker) {
    const GemmTask *const gemm_task = context;
    const Product *const product = gemm_task->product;
    float *const scratch = gemm_task->engine->scratch[worker];
    const float *const tile = scratch + LINEAR_FLOATS + PANEL_FLOATS;
    const size_t chunks = gemm_task->chunks, group = task / chunks, chunk = task % chunks;
    const size_t first = product->tokens * chunk / chunks, end = product->tokens * (chunk + 1) / chunks;
    fill_tile(gemm_task, group, first, end - first, scratch);
    if (product->swiglu) store_swiglu(gemm_task, group, first, end - first, tile);
    else store_plain(product, group, first, end - first, tile);
}

/*
 * Chunks fit the scratch; narrow weights are cut into more of them, so that every thread has work. Each output is
 * summed in the same order wherever the cuts are.
 */
static size_t count_chunks(size_t tokens, size_t groups, size_t threads) {
    const size_t wanted = divide_up(TASKS_PER_THREAD * threads, groups), most = divide_up(tokens, LEAST_TOKENS);
    const size_t least = divide_up(tokens, CHUNK);
    return threads > 1 && smaller(wanted, most) > least ? smaller(wanted, most) : least;
}

static void gemm(const Engine *engine, const Product *product) {
    if (product->tokens == 0) return;
    const size_t rows = product->swiglu ? product->weight->rows / 2 : product->weight->rows;
    const size_t groups = divide_up(rows, product->swiglu ? WIDTH / 2 : WIDTH);
    GemmTask task = {engine, product, count_chunks(product->tokens, groups, engine->threads)};
    const TaskFunction pack = rounds_inputs(engine, product->weight) ? round_input : pack_input;
    pool_run(engine->pool, divide_up(product->weight->columns, K_BLOCK), pack, &task);
    pool_run(engine->pool, groups * task.chunks, multiply_group, &task);
}
