/*
 * What happens to rows between the matrix products: norms, modulation, rotation, residual sums. Plain C for
 * every processor: it is less than one hundredth of the work.
 */
#include <math.h>
#include <string.h>

#include "model.h"

enum { ROWS_OF_TASK = 16, SUM_LANES = 16 };

/* Which modulation row each packed row uses. A NULL table modulates nothing. */
typedef struct {
    const float *table; /* [*, width] */
    size_t width;
    const size_t *row_of;
} ModulationView;

static const float *modulation_at(const ModulationView *view, size_t row, size_t slot, size_t columns) {
    return view->table + view->row_of[row] * view->width + slot * columns;
}

static size_t row_tasks(size_t rows) {
    return divide_up(rows, ROWS_OF_TASK);
}

/* 1 / sqrt(mean(x^2) + epsilon). Summed in fixed lanes, so that the compiler may use vectors and the result is one. */
static float inverse_rms(const float *x, size_t count, float epsilon) {
    float lanes[SUM_LANES] = {0};
    double sum = 0.0;
    size_t i = 0;
    for (; i + SUM_LANES <= count; i += SUM_LANES) {
        for (size_t lane = 0; lane < SUM_LANES; lane++) lanes[lane] += x[i + lane] * x[i + lane];
    }
    for (; i < count; i++) sum += (double)x[i] * (double)x[i];
    for (size_t lane = 0; lane < SUM_LANES; lane++) sum += (double)lanes[lane];
    return (float)(1.0 / sqrt(sum / (double)count + (double)epsilon));
}

/* ---- RMS(x; weight) * (1 + scale) + shift ---- */

typedef struct {
    const float *input;
    float *output;
    const float *weight;
    size_t rows, columns;
    float epsilon;
    ModulationView modulation;
    size_t shift, scale; /* slots */
} NormTask;

static void normalize_rows(void *context, size_t task, size_t worker) {
    const NormTask *const norm = context;
    const size_t columns = norm->columns, end = smaller(norm->rows, (task + 1) * ROWS_OF_TASK);
    (void)worker;
    for (size_t row = task * ROWS_OF_TASK; row < end; row++) {
        const float *const x = norm->input + row * columns;
        float *const y = norm->output + row * columns;
        const float inverse = inverse_rms(x, columns, norm->epsilon);
        for (size_t i = 0; i < columns; i++) y[i] = x[i] * inverse * norm->weight[i];
        if (!norm->modulation.table) continue;
        const float *const shift = modulation_at(&norm->modulation, row, norm->shift, columns);
        const float *const scale = modulation_at(&norm->modulation, row, norm->scale, columns);
        for (size_t i = 0; i < columns; i++) y[i] = y[i] * (1.0f + scale[i]) + shift[i];
    }
}

static void normalize(const Engine *engine, NormTask *task) {
    pool_run(engine->pool, row_tasks(task->rows), normalize_rows, task);
}

/* ---- x += gate * y ---- */

typedef struct {
    float *x;
    const float *y;
    size_t rows, columns;
    ModulationView modulation;
    size_t gate; /* slot */
} ResidualTask;

static void add_rows(void *context, size_t task, size_t worker) {
    const ResidualTask *const residual = context;
    const size_t columns = residual->columns, end = smaller(residual->rows, (task + 1) * ROWS_OF_TASK);
    (void)worker;
    for (size_t row = task * ROWS_OF_TASK; row < end; row++) {
        float *const x = residual->x + row * columns;
        const float *const y = residual->y + row * columns;
        if (!residual->modulation.table) {
            for (size_t i = 0; i < columns; i++) x[i] += y[i];
            continue;
        }
        const float *const gate = modulation_at(&residual->modulation, row, residual->gate, columns);
        for (size_t i = 0; i < columns; i++) x[i] += gate[i] * y[i];
    }
}

static void add_residual(const Engine *engine, ResidualTask *task) {
    pool_run(engine->pool, row_tasks(task->rows), add_rows, task);
}

/* ---- queries and keys: RMS over each head, then rotation ---- */

typedef struct {
    float *heads; /* [2 * count][rows][width]: queries, keys */
    size_t count, rows, width;
    const float *q_norm, *k_norm;
    float epsilon;
    const float *cosines, *sines; /* [rows, pairs], or NULL: no rotation */
    size_t pairs;
} HeadTask;

/* Channel c turns with channel c + pairs; channels from 2 * pairs on stay. */
static void rotate(float *x, const float *cosine, const float *sine, size_t pairs) {
    for (size_t c = 0; c < pairs; c++) {
        const float a = x[c], b = x[c + pairs];
        x[c] = a * cosine[c] - b * sine[c];
        x[c + pairs] = b * cosine[c] + a * sine[c];
    }
}

static void normalize_head_rows(void *context, size_t task, size_t worker) {
    const HeadTask *const heads = context;
    const size_t tasks = row_tasks(heads->rows), head = task / tasks, first = task % tasks * ROWS_OF_TASK;
    const size_t end = smaller(heads->rows, first + ROWS_OF_TASK), width = heads->width;
    const float *const weight = head < heads->count ? heads->q_norm : heads->k_norm;
    (void)worker;
    for (size_t row = first; row < end; row++) {
        float *const x = heads->heads + (head * heads->rows + row) * width;
        const float inverse = inverse_rms(x, width, heads->epsilon);
        for (size_t c = 0; c < width; c++) x[c] = x[c] * inverse * weight[c];
        if (heads->cosines)
            rotate(x, heads->cosines + row * heads->pairs, heads->sines + row * heads->pairs, heads->pairs);
    }
}

static void normalize_heads(const Engine *engine, HeadTask *task) {
    pool_run(engine->pool, 2 * task->count * row_tasks(task->rows), normalize_head_rows, task);
}

/* ---- is every value finite? ---- */

static bool all_finite(const float *values, size_t count) {
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !found;
}

typedef struct {
    const float *values;
    size_t rows, columns;
    atomic_bool spoiled;
} FiniteTask;

static void check_rows(void *context, size_t task, size_t worker) {
    FiniteTask *const finite = context;
    const size_t first = task * ROWS_OF_TASK, end = smaller(finite->rows, first + ROWS_OF_TASK);
    (void)worker;
    if (!all_finite(finite->values + first * finite->columns, (end - first) * finite->columns))
        atomic_store_explicit(&finite->spoiled, true, memory_order_relaxed);
}

static bool rows_finite(const Engine *engine, const float *values, size_t rows, size_t columns) {
    FiniteTask task = {.values = values, .rows = rows, .columns = columns};
    atomic_init(&task.spoiled, false);
    pool_run(engine->pool, row_tasks(rows), check_rows, &task);
    return !atomic_load_explicit(&task.spoiled, memory_order_relaxed);
}

/* ---- SiLU ---- */

static void silu(const float *x, size_t count, float *y) {
    for (size_t i = 0; i < count; i++) y[i] = x[i] / (1.0f + expf(-x[i]));
}
