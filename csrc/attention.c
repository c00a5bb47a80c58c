/*
 * Attention over all rows, one head at a time, in blocks of keys: the scores of one block live in cache and are
 * forgotten (the online softmax of FlashAttention, arXiv:2205.14135), so memory does not grow with the length.
 *
 * A vector runs over PANEL queries; keys and channels are broadcast. Scores are K Q^T and results V^T P, both by
 * the micro-kernel of the matrix product, and maximum, sum and exponential need no step across a vector.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

enum {
    KEY_BLOCK = 128,  /* a panel of weights P, and the lines of V that a tile of channels touches: 16 KB */
    QUERY_PANELS = 4  /* panels that share a block of keys while it is in cache */
};

/* What a panel of queries keeps between blocks of keys. */
typedef struct {
    float *queries; /* [width][PANEL], already divided by sqrt(width) */
    float *result;  /* [width][PANEL], not yet divided by `sum` */
    float *maximum, *sum;
} QueryPanel;

static size_t attention_scratch(size_t head_width) {
    return QUERY_PANELS * PANEL * (2 * head_width + 2) + PANEL * (KEY_BLOCK + 1);
}

typedef struct {
    const Engine *engine;
    const float *heads;
    size_t count, rows, width;
    float *output;
} AttentionTask;

static QueryPanel panel_at(float *scratch, size_t index, size_t width) {
    float *const base = scratch + index * PANEL * (2 * width + 2);
    return (QueryPanel){base, base + PANEL * width, base + 2 * PANEL * width, base + PANEL * (2 * width + 1)};
}

static void load_queries(const Kernels *kernels, const QueryPanel *panel, const float *queries, size_t count,
                         size_t width) {
    const float scale = 1.0f / sqrtf((float)width);
    kernels->interleave(queries, width, count, width, panel->queries);
    for (size_t i = 0; i < PANEL * width; i++) {
        panel->queries[i] *= scale;
        panel->result[i] = 0.0f;
    }
    for (size_t r = 0; r < PANEL; r++) {
        panel->maximum[r] = -INFINITY;
        panel->sum[r] = 0.0f;
    }
}

/* result = factor * result + V^T exp(K Q^T - maximum), for one block of keys. */
static void add_keys(const Kernels *kernels, const QueryPanel *panel, const float *keys, const float *values,
                     size_t count, size_t width, float *scores, float *factor) {
    kernels->multiply(panel->queries, keys, width, 1, width, count, scores, PANEL, false);
    kernels->softmax(scores, count, panel->maximum, panel->sum, factor);
    for (size_t c = 0; c < width; c++) {
        for (size_t r = 0; r < PANEL; r++) panel->result[c * PANEL + r] *= factor[r];
    }
    kernels->multiply(scores, values, 1, width, count, width, panel->result, PANEL, true);
}

static void store_result(const QueryPanel *panel, size_t count, size_t width, size_t stride, float *output) {
    for (size_t r = 0; r < count; r++) {
        const float inverse = 1.0f / panel->sum[r];
        for (size_t c = 0; c < width; c++) output[r * stride + c] = panel->result[c * PANEL + r] * inverse;
    }
}

static void attend(void *context, size_t task, size_t worker) {
    const AttentionTask *const attention = context;
    const Kernels *const kernels = attention->engine->kernels;
    const size_t rows = attention->rows, width = attention->width, span = PANEL * QUERY_PANELS;
    const size_t groups = divide_up(rows, span), head = task / groups, first = task % groups * span;
    const size_t end = smaller(rows, first + span), panels = divide_up(end - first, PANEL);
    const float *const queries = attention->heads + head * rows * width;
    const float *const keys = queries + attention->count * rows * width;
    const float *const values = keys + attention->count * rows * width;
    float *const scratch = attention->engine->scratch[worker];
    float *const scores = scratch + QUERY_PANELS * PANEL * (2 * width + 2), *const factor = scores + PANEL * KEY_BLOCK;

    for (size_t p = 0; p < panels; p++) {
        const QueryPanel panel = panel_at(scratch, p, width);
        const size_t start = first + p * PANEL;
        load_queries(kernels, &panel, queries + start * width, smaller(PANEL, end - start), width);
    }
    for (size_t key = 0; key < rows; key += KEY_BLOCK) {
        const size_t count = smaller(KEY_BLOCK, rows - key);
        for (size_t p = 0; p < panels; p++) {
            const QueryPanel panel = panel_at(scratch, p, width);
            add_keys(kernels, &panel, keys + key * width, values + key * width, count, width, scores, factor);
        }
    }
    for (size_t p = 0; p < panels; p++) {
        const QueryPanel panel = panel_at(scratch, p, width);
        const size_t start = first + p * PANEL, stride = attention->count * width;
        store_result(&panel, smaller(PANEL, end - start), width, stride,
                     attention->output + start * stride + head * width);
    }
}

static void attention(const Engine *engine, const float *heads, size_t count, size_t rows, size_t width,
                      float *output) {
    AttentionTask task = {engine, heads, count, rows, width, output};
    pool_run(engine->pool, count * divide_up(rows, PANEL * QUERY_PANELS), attend, &task);
}
