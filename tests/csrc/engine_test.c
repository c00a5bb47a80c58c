/*
 * The engine's own test program, for what Python cannot see: sanitizers, other processors, broken kernels.
 *
 *     engine_test units                                  checks of the parts
 *     engine_test open FILE ...                          opens each file and prints what it says
 *     engine_test forward MODEL CASE OUT THREADS KERNELS one forward pass; CASE as written by test_csrc.py
 */
#include "../../csrc/h3.c" /* first: it says which system functions it needs */

static int failures;

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            failures++;                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
        }                                                                         \
    } while (0)

/* ---- units ---- */

static void test_sizes(void) {
    size_t result;
    CHECK(multiply_size(3, 4, &result) && result == 12);
    CHECK(multiply_size(0, SIZE_MAX, &result) && result == 0);
    CHECK(!multiply_size(SIZE_MAX / 2, 3, &result));
    CHECK(add_size(SIZE_MAX - 1, 1, &result) && result == SIZE_MAX);
    CHECK(!add_size(SIZE_MAX, 1, &result));
    CHECK(allocate_floats(SIZE_MAX / 8, 4) == NULL);
}

static void test_first_error_wins(void) {
    char text[8] = "before";
    Failure failure = start_failure(text, sizeof text);
    CHECK(text[0] == '\0');
    CHECK(fail(&failure, "%s", "the first, cut") == 0);
    CHECK(fail(&failure, "second") == 0);
    CHECK(strcmp(text, "the fir") == 0);
    Failure nowhere = start_failure(NULL, 0);
    CHECK(fail(&nowhere, "unseen") == 0);
}

typedef struct {
    atomic_int taken[100];
    size_t workers;
} Counting;

static void count_task(void *context, size_t task, size_t worker) {
    Counting *const counting = context;
    CHECK(worker < counting->workers);
    atomic_fetch_add(&counting->taken[task], 1);
}

static void test_pool(void) {
    for (size_t threads = 1; threads <= 5; threads++) {
        char text[100];
        Failure failure = start_failure(text, sizeof text);
        Pool *const pool = pool_create(threads, &failure);
        CHECK(pool != NULL);
        for (size_t tasks = 0; pool && tasks <= 100; tasks += tasks < 5 ? 1 : 19) {
            Counting counting = {.workers = threads};
            for (size_t i = 0; i < 100; i++) atomic_init(&counting.taken[i], 0);
            pool_run(pool, tasks, count_task, &counting);
            for (size_t i = 0; i < 100; i++) CHECK(atomic_load(&counting.taken[i]) == (i < tasks));
        }
        pool_destroy(pool);
    }
}

/* ---- kernels ---- */

static void wrong_unpack(const uint8_t *source, size_t count, float *target) {
    unpack_q6_k(source, count, target);
    target[77] += 1.0f;
}

static void wrong_interleave(const float *rows, size_t stride, size_t count, size_t k, float *panel) {
    plain_interleave(rows, stride, count, k, panel);
    panel[3] = 0.5f;
}

static void wrong_multiply(const float *panel, const float *input, size_t token_stride, size_t k_stride, size_t k,
                           size_t tokens, float *output, size_t output_stride, bool accumulate) {
    (void)accumulate;
    plain_multiply(panel, input, token_stride, k_stride, k, tokens, output, output_stride, false);
}

static void wrong_softmax(float *scores, size_t keys, float *maximum, float *sum, float *factor) {
    plain_softmax(scores, keys, maximum, sum, factor);
    sum[5] *= 1.001f;
}

static void wrong_silu(const float *gate, const float *value, size_t count, float *target) {
    plain_silu_multiply(gate, value, count, target);
    target[count - 1] = NAN;
}

static void wrong_levels(const LevelPanel *panel, const Rounded *input, size_t group_stride, size_t groups,
                         size_t tokens, float *output, size_t output_stride, bool accumulate) {
    plain_multiply_levels(panel, input, group_stride, groups - 1, tokens, output, output_stride, accumulate);
}

/* A self-test that cannot fail protects nothing. */
static void test_selftest_finds_faults(void) {
    const Kernels *sets[MOST_KERNELS];
    const size_t count = available_kernels(sets);
    CHECK(count > 0 && sets[count - 1] == plain_kernels());
    for (size_t i = 0; i < count; i++) CHECK(selftest(sets[i]) == NULL);
    Kernels broken = *fastest_kernels();
    broken.unpack[FORMAT_Q6_K] = wrong_unpack;
    CHECK(selftest(&broken) && strcmp(selftest(&broken), "Q6_K") == 0);
    broken = *fastest_kernels();
    broken.interleave = wrong_interleave;
    CHECK(selftest(&broken) != NULL);
    broken = *fastest_kernels();
    broken.multiply = wrong_multiply;
    CHECK(selftest(&broken) && strcmp(selftest(&broken), "the matrix product") == 0);
    broken = *fastest_kernels();
    broken.multiply_levels = wrong_levels;
    CHECK(selftest(&broken) && strcmp(selftest(&broken), "the product with 8-bit inputs") == 0);
    broken = *fastest_kernels();
    broken.softmax = wrong_softmax;
    CHECK(selftest(&broken) && strcmp(selftest(&broken), "softmax") == 0);
    broken = *fastest_kernels();
    broken.silu_multiply = wrong_silu;
    CHECK(selftest(&broken) && strcmp(selftest(&broken), "SiLU") == 0);
    char note[200] = "before";
    CHECK(trusted_kernels(&broken, note, sizeof note) == plain_kernels());
    CHECK(strstr(note, "gave a wrong result for SiLU") && strstr(note, broken.name));
    CHECK(trusted_kernels(fastest_kernels(), note, sizeof note) == fastest_kernels() && note[0] == '\0');
}

static void check_unpacker_at_edges(int format, size_t count) {
    const size_t size = count / format_table()[format].elements * format_table()[format].bytes;
    uint8_t *const bytes = allocate(size, 1);
    float *const ours = allocate(count, sizeof *ours), *const theirs = allocate(count, sizeof *theirs);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(13 * i + count);
    fastest_kernels()->unpack[format](bytes, count, ours);
    format_table()[format].unpack(bytes, count, theirs);
    CHECK(memcmp(ours, theirs, count * sizeof *ours) == 0);
    free(bytes);
    free(ours);
    free(theirs);
}

/* Every byte pattern a block can have, through every set of kernels. */
static void test_unpackers(void) {
    const Kernels *sets[MOST_KERNELS];
    const size_t sets_count = available_kernels(sets);
    uint32_t state = 1;
    for (size_t i = 0; i < sets_count; i++) {
        for (int format = 0; format < FORMAT_COUNT; format++) {
            for (int turn = 0; turn < 200; turn++) CHECK(unpacking_agrees(sets[i], format, &state));
        }
    }
    /* Exact heap sizes, so that a sanitizer sees a step over; odd counts where rows may end within a vector. */
    for (int i = 0; i < FORMAT_COUNT; i++) check_unpacker_at_edges(i, format_table()[i].elements);
    for (size_t count = 2; count < 20; count++) {
        check_unpacker_at_edges(FORMAT_F16, count);
        check_unpacker_at_edges(FORMAT_BF16, count);
    }
}

/* ---- products and attention against sums in double ---- */

typedef struct {
    Engine engine;
    float *scratch[3];
} Bench;

static void bench_open(Bench *bench, const Kernels *kernels, size_t threads, size_t head_width) {
    char text[100];
    Failure failure = start_failure(text, sizeof text);
    *bench = (Bench){.engine = {.kernels = kernels, .threads = threads, .scratch = bench->scratch}};
    for (size_t i = 0; i < threads; i++)
        bench->scratch[i] = allocate_floats(1, larger(gemm_scratch(), attention_scratch(head_width)));
    bench->engine.pool = pool_create(threads, &failure);
    CHECK(bench->engine.pool != NULL);
}

static void bench_close(Bench *bench) {
    pool_destroy(bench->engine.pool);
    for (size_t i = 0; i < bench->engine.threads; i++) free(bench->scratch[i]);
}

static float *random_floats(size_t count, uint32_t *state) {
    float *const values = allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = random_float(state);
    return values;
}

static double dot(const float *a, const float *b, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static void check_product(const Kernels *kernels, size_t rows, size_t columns, size_t tokens, bool swiglu) {
    uint32_t state = (uint32_t)(rows + 7 * columns + 31 * tokens);
    float *const weight = random_floats(rows * columns, &state), *const bias = random_floats(rows, &state);
    float *const input = random_floats(tokens * columns, &state);
    float *const packed = random_floats(tokens * columns, &state);
    const size_t width = swiglu ? rows / 2 : rows;
    float *const output = random_floats(tokens * width, &state);
    const Matrix matrix = {(const uint8_t *)weight, rows, columns, columns * sizeof(float), FORMAT_F32};
    const Product product = {
        .weight = &matrix, .bias = swiglu ? NULL : bias, .input = input, .tokens = tokens, .packed = packed,
        .output = output, .block = width, .block_stride = width, .row_stride = width, .swiglu = swiglu,
    };
    Bench bench;
    bench_open(&bench, kernels, 1 + tokens % 3, 16);
    gemm(&bench.engine, &product);
    bench_close(&bench);
    for (size_t t = 0; t < tokens; t++) {
        for (size_t r = 0; r < width; r++) {
            const float *const x = input + t * columns;
            double expected = dot(weight + r * columns, x, columns);
            if (swiglu) expected = expected / (1.0 + exp(-expected)) * dot(weight + (width + r) * columns, x, columns);
            else expected += (double)bias[r];
            CHECK(fabs((double)output[t * width + r] - expected) <= 2e-5 * (1.0 + fabs(expected)));
        }
    }
    free(weight);
    free(bias);
    free(input);
    free(packed);
    free(output);
}

/* Rounded inputs as what they stand for, [count]. */
static void read_rounded(const float *values, size_t count, float *target) {
    for (size_t i = 0; i < count; i += ROUNDED) {
        const Rounded group = round_values(values + i);
        int8_t levels[ROUNDED];
        memcpy(levels, group.quads, sizeof levels);
        for (size_t j = 0; j < ROUNDED; j++) {
            target[i + j] = group.scale * (float)levels[j];
            CHECK(fabsf(target[i + j] - values[i + j]) <= 0.51f * group.scale);
        }
    }
}

static void check_rounded_product(const Kernels *kernels, int index, size_t rows, size_t columns, size_t tokens,
                                  bool swiglu) {
    const Format *const format = &format_table()[index];
    uint32_t state = (uint32_t)(rows + columns + tokens);
    const size_t row_bytes = columns / format->elements * format->bytes, width = swiglu ? rows / 2 : rows;
    uint8_t *const stored = allocate(rows, row_bytes);
    float *const weight = allocate(rows * columns, sizeof *weight), *const rounded = allocate(columns, sizeof *rounded);
    float *const input = random_floats(tokens * columns, &state), *const output = random_floats(tokens * width, &state);
    float *const packed = random_floats(tokens * columns, &state);
    for (size_t i = 0; i < rows * row_bytes; i++) {
        const size_t place = i % format->bytes; /* a half scale, and in two formats a half minimum, come first */
        const uint8_t exponent = format->elements == 32 ? 0x21 : 0x10;
        stored[i] = (uint8_t)(fabsf(random_float(&state)) * 255.0f);
        if (place < (index == FORMAT_Q4_0 ? 2 : 4)) stored[i] = place % 2 ? exponent : 0;
    }
    format->unpack(stored, rows * columns, weight);
    const Matrix matrix = {stored, rows, columns, row_bytes, index};
    const Product product = {
        .weight = &matrix, .input = input, .tokens = tokens, .packed = packed, .output = output,
        .block = width, .block_stride = width, .row_stride = width, .swiglu = swiglu,
    };
    Bench bench;
    bench_open(&bench, kernels, 1 + tokens % 3, 16);
    bench.engine.round_inputs = true;
    gemm(&bench.engine, &product);
    bench_close(&bench);
    for (size_t t = 0; t < tokens; t++) {
        if (kernels->multiply_levels) read_rounded(input + t * columns, columns, rounded);
        else memcpy(rounded, input + t * columns, columns * sizeof *rounded);
        for (size_t r = 0; r < width; r++) {
            double expected = dot(weight + r * columns, rounded, columns);
            const double other = dot(weight + (width + r) % rows * columns, rounded, columns);
            if (swiglu) expected = expected / (1.0 + exp(-expected)) * other;
            CHECK(fabs((double)output[t * width + r] - expected) <= 2e-5 * (1.0 + fabs(expected)));
        }
    }
    free(stored);
    free(weight);
    free(rounded);
    free(input);
    free(packed);
    free(output);
}

/* What no integer can say must not be lost. */
static void test_rounding_keeps_faults(void) {
    float values[ROUNDED] = {0};
    CHECK(round_values(values).scale == 0.0f && round_values(values).sum == 0.0f);
    values[7] = 1e-38f;
    CHECK(isfinite(round_values(values).scale));
    values[7] = 3e38f;
    CHECK(isfinite(round_values(values).sum) && isfinite(round_values(values).scale));
    values[7] = NAN;
    CHECK(isnan(round_values(values).scale) && isnan(round_values(values).sum));
    values[7] = -INFINITY;
    CHECK(isnan(round_values(values).scale) && isnan(round_values(values).sum));
}

static void check_attention(const Kernels *kernels, size_t heads, size_t rows, size_t width) {
    uint32_t state = (uint32_t)(rows + width);
    float *const values = random_floats(3 * heads * rows * width, &state);
    float *const output = random_floats(rows * heads * width, &state);
    double *const weights = allocate(rows, sizeof *weights);
    Bench bench;
    bench_open(&bench, kernels, 1 + rows % 3, width);
    attention(&bench.engine, values, heads, rows, width, output);
    bench_close(&bench);
    const size_t plane = heads * rows * width;
    for (size_t head = 0; head < heads; head++) {
        for (size_t q = 0; q < rows; q++) {
            const float *const query = values + (head * rows + q) * width;
            const float *const keys = values + plane + head * rows * width;
            double sum = 0.0;
            for (size_t k = 0; k < rows; k++) sum += weights[k] = exp(dot(query, keys + k * width, width) / sqrt((double)width));
            for (size_t c = 0; c < width; c++) {
                double expected = 0.0;
                for (size_t k = 0; k < rows; k++) expected += weights[k] / sum * (double)keys[plane + k * width + c];
                CHECK(fabs((double)output[(q * heads + head) * width + c] - expected) <= 1e-5);
            }
        }
    }
    free(values);
    free(output);
    free(weights);
}

static void test_arithmetic(void) {
    const Kernels *sets[MOST_KERNELS];
    const size_t count = available_kernels(sets);
    for (size_t i = 0; i < count; i++) {
        for (size_t tokens = 1; tokens <= 26; tokens++) check_product(sets[i], 33, 21, tokens, false);
        for (size_t tokens = 1; tokens <= 26; tokens++)
            check_rounded_product(sets[i], FORMAT_Q4_0, 33, 32 + 32 * (tokens % 3), tokens, false);
        check_rounded_product(sets[i], FORMAT_Q4_1, 70, 352, 101, false);
        check_rounded_product(sets[i], FORMAT_Q4_K, 70, 512, 50, true);
        check_rounded_product(sets[i], FORMAT_Q4_0, 17, 64, CHUNK + 5, false);
        check_product(sets[i], 130, 300, 101, false);
        check_product(sets[i], 1, 1, 1, false);
        check_product(sets[i], 2 * 37, 40, 60, true);
        check_product(sets[i], 70, 9, CHUNK + 5, false);
        check_attention(sets[i], 2, 1, 16);
        check_attention(sets[i], 3, 70, 24);
        check_attention(sets[i], 1, KEY_BLOCK + 17, 10);
    }
}

static int run_units(void) {
    test_sizes();
    test_first_error_wins();
    test_pool();
    test_selftest_finds_faults();
    test_unpackers();
    test_arithmetic();
    test_rounding_keeps_faults();
    if (failures) fprintf(stderr, "%d checks failed\n", failures);
    return failures != 0;
}

/* ---- files ---- */

static int open_files(char **paths, int count) {
    for (int i = 0; i < count; i++) {
        char error[512];
        const h3_options options = {.threads = 2};
        h3_model *model;
        const int good = h3_open(paths[i], &options, &model, error, sizeof error);
        printf("%s\n", good ? "ok" : error);
        h3_close(model);
    }
    return 0;
}

/* ---- a forward pass ---- */

typedef struct {
    uint8_t *bytes;
    size_t at, size;
} Case;

static void *case_take(Case *input, size_t count, size_t size) {
    void *const part = input->bytes + input->at;
    input->at += count * size;
    if (input->at > input->size) abort();
    return part;
}

static Case case_read(const char *path) {
    FILE *const file = fopen(path, "rb");
    if (!file) abort();
    fseek(file, 0, SEEK_END);
    Case input = {.size = (size_t)ftell(file)};
    rewind(file);
    input.bytes = allocate(input.size, 1);
    if (fread(input.bytes, 1, input.size, file) != input.size) abort();
    fclose(file);
    return input;
}

static int say(const char *error) {
    fprintf(stderr, "%s\n", error);
    return 1;
}

static int forward_case(char **arguments) {
    char error[512];
    const h3_options options = {.threads = atoi(arguments[3]), .kernels = arguments[4]};
    h3_model *model;
    h3_run *run;
    h3_config config;
    if (!h3_open(arguments[0], &options, &model, error, sizeof error)) return say(error);
    h3_get_config(model, &config);
    Case input = case_read(arguments[1]);
    const int64_t *const sizes = case_take(&input, 5, sizeof *sizes);
    h3_sequence sequence = {
        .rows = (size_t)sizes[0], .video_rows = (size_t)sizes[1], .audio_rows = (size_t)sizes[2],
        .text_rows = (size_t)sizes[3],
    };
    const size_t timesteps = (size_t)sizes[4];
    sequence.positions = case_take(&input, 3 * sequence.rows, sizeof(double));
    sequence.tags = case_take(&input, sequence.rows, sizeof(int64_t));
    sequence.video_indices = case_take(&input, sequence.video_rows, sizeof(int64_t));
    sequence.audio_indices = case_take(&input, sequence.audio_rows, sizeof(int64_t));
    sequence.text_indices = case_take(&input, sequence.text_rows, sizeof(int64_t));
    const float *const text = case_take(&input, sequence.text_rows * config.text_width, sizeof *text);
    const size_t video = sequence.video_rows * config.video_width, audio = sequence.audio_rows * config.audio_width;
    float *const velocity = allocate(video + audio, sizeof *velocity);
    h3_step step = {.video_velocity = velocity, .audio_velocity = velocity + video};
    step.video = case_take(&input, video, sizeof(float));
    step.audio = case_take(&input, audio, sizeof(float));
    const float *const times = case_take(&input, timesteps, sizeof *times);
    step.row_timesteps = case_take(&input, sequence.rows, sizeof(float));
    if (!h3_prepare(model, &sequence, text, times, timesteps, NULL, NULL, &run, error, sizeof error)) return say(error);
    h3_close(model); /* the run keeps what it needs */
    if (!h3_velocity(run, &step, error, sizeof error)) return say(error);
    h3_release(run);
    FILE *const file = fopen(arguments[2], "wb");
    const bool written = file && fwrite(velocity, sizeof *velocity, video + audio, file) == video + audio;
    if (file) fclose(file);
    free(velocity);
    free(input.bytes);
    return written ? 0 : say("the result could not be written");
}

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "units") == 0) return run_units();
    if (count > 2 && strcmp(arguments[1], "open") == 0) return open_files(arguments + 2, count - 2);
    if (count == 7 && strcmp(arguments[1], "forward") == 0) return forward_case(arguments + 2);
    return say("usage: engine_test units | open FILE ... | forward MODEL CASE OUT THREADS KERNELS");
}
