/* Fast kernels against plain ones, on small random data, before they are trusted. */
#include <math.h>
#include <string.h>

#include "internal.h"

enum { SELFTEST_K = 256, SELFTEST_TOKENS = 13 };

static float random_float(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 2147483648.0f;
}

static bool close_enough(const float *a, const float *b, size_t count, float tolerance) {
    for (size_t i = 0; i < count; i++) {
        const float scale = fmaxf(1.0f, fabsf(b[i]));
        if (!(fabsf(a[i] - b[i]) <= tolerance * scale)) return false;
    }
    return true;
}

/* Bit for bit, on blocks of every byte pattern; a scale that is not a number gives any not-a-number. */
static bool unpacking_agrees(const Kernels *candidate, int index, uint32_t *state) {
    uint8_t bytes[4 * SELFTEST_K];
    float ours[SELFTEST_K], theirs[SELFTEST_K];
    for (size_t i = 0; i < sizeof bytes; i++) {
        *state = *state * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(*state >> 24);
    }
    candidate->unpack[index](bytes, SELFTEST_K, ours);
    format_table()[index].unpack(bytes, SELFTEST_K, theirs);
    for (size_t i = 0; i < SELFTEST_K; i++) {
        if (memcmp(&ours[i], &theirs[i], sizeof *ours) != 0 && !(isnan(ours[i]) && isnan(theirs[i]))) return false;
    }
    return true;
}

static bool products_agree(const Kernels *candidate, const float *input) {
    float panel[SELFTEST_K * PANEL], expected_panel[SELFTEST_K * PANEL];
    float ours[SELFTEST_TOKENS * PANEL] = {0}, theirs[SELFTEST_TOKENS * PANEL] = {0};
    const Kernels *const plain = plain_kernels();
    const size_t k = SELFTEST_K - 3, rows = PANEL - 1; /* odd on purpose */
    plain->interleave(input, SELFTEST_K, rows, k, expected_panel);
    candidate->interleave(input, SELFTEST_K, rows, k, panel);
    if (memcmp(panel, expected_panel, k * PANEL * sizeof *panel) != 0) return false;
    for (int turn = 0; turn < 3; turn++) {
        const size_t token_stride = turn < 2 ? SELFTEST_K : 1, k_stride = turn < 2 ? 1 : SELFTEST_TOKENS;
        plain->multiply(panel, input, token_stride, k_stride, k, SELFTEST_TOKENS, theirs, PANEL, turn > 0);
        candidate->multiply(panel, input, token_stride, k_stride, k, SELFTEST_TOKENS, ours, PANEL, turn > 0);
        if (!close_enough(ours, theirs, SELFTEST_TOKENS * PANEL, 1e-5f)) return false;
    }
    return true;
}

static bool level_products_agree(const Kernels *candidate, const float *input) {
    enum { GROUPS = 5, QUADS = 8 * GROUPS };
    float quads[QUADS * PANEL];
    Rounded rounded[GROUPS * SELFTEST_TOKENS];
    float ours[SELFTEST_TOKENS * PANEL] = {0}, theirs[SELFTEST_TOKENS * PANEL] = {0};
    uint8_t levels[sizeof quads];
    if (!candidate->multiply_levels) return true;
    for (size_t i = 0; i < sizeof levels; i++) levels[i] = (uint8_t)(fabsf(input[i % SELFTEST_K]) * 15.99f);
    memcpy(quads, levels, sizeof quads);
    for (size_t i = 0; i < GROUPS * SELFTEST_TOKENS; i++) rounded[i] = round_values(input + 7 * i);
    const LevelPanel panel = {quads, input, input + GROUPS * PANEL};
    for (int turn = 0; turn < 2; turn++) {
        candidate->multiply_levels(&panel, rounded, SELFTEST_TOKENS, GROUPS, SELFTEST_TOKENS, ours, PANEL, turn > 0);
        plain_kernels()->multiply_levels(&panel, rounded, SELFTEST_TOKENS, GROUPS, SELFTEST_TOKENS, theirs, PANEL,
                                         turn > 0);
    }
    return close_enough(ours, theirs, SELFTEST_TOKENS * PANEL, 1e-5f);
}

static bool softmax_agrees(const Kernels *candidate, const float *input) {
    enum { KEYS = 21 };
    float ours[KEYS * PANEL], theirs[KEYS * PANEL];
    float state[2][3][PANEL];
    for (size_t i = 0; i < KEYS * PANEL; i++) ours[i] = theirs[i] = 30.0f * input[i];
    for (size_t r = 0; r < PANEL; r++) {
        state[0][0][r] = state[1][0][r] = r % 2 ? -INFINITY : 10.0f;
        state[0][1][r] = state[1][1][r] = r % 2 ? 0.0f : 2.0f;
    }
    candidate->softmax(ours, KEYS, state[0][0], state[0][1], state[0][2]);
    plain_kernels()->softmax(theirs, KEYS, state[1][0], state[1][1], state[1][2]);
    return close_enough(ours, theirs, KEYS * PANEL, 1e-6f) &&
           close_enough(state[0][0], state[1][0], 3 * PANEL, 1e-5f);
}

static bool silu_agrees(const Kernels *candidate, const float *input) {
    enum { COUNT = 45 };
    float gate[COUNT], ours[COUNT], theirs[COUNT];
    for (size_t i = 0; i < COUNT; i++) gate[i] = 120.0f * input[i];
    candidate->silu_multiply(gate, input + COUNT, COUNT, ours);
    plain_kernels()->silu_multiply(gate, input + COUNT, COUNT, theirs);
    return close_enough(ours, theirs, COUNT, 1e-5f);
}

static const char *selftest(const Kernels *candidate) {
    float input[SELFTEST_K * PANEL];
    uint32_t state = 20261201u;
    for (size_t i = 0; i < SELFTEST_K * PANEL; i++) input[i] = random_float(&state);
    for (int i = 0; i < FORMAT_COUNT; i++) {
        if (!unpacking_agrees(candidate, i, &state)) return format_table()[i].name;
    }
    if (!products_agree(candidate, input)) return "the matrix product";
    if (!level_products_agree(candidate, input)) return "the product with 8-bit inputs";
    if (!softmax_agrees(candidate, input)) return "softmax";
    return silu_agrees(candidate, input) ? NULL : "SiLU";
}
