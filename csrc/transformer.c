/*
 * The equations. D hidden, I = heads * head width, F feed forward, E time width, S packed rows, n text rows,
 * M distinct timesteps. Every linear layer is y = x W^T + b.
 *
 * Reference: MiniMaxH3Transformer3DModel of diffusers 0.42, in float32.
 */
#include <math.h>
#include <string.h>

#include "model.h"

/* Callbacks and error of one call. */
typedef struct {
    h3_progress progress;
    void *progress_context;
    h3_dump dump;
    void *dump_context;
    Failure *error;
} Watcher;

static int cancelled(const Watcher *watcher) {
    return fail(watcher->error, "%s", H3_CANCELLED);
}

static int report(const Watcher *watcher, size_t done, size_t total) {
    if (watcher->progress && watcher->progress(watcher->progress_context, done, total)) return cancelled(watcher);
    return 1;
}

static int show_values(const Watcher *watcher, const char *values_name, const float *values, size_t rows,
                       size_t columns) {
    if (watcher->dump && watcher->dump(watcher->dump_context, values_name, values, rows, columns))
        return cancelled(watcher);
    return 1;
}

static void apply_linear(const Engine *engine, const Linear *linear, const float *input, const int64_t *gather,
                         size_t rows, float *packed, float *output) {
    const size_t columns = linear->weight.rows;
    const Product product = {
        .weight = &linear->weight, .bias = linear->bias, .input = input, .gather = gather, .tokens = rows,
        .packed = packed, .output = output, .block = columns, .block_stride = columns, .row_stride = columns,
    };
    gemm(engine, &product);
}

/* ---- time: temb = W2 silu(W1 e + b1) + b2, e = [cos(tau f), sin(tau f)], f_k = 10000^(-k / K) ---- */

static void embed_frequencies(const float *timesteps, size_t count, size_t width, float *output) {
    const size_t half = width / 2;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < half; k++) {
            const float exponent = -(float)log(10000.0) * (float)k / (float)half;
            const float angle = timesteps[i] * expf(exponent);
            output[i * width + k] = cosf(angle);
            output[i * width + half + k] = sinf(angle);
        }
    }
}

/* `hidden` holds M * time hidden floats. */
static void embed_time(const h3_model *model, Modulation *modulation, float *hidden, float *packed) {
    const h3_config *const config = &model->config;
    const size_t count = modulation->timestep_count;
    embed_frequencies(modulation->timesteps, count, config->time_frequencies, modulation->frequencies);
    apply_linear(&model->engine, &model->time_in, modulation->frequencies, NULL, count, packed, hidden);
    silu(hidden, count * config->time_hidden, hidden);
    apply_linear(&model->engine, &model->time_out, hidden, NULL, count, packed, modulation->embedding);
}

/* ---- modulation: m = silu(temb) W^T + b, for every timestep ---- */

/* Reads the weights once and then gives their pages back. `bias` holds weight->rows floats. */
static void modulate(const h3_model *model, const Matrix *weight, const Matrix *bias_row, const float *activated,
                     size_t count, float *bias, float *packed, float *table) {
    unpack_row(bias_row, bias);
    const Linear linear = {*weight, bias};
    apply_linear(&model->engine, &linear, activated, NULL, count, packed, table);
    gguf_give_back(&model->file, weight->data, weight->rows * weight->row_bytes);
    gguf_give_back(&model->file, bias_row->data, bias_row->row_bytes);
}

/* ---- rotary: angles t * inv, h * inv, w * inv ---- */

static void rotary_tables(const h3_model *model, const double *positions, size_t rows, float *cosines,
                          float *sines) {
    const size_t count = model->config.rope_frequencies;
    for (size_t row = 0; row < rows; row++) {
        for (size_t axis = 0; axis < 3; axis++) {
            const float position = (float)positions[3 * row + axis];
            for (size_t j = 0; j < count; j++) {
                const float angle = position * model->inverse_frequencies[j];
                cosines[(3 * row + axis) * count + j] = cosf(angle);
                sines[(3 * row + axis) * count + j] = sinf(angle);
            }
        }
    }
}

/* ---- one block ---- */

/* What a block works on: S packed rows with modulation and rotation, or n text rows with neither. */
typedef struct {
    const h3_model *model;
    float *x, *branch, *wide, *packed; /* as in h3_run */
    size_t rows;
    ModulationView modulation;
    const float *cosines, *sines; /* NULL: no rotation */
    const Watcher *watcher;
    const char *label; /* "block3": the start of dumped names; NULL dumps nothing */
} Stream;

static int show_branch(const Stream *stream, const char *what) {
    if (!stream->label || !stream->watcher->dump) return 1;
    return show_values(stream->watcher, make_name("%s_%s", stream->label, what).text, stream->branch, stream->rows,
                       stream->model->config.hidden);
}

/* branch = RMS(x; weight) * (1 + scale) + shift */
static void normalize_stream(const Stream *stream, const float *weight, size_t shift, size_t scale) {
    const h3_config *const config = &stream->model->config;
    NormTask task = {
        .input = stream->x, .output = stream->branch, .weight = weight, .rows = stream->rows,
        .columns = config->hidden, .epsilon = config->norm_epsilon, .modulation = stream->modulation,
        .shift = shift, .scale = scale,
    };
    normalize(&stream->model->engine, &task);
}

/* x += gate * branch */
static void add_branch(const Stream *stream, size_t gate) {
    ResidualTask task = {
        .x = stream->x, .y = stream->branch, .rows = stream->rows, .columns = stream->model->config.hidden,
        .modulation = stream->modulation, .gate = gate,
    };
    add_residual(&stream->model->engine, &task);
}

/* branch = Attn(branch) = softmax(rot(RMS(q)) rot(RMS(k))^T / sqrt(width)) v Wo^T */
static void attend_stream(const Stream *stream, const Block *block) {
    const h3_config *const config = &stream->model->config;
    const Engine *const engine = &stream->model->engine;
    const size_t width = config->head_width, rows = stream->rows;
    const Product heads = {
        .weight = &block->qkv, .input = stream->branch, .tokens = rows, .packed = stream->packed,
        .output = stream->wide, .block = width, .block_stride = rows * width, .row_stride = width,
    };
    gemm(engine, &heads);
    HeadTask task = {
        .heads = stream->wide, .count = config->heads, .rows = rows, .width = width, .q_norm = block->q_norm,
        .k_norm = block->k_norm, .epsilon = config->qk_norm_epsilon, .cosines = stream->cosines,
        .sines = stream->sines, .pairs = 3 * config->rope_frequencies,
    };
    normalize_heads(engine, &task);
    attention(engine, stream->wide, config->heads, rows, width, stream->branch);
    const Linear out = {block->out, NULL};
    apply_linear(engine, &out, stream->branch, NULL, rows, stream->packed, stream->branch);
}

/* branch = FF(branch) = (silu(u[:F]) * u[F:]) Wfc2^T, u = branch Wfc1^T */
static void feed_forward(const Stream *stream, const Block *block) {
    const Engine *const engine = &stream->model->engine;
    const size_t inner = stream->model->config.feed_forward;
    const Product gated = {
        .weight = &block->fc1, .input = stream->branch, .tokens = stream->rows, .packed = stream->packed,
        .output = stream->wide, .block = inner, .block_stride = inner, .row_stride = inner, .swiglu = true,
    };
    gemm(engine, &gated);
    const Linear down = {block->fc2, NULL};
    apply_linear(engine, &down, stream->wide, NULL, stream->rows, stream->packed, stream->branch);
}

/* x += gate * Attn(RMS(x) modulated); x += gate * FF(RMS(x) modulated) */
static int apply_block(const Stream *stream, const Block *block) {
    normalize_stream(stream, block->norm1, SHIFT_ATTENTION, SCALE_ATTENTION);
    if (!show_branch(stream, "attn_in")) return 0;
    attend_stream(stream, block);
    if (!show_branch(stream, "attn_out")) return 0;
    add_branch(stream, GATE_ATTENTION);
    normalize_stream(stream, block->norm2, SHIFT_FEED, SCALE_FEED);
    if (!show_branch(stream, "ff_in")) return 0;
    feed_forward(stream, block);
    if (!show_branch(stream, "ff_out")) return 0;
    add_branch(stream, GATE_FEED);
    return 1;
}

static int check_finite(const Stream *stream, const char *where, size_t index) {
    if (rows_finite(&stream->model->engine, stream->x, stream->rows, stream->model->config.hidden)) return 1;
    return fail(stream->watcher->error, "%s %zu produced a value that is not finite.", where, index);
}

/* ---- text: C = Xt Wc^T + bc, the refiner's blocks, a final norm ---- */

/* stream->x becomes the refined text; its rows are the text's. */
static int refine_text(const Stream *stream, const float *text) {
    const h3_model *const model = stream->model;
    const h3_config *const config = &model->config;
    if (!stream->rows) return 1;
    apply_linear(&model->engine, &model->text_in, text, NULL, stream->rows, stream->packed, stream->x);
    for (size_t i = 0; i < config->refiner_blocks; i++) {
        if (!apply_block(stream, &model->refiner[i]) || !check_finite(stream, "Refiner block", i)) return 0;
    }
    NormTask task = {
        .input = stream->x, .output = stream->x, .weight = model->refiner_norm, .rows = stream->rows,
        .columns = config->hidden, .epsilon = config->final_norm_epsilon,
    };
    normalize(&model->engine, &task);
    return 1;
}

/* ---- packing and the output heads ---- */

static void scatter(const float *rows, const int64_t *places, size_t count, size_t columns, float *x) {
    for (size_t i = 0; i < count; i++)
        memcpy(x + (size_t)places[i] * columns, rows + i * columns, columns * sizeof *x);
}

/* x [S, D] from text, video and audio rows, each by its own projection. */
static void pack_rows(const h3_run *run, const h3_step *step) {
    const h3_model *const model = run->model;
    const size_t hidden = model->config.hidden;
    scatter(run->text, run->text_indices, run->text_rows, hidden, run->x);
    apply_linear(&model->engine, &model->video_in, step->video, NULL, run->video_rows, run->packed, run->branch);
    scatter(run->branch, run->video_indices, run->video_rows, hidden, run->x);
    apply_linear(&model->engine, &model->audio_in, step->audio, NULL, run->audio_rows, run->packed, run->branch);
    scatter(run->branch, run->audio_indices, run->audio_rows, hidden, run->x);
}

/* branch = RMS(x; final norm) * (1 + scale[t]) + shift[t], then a head for each kind of row. */
static int apply_heads(const h3_run *run, const h3_step *step, const Watcher *watcher) {
    const h3_model *const model = run->model;
    const h3_config *const config = &model->config;
    NormTask task = {
        .input = run->x, .output = run->branch, .weight = model->final_norm, .rows = run->rows,
        .columns = config->hidden, .epsilon = config->final_norm_epsilon,
        .modulation = {run->modulation->final, 2 * config->hidden, run->timestep_of}, .shift = 0, .scale = 1,
    };
    normalize(&model->engine, &task);
    if (!show_values(watcher, "norm_out", run->branch, run->rows, config->hidden)) return 0;
    apply_linear(&model->engine, &model->video_out, run->branch, run->video_indices, run->video_rows, run->packed,
                 step->video_velocity);
    apply_linear(&model->engine, &model->audio_out, run->branch, run->audio_indices, run->audio_rows, run->packed,
                 step->audio_velocity);
    return 1;
}

/* ---- the whole pass ---- */

static int show_inputs(const h3_run *run, const Watcher *watcher) {
    const h3_config *const config = &run->model->config;
    const Modulation *const modulation = run->modulation;
    const size_t pairs = 3 * config->rope_frequencies;
    return show_values(watcher, "time_proj", modulation->frequencies, modulation->timestep_count,
                       config->time_frequencies) &&
           show_values(watcher, "temb", modulation->embedding, modulation->timestep_count, config->time_width) &&
           show_values(watcher, "refined_text", run->text, run->text_rows, config->hidden) &&
           show_values(watcher, "rope_cos", run->cosines, run->rows, pairs) &&
           show_values(watcher, "rope_sin", run->sines, run->rows, pairs) &&
           show_values(watcher, "packed_input", run->x, run->rows, config->hidden);
}

static int run_block(const h3_run *run, size_t index, const Watcher *watcher) {
    const h3_model *const model = run->model;
    const h3_config *const config = &model->config;
    const Modulation *const modulation = run->modulation;
    const size_t table_width = SLOTS * config->hidden;
    const Name label = make_name("block%zu", index);
    const Stream stream = {
        .model = model, .x = run->x, .branch = run->branch, .wide = run->wide, .packed = run->packed,
        .rows = run->rows, .modulation = {modulation->blocks[index], table_width, run->modulation_of},
        .cosines = run->cosines, .sines = run->sines, .watcher = watcher, .label = label.text,
    };
    return show_values(watcher, make_name("%s_adaln", label.text).text, modulation->blocks[index],
                       modulation->timestep_count * MODALITIES, table_width) &&
           apply_block(&stream, &model->blocks[index]) && check_finite(&stream, "Block", index) &&
           show_values(watcher, make_name("%s_out", label.text).text, run->x, run->rows, config->hidden);
}

static int forward(const h3_run *run, const h3_step *step, const Watcher *watcher) {
    const h3_model *const model = run->model;
    const size_t blocks = model->config.blocks;
    pack_rows(run, step);
    if (!rows_finite(&model->engine, run->x, run->rows, model->config.hidden))
        return fail(watcher->error, "The input projections produced a value that is not finite.");
    if (!show_inputs(run, watcher)) return 0;
    for (size_t i = 0; i < blocks; i++) {
        if (!report(watcher, i, blocks) || !run_block(run, i, watcher)) return 0;
    }
    if (!report(watcher, blocks, blocks) || !apply_heads(run, step, watcher)) return 0;
    if (!rows_finite(&model->engine, step->video_velocity, run->video_rows, model->config.video_width) ||
        !rows_finite(&model->engine, step->audio_velocity, run->audio_rows, model->config.audio_width))
        return fail(watcher->error, "The output layer produced a value that is not finite.");
    return 1;
}
