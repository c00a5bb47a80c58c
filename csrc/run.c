/* The handles: opening a model, preparing a run, one step of it, and the order in which memory goes away. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

/* ---- the model ---- */

static void modulation_release(Modulation *modulation) {
    if (!modulation || atomic_fetch_sub(&modulation->references, 1) > 1) return;
    for (size_t i = 0; modulation->blocks && i < modulation->block_count; i++) free(modulation->blocks[i]);
    free(modulation->blocks);
    free(modulation->timesteps);
    free(modulation->frequencies);
    free(modulation->embedding);
    free(modulation->final);
    free(modulation);
}

static void model_release(h3_model *model) {
    if (!model || atomic_fetch_sub(&model->references, 1) > 1) return;
    pool_destroy(model->engine.pool);
    for (size_t i = 0; model->engine.scratch && i < model->engine.threads; i++) free(model->engine.scratch[i]);
    free(model->engine.scratch);
    modulation_release(model->recent);
    for (size_t i = 0; i < model->owned_count; i++) free(model->owned[i]);
    free(model->owned);
    free(model->blocks);
    free(model->refiner);
    gguf_close(&model->file);
    pthread_mutex_destroy(&model->computing);
    free(model->path);
    free(model);
}

/* These kernels where they pass their own test, else the plain ones and a note that says so. */
static const Kernels *trusted_kernels(const Kernels *fastest, char *note, size_t note_size) {
    const char *const wrong = selftest(fastest);
    if (note_size) note[0] = '\0';
    if (!wrong) return fastest;
    snprintf(note, note_size,
             "The %s kernels gave a wrong result for %s on this processor, so the plain ones are used.",
             fastest->name, wrong);
    return plain_kernels();
}

static int choose_kernels(h3_model *model, const char *wanted, Failure *error) {
    const char *const forced = wanted ? wanted : getenv("H3_KERNELS");
    if (forced && *forced) {
        model->kernels = kernels_named(forced, error);
        return model->kernels != NULL;
    }
    model->kernels = trusted_kernels(fastest_kernels(), model->kernels_note, sizeof model->kernels_note);
    return 1;
}

static int start_engine(h3_model *model, const h3_options *options, Failure *error) {
    const int threads = options->threads;
    if (threads < 0 || threads > MOST_THREADS)
        return fail(error, "%d threads cannot be used; 0 (choose) to %d can.", threads, MOST_THREADS);
    Engine *const engine = &model->engine;
    engine->threads = threads ? (size_t)threads : available_processors();
    engine->kernels = model->kernels;
    engine->round_inputs = options->round_inputs != 0;
    engine->scratch = allocate(engine->threads, sizeof *engine->scratch);
    size_t floats = attention_scratch(model->config.head_width);
    if (floats < gemm_scratch()) floats = gemm_scratch();
    for (size_t i = 0; engine->scratch && i < engine->threads; i++) {
        engine->scratch[i] = allocate_floats(1, floats);
        if (!engine->scratch[i]) return fail(error, "There is not enough memory for %zu threads.", engine->threads);
    }
    if (!engine->scratch) return fail(error, "There is not enough memory for %zu threads.", engine->threads);
    engine->pool = pool_create(engine->threads, error);
    return engine->pool != NULL;
}

static int open_model(h3_model *model, const char *path, const h3_options *options, Failure *error) {
    model->path = allocate(strlen(path) + 1, 1);
    if (!model->path) return fail(error, "%s: not enough memory.", path);
    memcpy(model->path, path, strlen(path) + 1);
    return gguf_open(&model->file, model->path, error) && model_load(model, error) &&
           choose_kernels(model, options->kernels, error) && start_engine(model, options, error);
}

int h3_open(const char *path, const h3_options *options, h3_model **model, char *error, size_t error_size) {
    Failure failure = start_failure(error, error_size);
    const h3_options defaults = H3_OPTIONS_DEFAULT;
    *model = NULL;
    h3_model *const opened = allocate(1, sizeof *opened);
    if (!opened) return fail(&failure, "%s: not enough memory.", path);
    atomic_init(&opened->references, 1);
    pthread_mutex_init(&opened->computing, NULL);
    if (!open_model(opened, path, options ? options : &defaults, &failure)) {
        model_release(opened);
        return 0;
    }
    *model = opened;
    return 1;
}

void h3_close(h3_model *model) {
    model_release(model);
}

void h3_get_config(const h3_model *model, h3_config *config) {
    *config = model->config;
}

size_t h3_threads(const h3_model *model) {
    return model->engine.threads;
}

const char *h3_kernels(const h3_model *model) {
    return model->kernels->name;
}

int h3_rounds_inputs(const h3_model *model) {
    return model->engine.round_inputs && model->kernels->multiply_levels != NULL;
}

const char *h3_kernels_note(const h3_model *model) {
    return model->kernels_note;
}

const char *h3_trusted_kernels(char *note, size_t note_size) {
    return trusted_kernels(fastest_kernels(), note, note_size)->name;
}

size_t h3_processors(void) {
    return available_processors();
}

const char *h3_version(void) {
    return H3_VERSION;
}

/* ---- how much memory ---- */

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

typedef struct {
    size_t branch, wide, packed; /* floats a packed row */
    size_t packed_time;          /* floats a timestep */
    size_t row;                  /* floats a packed row, all together */
    size_t timestep;             /* floats a distinct timestep */
} Needs;

static Needs needs_of(const h3_config *config) {
    const size_t inner = config->heads * config->head_width;
    Needs needs = {
        .branch = larger(config->hidden, inner),
        .wide = larger(3 * inner, config->feed_forward),
        .packed = larger(larger(config->hidden, inner), config->feed_forward),
        .packed_time = larger(larger(config->time_frequencies, config->time_hidden), config->time_width),
        .timestep = MODALITIES * SLOTS * config->hidden * config->blocks + 2 * config->hidden +
                    config->time_frequencies + config->time_width + 1,
    };
    needs.packed = larger(needs.packed, larger(config->video_width, larger(config->audio_width, config->text_width)));
    needs.row = config->hidden + needs.branch + needs.wide + needs.packed + 6 * config->rope_frequencies;
    return needs;
}

/* Rows and columns of either kind are bounded, so that sums of a few of them cannot overflow. */
static int check_count(size_t count, const char *what, Failure *error) {
    return count <= 1u << 24 ? 1 : fail(error, "%zu %s are too many.", count, what);
}

int h3_memory(const h3_model *model, size_t rows, size_t text_rows, size_t timesteps, size_t *bytes, char *error,
              size_t error_size) {
    Failure failure = start_failure(error, error_size);
    const Needs needs = needs_of(&model->config);
    if (!check_count(rows, "rows", &failure) || !check_count(text_rows, "text rows", &failure) ||
        !check_count(timesteps, "timesteps", &failure))
        return 0;
    size_t row_floats, text_floats, time_floats, floats;
    if (!multiply_size(rows, needs.row, &row_floats) ||
        !multiply_size(text_rows, model->config.hidden, &text_floats) ||
        !multiply_size(timesteps, needs.timestep, &time_floats) || !add_size(row_floats, text_floats, &floats) ||
        !add_size(floats, time_floats, &floats) || !multiply_size(floats, sizeof(float), bytes))
        return fail(&failure, "A run of %zu rows needs more memory than can be counted.", rows);
    return 1;
}

/* ---- modulation tables ---- */

static size_t find_timestep(const Modulation *modulation, float timestep) {
    size_t i = 0;
    while (i < modulation->timestep_count && modulation->timesteps[i] != timestep) i++;
    return i;
}

static bool holds_all(const Modulation *modulation, const float *timesteps, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (find_timestep(modulation, timesteps[i]) == modulation->timestep_count) return false;
    }
    return true;
}

static Modulation *modulation_create(const h3_config *config, const float *timesteps, size_t count) {
    Modulation *const made = allocate(1, sizeof *made);
    if (!made) return NULL;
    atomic_init(&made->references, 1);
    made->block_count = config->blocks;
    made->timesteps = allocate_floats(1, count);
    made->blocks = allocate(config->blocks, sizeof *made->blocks);
    bool good = made->timesteps && made->blocks;
    for (size_t i = 0; good && i < count; i++) {
        if (find_timestep(made, timesteps[i]) == made->timestep_count)
            made->timesteps[made->timestep_count++] = timesteps[i];
    }
    const size_t distinct = made->timestep_count;
    made->frequencies = allocate_floats(distinct, config->time_frequencies);
    made->embedding = allocate_floats(distinct, config->time_width);
    made->final = allocate_floats(distinct, 2 * config->hidden);
    good = good && made->frequencies && made->embedding && made->final;
    for (size_t i = 0; good && i < config->blocks; i++)
        good = (made->blocks[i] = allocate_floats(distinct, MODALITIES * SLOTS * config->hidden)) != NULL;
    if (good) return made;
    modulation_release(made);
    return NULL;
}

/* `hidden`, `activated`, `bias`, `packed` are memory, see build_modulation. */
static int fill_modulation(const h3_model *model, Modulation *made, float *hidden, float *activated, float *bias,
                           float *packed, const Watcher *watcher) {
    const h3_config *const config = &model->config;
    const size_t count = made->timestep_count;
    embed_time(model, made, hidden, packed);
    silu(made->embedding, count * config->time_width, activated);
    for (size_t i = 0; i < config->blocks; i++) {
        const Block *const block = &model->blocks[i];
        if (!report(watcher, i, config->blocks)) return 0;
        modulate(model, &block->adaln, &block->adaln_bias, activated, count, bias, packed, made->blocks[i]);
        if (!rows_finite(&model->engine, made->blocks[i], count * MODALITIES, SLOTS * config->hidden))
            return fail(watcher->error, "The modulation of block %zu has a value that is not finite.", i);
    }
    modulate(model, &model->final_adaln, &model->final_adaln_bias, activated, count, bias, packed, made->final);
    if (!rows_finite(&model->engine, made->final, count, 2 * config->hidden))
        return fail(watcher->error, "The modulation of the output layer has a value that is not finite.");
    return report(watcher, config->blocks, config->blocks);
}

static Modulation *build_modulation(const h3_model *model, const float *timesteps, size_t count,
                                    const Watcher *watcher) {
    const h3_config *const config = &model->config;
    Modulation *made = modulation_create(config, timesteps, count);
    float *const hidden = allocate_floats(count, config->time_hidden);
    float *const activated = allocate_floats(count, config->time_width);
    float *const bias = allocate_floats(MODALITIES * SLOTS, config->hidden);
    float *const packed = allocate_floats(count, needs_of(config).packed_time);
    bool good = made && hidden && activated && bias && packed;
    if (!good) fail(watcher->error, "There is not enough memory for the modulation of %zu timesteps.", count);
    if (good) good = fill_modulation(model, made, hidden, activated, bias, packed, watcher);
    free(packed);
    free(bias);
    free(activated);
    free(hidden);
    if (good) return made;
    modulation_release(made);
    return NULL;
}

/* The latest tables where they hold all these timesteps, else new ones. The caller owns one reference. */
static Modulation *modulation_for(h3_model *model, const float *timesteps, size_t count, const Watcher *watcher) {
    if (!model->recent || !holds_all(model->recent, timesteps, count)) {
        modulation_release(model->recent);
        model->recent = build_modulation(model, timesteps, count, watcher);
        if (!model->recent) return NULL;
    }
    atomic_fetch_add(&model->recent->references, 1);
    return model->recent;
}

/* ---- preparing a run ---- */

void h3_release(h3_run *run) {
    if (!run) return;
    free(run->tags);
    free(run->video_indices);
    free(run->audio_indices);
    free(run->text_indices);
    free(run->cosines);
    free(run->sines);
    free(run->text);
    free(run->timestep_of);
    free(run->modulation_of);
    free(run->x);
    free(run->branch);
    free(run->wide);
    free(run->packed);
    modulation_release(run->modulation);
    model_release(run->model);
    free(run);
}

static int check_places(const int64_t *indices, size_t count, size_t rows, const char *kind, uint8_t *seen,
                        Failure *error) {
    for (size_t i = 0; i < count; i++) {
        if (indices[i] < 0 || (uint64_t)indices[i] >= rows)
            return fail(error, "%s row %zu is placed at %lld, outside of the %zu packed rows.", kind, i,
                        (long long)indices[i], rows);
        if (seen[indices[i]]++)
            return fail(error, "Packed row %lld is named twice by the index lists.", (long long)indices[i]);
    }
    return 1;
}

static int check_rows_of(const h3_sequence *sequence, uint8_t *seen, Failure *error) {
    if (!check_places(sequence->video_indices, sequence->video_rows, sequence->rows, "Video", seen, error) ||
        !check_places(sequence->audio_indices, sequence->audio_rows, sequence->rows, "Audio", seen, error) ||
        !check_places(sequence->text_indices, sequence->text_rows, sequence->rows, "Text", seen, error))
        return 0;
    for (size_t row = 0; row < sequence->rows; row++) {
        if (sequence->tags[row] < 0 || sequence->tags[row] >= MODALITIES)
            return fail(error, "Packed row %zu has tag %lld; 0 video, 1 text and 2 audio are known.", row,
                        (long long)sequence->tags[row]);
        for (size_t axis = 0; axis < 3; axis++) {
            if (!isfinite(sequence->positions[3 * row + axis]))
                return fail(error, "Packed row %zu has a position that is not finite.", row);
        }
    }
    return 1;
}

static int check_sequence(const h3_sequence *sequence, Failure *error) {
    const size_t rows = sequence->rows;
    if (!rows) return fail(error, "The sequence is empty.");
    if (!check_count(rows, "packed rows", error)) return 0;
    if (sequence->video_rows > rows || sequence->audio_rows > rows || sequence->text_rows > rows ||
        sequence->video_rows + sequence->audio_rows + sequence->text_rows != rows)
        return fail(error, "%zu video, %zu audio and %zu text rows are not the %zu rows of the sequence.",
                    sequence->video_rows, sequence->audio_rows, sequence->text_rows, rows);
    uint8_t *const seen = allocate(rows, 1);
    if (!seen) return fail(error, "There is not enough memory for %zu rows.", rows);
    const int good = check_rows_of(sequence, seen, error);
    free(seen);
    return good;
}

static int check_timesteps(const float *timesteps, size_t count, Failure *error) {
    if (!count) return fail(error, "No timestep was asked for.");
    if (!check_count(count, "timesteps", error)) return 0;
    for (size_t i = 0; i < count; i++) {
        if (!(timesteps[i] >= 0.0f && timesteps[i] <= 1.0f))
            return fail(error, "Timestep %g is not between 0 (noise) and 1 (clean).", (double)timesteps[i]);
    }
    return 1;
}

static int64_t *copy_integers(const int64_t *source, size_t count) {
    int64_t *const copy = allocate(count, sizeof *copy);
    if (copy && count) memcpy(copy, source, count * sizeof *copy);
    return copy;
}

static bool run_allocate(h3_run *run, const h3_sequence *sequence) {
    const h3_config *const config = &run->model->config;
    const Needs needs = needs_of(config);
    const size_t rows = run->rows = sequence->rows;
    run->video_rows = sequence->video_rows;
    run->audio_rows = sequence->audio_rows;
    run->text_rows = sequence->text_rows;
    return (run->tags = copy_integers(sequence->tags, rows)) &&
           (run->video_indices = copy_integers(sequence->video_indices, run->video_rows)) &&
           (run->audio_indices = copy_integers(sequence->audio_indices, run->audio_rows)) &&
           (run->text_indices = copy_integers(sequence->text_indices, run->text_rows)) &&
           (run->cosines = allocate_floats(rows, 3 * config->rope_frequencies)) &&
           (run->sines = allocate_floats(rows, 3 * config->rope_frequencies)) &&
           (run->text = allocate_floats(run->text_rows, config->hidden)) &&
           (run->timestep_of = allocate(rows, sizeof *run->timestep_of)) &&
           (run->modulation_of = allocate(rows, sizeof *run->modulation_of)) &&
           (run->x = allocate_floats(rows, config->hidden)) &&
           (run->branch = allocate_floats(rows, needs.branch)) && (run->wide = allocate_floats(rows, needs.wide)) &&
           (run->packed = allocate_floats(rows, needs.packed));
}

static int prepare_text(h3_run *run, const float *text, const Watcher *watcher) {
    const size_t count = run->text_rows * run->model->config.text_width;
    if (count && !all_finite(text, count))
        return fail(watcher->error, "The text conditioning holds a value that is not finite.");
    const Stream stream = {
        .model = run->model, .x = run->text, .branch = run->branch, .wide = run->wide, .packed = run->packed,
        .rows = run->text_rows, .watcher = watcher,
    };
    return refine_text(&stream, text);
}

static int prepare_run(h3_run *run, const h3_sequence *sequence, const float *text, const float *timesteps,
                       size_t timestep_count, const Watcher *watcher) {
    if (!check_sequence(sequence, watcher->error) || !check_timesteps(timesteps, timestep_count, watcher->error))
        return 0;
    if (!run_allocate(run, sequence))
        return fail(watcher->error, "There is not enough memory for a run of %zu rows.", sequence->rows);
    rotary_tables(run->model, sequence->positions, run->rows, run->cosines, run->sines);
    if (!prepare_text(run, text, watcher)) return 0;
    run->modulation = modulation_for(run->model, timesteps, timestep_count, watcher);
    return run->modulation != NULL;
}

int h3_prepare(h3_model *model, const h3_sequence *sequence, const float *text, const float *timesteps,
               size_t timestep_count, h3_progress progress, void *progress_context, h3_run **run, char *error,
               size_t error_size) {
    Failure failure = start_failure(error, error_size);
    const Watcher watcher = {.progress = progress, .progress_context = progress_context, .error = &failure};
    *run = NULL;
    h3_run *const made = allocate(1, sizeof *made);
    if (!made) return fail(&failure, "There is not enough memory for a run.");
    made->model = model;
    atomic_fetch_add(&model->references, 1);
    pthread_mutex_lock(&model->computing);
    const int good = prepare_run(made, sequence, text, timesteps, timestep_count, &watcher);
    pthread_mutex_unlock(&model->computing);
    if (good) *run = made;
    else h3_release(made);
    return good;
}

/* ---- one step ---- */

static int check_step(const h3_run *run, const h3_step *step, Failure *error) {
    const h3_config *const config = &run->model->config;
    if ((run->video_rows && (!step->video || !step->video_velocity)) ||
        (run->audio_rows && (!step->audio || !step->audio_velocity)) || !step->row_timesteps)
        return fail(error, "Rows of this run are missing from the step.");
    if (!all_finite(step->video, run->video_rows * config->video_width))
        return fail(error, "The video rows hold a value that is not finite.");
    if (!all_finite(step->audio, run->audio_rows * config->audio_width))
        return fail(error, "The audio rows hold a value that is not finite.");
    return 1;
}

static int place_timesteps(const h3_run *run, const float *row_timesteps, Failure *error) {
    for (size_t row = 0; row < run->rows; row++) {
        const size_t index = find_timestep(run->modulation, row_timesteps[row]);
        if (index == run->modulation->timestep_count)
            return fail(error, "Packed row %zu asks for timestep %.9g, which this run was not prepared for.", row,
                        (double)row_timesteps[row]);
        run->timestep_of[row] = index;
        run->modulation_of[row] = index * MODALITIES + (size_t)run->tags[row];
    }
    return 1;
}

int h3_velocity(h3_run *run, const h3_step *step, char *error, size_t error_size) {
    Failure failure = start_failure(error, error_size);
    const Watcher watcher = {step->progress, step->progress_context, step->dump, step->dump_context, &failure};
    pthread_mutex_lock(&run->model->computing);
    const int good = check_step(run, step, &failure) && place_timesteps(run, step->row_timesteps, &failure) &&
                     forward(run, step, &watcher);
    pthread_mutex_unlock(&run->model->computing);
    return good;
}
