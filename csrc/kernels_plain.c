/* The kernels in plain C: what the others are compared with, and what runs where there is nothing faster. */
#include <math.h>
#include <string.h>

#include "internal.h"

static void plain_interleave(const float *rows, size_t stride, size_t count, size_t k, float *panel) {
    for (size_t i = 0; i < k; i++) {
        for (size_t r = 0; r < PANEL; r++) panel[i * PANEL + r] = r < count ? rows[r * stride + i] : 0.0f;
    }
}

static void plain_multiply(const float *panel, const float *input, size_t token_stride, size_t k_stride, size_t k,
                           size_t tokens, float *output, size_t output_stride, bool accumulate) {
    for (size_t t = 0; t < tokens; t++) {
        float sum[PANEL] = {0};
        for (size_t i = 0; i < k; i++) {
            const float value = input[t * token_stride + i * k_stride];
            for (size_t r = 0; r < PANEL; r++) sum[r] += panel[i * PANEL + r] * value;
        }
        float *const target = output + t * output_stride;
        for (size_t r = 0; r < PANEL; r++) target[r] = accumulate ? target[r] + sum[r] : sum[r];
    }
}

static int32_t dot_of_quads(float levels, int32_t values) {
    uint8_t a[4];
    int8_t b[4];
    memcpy(a, &levels, sizeof a);
    memcpy(b, &values, sizeof b);
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
}

static void plain_multiply_levels(const LevelPanel *panel, const Rounded *input, size_t group_stride, size_t groups,
                                  size_t tokens, float *output, size_t output_stride, bool accumulate) {
    for (size_t t = 0; t < tokens; t++, output += output_stride) {
        for (size_t r = 0; r < PANEL; r++) {
            float sum = 0.0f;
            for (size_t g = 0; g < groups; g++) {
                const Rounded *const group = &input[g * group_stride + t];
                int32_t dot = 0;
                for (size_t q = 0; q < 8; q++)
                    dot += dot_of_quads(panel->quads[(8 * g + q) * PANEL + r], group->quads[q]);
                sum += (float)dot * panel->scales[g * PANEL + r] * group->scale;
                sum += panel->shifts[g * PANEL + r] * group->sum;
            }
            output[r] = accumulate ? output[r] + sum : sum;
        }
    }
}

static void plain_softmax(float *scores, size_t keys, float *maximum, float *sum, float *factor) {
    for (size_t r = 0; r < PANEL; r++) {
        float highest = maximum[r];
        for (size_t i = 0; i < keys; i++) highest = fmaxf(highest, scores[i * PANEL + r]);
        factor[r] = expf(maximum[r] - highest);
        float total = 0.0f;
        for (size_t i = 0; i < keys; i++) {
            const float value = expf(scores[i * PANEL + r] - highest);
            scores[i * PANEL + r] = value;
            total += value;
        }
        sum[r] = sum[r] * factor[r] + total;
        maximum[r] = highest;
    }
}

static void plain_silu_multiply(const float *gate, const float *value, size_t count, float *target) {
    for (size_t i = 0; i < count; i++) target[i] = gate[i] / (1.0f + expf(-gate[i])) * value[i];
}

static const Kernels *plain_kernels(void) {
    static const Kernels set = {
        .name = "plain",
        .unpack = {unpack_f32, unpack_f16, unpack_bf16, unpack_q8_0, unpack_q4_0, unpack_q4_1, unpack_q5_0,
                   unpack_q5_1, unpack_q2_k, unpack_q3_k, unpack_q4_k, unpack_q5_k, unpack_q6_k},
        .interleave = plain_interleave,
        .multiply = plain_multiply,
        .multiply_levels = plain_multiply_levels,
        .softmax = plain_softmax,
        .silu_multiply = plain_silu_multiply,
    };
    return &set;
}
