/*
 * From float rows to the block formats that `convert` writes: Q8_0, Q4_0 and Q6_K. Another format is one packing
 * function and one row of `packer_of_type`.
 *
 * Q8_0 gives the bytes of the gguf package. Q4_0 and Q6_K look for better scales than the largest value gives. For
 * fixed integer levels l the scale that leaves the least squared error is sum(x l) / sum(l l), and it takes
 * sum(x l)^2 / sum(l l) off the squared norm; so several ways to choose the levels are tried, and the one that
 * takes off most is kept. All values count alike: weighting them by their squares, as ggml does, leaves 2 % (Q6_K)
 * to 4 % (Q4_0) more error on Gaussian weights.
 *
 * Sixteen groups are searched at a time, one in each lane of an array, so that compilers can use the vector unit
 * without being allowed to reorder a sum.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

enum { LANES = 16, SMALL_BLOCK = 32, SUPER_BLOCK = 256, TRIALS = 9 };

/* Packs whole blocks of finite values whose scales fit half precision. */
typedef void (*PackFunction)(const float *source, size_t blocks, uint8_t *target);

/* Half precision, ties to even, for magnitudes below 65520. */
static uint16_t half_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x38800000u) { /* subnormal: the unit is 2^-24 */
        return (uint16_t)(sign | (uint32_t)nearbyintf(fabsf(value) * 16777216.0f));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

static void write_half(uint8_t *target, uint16_t half) {
    target[0] = (uint8_t)(half & 0xffu);
    target[1] = (uint8_t)(half >> 8);
}

static float inverse_or_zero(float value) {
    return value != 0.0f ? 1.0f / value : 0.0f;
}

/*
 * The integer nearest to value * inverse (ties to even, below 2^22), held between -limit and limit - 1. The product
 * has its own statement, so that no compiler fuses it with the sum.
 */
static inline float nearest_level(float value, float inverse, float limit) {
    const float shift = 12582912.0f;
    const float scaled = value * inverse;
    const float shifted = scaled + shift;
    float level = shifted - shift;
    level = level < -limit ? -limit : level;
    return level > limit - 1.0f ? limit - 1.0f : level;
}

/*
 * The best of a few scales for sixteen groups; levels run from -limit to limit - 1. `values` holds element j of
 * group g at [j][g]. A group of zeros gets 0.
 */
static void search_scales(const float (*values)[LANES], size_t count, float limit, float scale[LANES]) {
    float peak[LANES] = {0};
    float removed[LANES] = {0};
    for (size_t j = 0; j < count; j++) {
        for (int g = 0; g < LANES; g++) {
            peak[g] = fabsf(values[j][g]) > fabsf(peak[g]) ? values[j][g] : peak[g];
        }
    }
    memset(scale, 0, LANES * sizeof *scale);
    for (int trial = -TRIALS; trial <= TRIALS; trial++) {
        float inverse[LANES], cross[LANES] = {0}, square[LANES] = {0};
        for (int g = 0; g < LANES; g++) {
            inverse[g] = fabsf(peak[g]) < 1e-15f ? 0.0f : -(limit + 0.1f * (float)trial) / peak[g];
        }
        for (size_t j = 0; j < count; j++) {
            for (int g = 0; g < LANES; g++) {
                const float level = nearest_level(values[j][g], inverse[g], limit);
                cross[g] += values[j][g] * level;
                square[g] += level * level;
            }
        }
        for (int g = 0; g < LANES; g++) {
            const float divisor = square[g] > 0.0f ? square[g] : 1.0f;
            const float candidate = cross[g] / divisor;
            const float gain = candidate * cross[g];
            scale[g] = gain > removed[g] ? candidate : scale[g];
            removed[g] = gain > removed[g] ? gain : removed[g];
        }
    }
}

/* ---- Q8_0: half scale, 32 signed bytes ---- */

static void pack_q8_0(const float *source, size_t blocks, uint8_t *target) {
    for (size_t block = 0; block < blocks; block++, source += SMALL_BLOCK, target += 34) {
        float largest = 0.0f;
        for (int j = 0; j < SMALL_BLOCK; j++) {
            largest = fabsf(source[j]) > largest ? fabsf(source[j]) : largest;
        }
        const float scale = largest / 127.0f;
        float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        inverse = isfinite(inverse) ? inverse : 0.0f;
        write_half(target, half_of_float(scale));
        for (int j = 0; j < SMALL_BLOCK; j++) {
            target[2 + j] = (uint8_t)(int8_t)roundf(source[j] * inverse);
        }
    }
}

/* ---- Q4_0: half scale, 16 bytes of two levels each: value j low, value j + 16 high, both plus 8 ---- */

static void pack_q4_0(const float *source, size_t blocks, uint8_t *target) {
    const float limit = 8.0f;
    while (blocks > 0) {
        const size_t group = blocks < LANES ? blocks : LANES;
        float values[SMALL_BLOCK][LANES] = {{0}};
        float scale[LANES];
        for (size_t g = 0; g < group; g++) {
            for (size_t j = 0; j < SMALL_BLOCK; j++) values[j][g] = source[g * SMALL_BLOCK + j];
        }
        search_scales((const float (*)[LANES])values, SMALL_BLOCK, limit, scale);
        for (size_t g = 0; g < group; g++, target += 18) {
            const uint16_t half = half_of_float(scale[g]);
            const float stored = float_of_half(half);
            const float inverse = inverse_or_zero(stored);
            write_half(target, half);
            for (int j = 0; j < 16; j++) {
                const int low = (int)nearest_level(values[j][g], inverse, limit) + 8;
                const int high = (int)nearest_level(values[j + 16][g], inverse, limit) + 8;
                target[2 + j] = (uint8_t)(low | high << 4);
            }
        }
        source += group * SMALL_BLOCK;
        blocks -= group;
    }
}

/* ---- Q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed group scales, half scale ---- */

/*
 * The half scale that lets the largest group scale use the whole signed byte, and the bytes. They are rounded
 * against the scale as stored, so its own rounding costs nothing.
 */
static uint16_t round_group_scales(const float scale[LANES], int8_t bytes[LANES]) {
    float peak = 0.0f;
    for (int g = 0; g < LANES; g++) {
        peak = fabsf(scale[g]) > fabsf(peak) ? scale[g] : peak;
    }
    uint16_t half = half_of_float(peak / -128.0f);
    /* Tiny scales are subnormal and may be rounded far down; the largest group must still reach its byte. */
    if (fabsf(float_of_half(half)) * 128.5f < fabsf(peak)) half++;
    const float stored = float_of_half(half);
    const float inverse = inverse_or_zero(stored);
    for (int g = 0; g < LANES; g++) {
        bytes[g] = (int8_t)nearest_level(scale[g], inverse, 128.0f);
    }
    return half;
}

static void write_q6_k_levels(const uint8_t levels[SUPER_BLOCK], uint8_t *target) {
    uint8_t *low = target, *high = target + 128;
    for (int part = 0; part < 2; part++, levels += 128, low += 64, high += 32) {
        for (int j = 0; j < 32; j++) {
            const uint8_t a = levels[j], b = levels[j + 32], c = levels[j + 64], d = levels[j + 96];
            low[j] = (uint8_t)((a & 15) | (c & 15) << 4);
            low[j + 32] = (uint8_t)((b & 15) | (d & 15) << 4);
            high[j] = (uint8_t)(a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6);
        }
    }
}

static void pack_q6_k(const float *source, size_t blocks, uint8_t *target) {
    const float limit = 32.0f;
    for (size_t block = 0; block < blocks; block++, source += SUPER_BLOCK, target += 210) {
        float values[16][LANES], scale[LANES], inverse[LANES];
        uint8_t levels[SUPER_BLOCK];
        for (int g = 0; g < LANES; g++) {
            for (int j = 0; j < 16; j++) values[j][g] = source[16 * g + j];
        }
        search_scales((const float (*)[LANES])values, 16, limit, scale);
        int8_t bytes[LANES];
        const uint16_t half = round_group_scales(scale, bytes);
        const float stored = float_of_half(half);
        for (int g = 0; g < LANES; g++) inverse[g] = inverse_or_zero(stored * (float)bytes[g]);
        for (int g = 0; g < LANES; g++) {
            for (int j = 0; j < 16; j++) {
                levels[16 * g + j] = (uint8_t)((int)nearest_level(values[j][g], inverse[g], limit) + 32);
            }
        }
        write_q6_k_levels(levels, target);
        memcpy(target + 192, bytes, sizeof bytes);
        write_half(target + 208, half);
    }
}

/*
 * How a format is packed, and the largest magnitude whose scale is sure to fit half precision: a searched scale is
 * less than twice the one that the largest value alone gives.
 */
static PackFunction packer_of_type(uint32_t type, float *largest) {
    static const struct {
        uint32_t type;
        float largest;
        PackFunction pack;
    } packers[] = {
        {2, 65504.0f * 4.0f, pack_q4_0},
        {8, 65504.0f * 127.0f, pack_q8_0},
        {14, 65504.0f * 16.0f, pack_q6_k},
    };
    for (size_t i = 0; i < sizeof packers / sizeof packers[0]; i++) {
        if (packers[i].type == type) {
            *largest = packers[i].largest;
            return packers[i].pack;
        }
    }
    return NULL;
}

/* Written so that NaN fails it. */
static bool all_within(const float *values, size_t count, float largest) {
    int within = 1;
    for (size_t i = 0; i < count; i++) within &= fabsf(values[i]) <= largest;
    return within != 0;
}

int h3_quantize_rows(int ggml_type, const float *source, size_t rows, size_t columns, uint8_t *target, char *error,
                     size_t error_size) {
    Failure failed = start_failure(error, error_size);
    float largest = 0.0f;
    const uint32_t type = (uint32_t)ggml_type;
    const int index = format_of_type(type);
    const PackFunction pack = packer_of_type(type, &largest);
    if (index < 0 || !pack) return fail(&failed, "Weights of GGML type %d cannot be written here.", ggml_type);
    const Format *const kind = &format_table()[index];
    if (columns == 0 || columns % kind->elements) {
        return fail(&failed, "Rows of %zu values are not whole blocks of %zu, as %s needs.", columns, kind->elements,
                    kind->name);
    }
    const size_t row_blocks = columns / kind->elements;
    for (size_t row = 0; row < rows; row++) {
        if (!all_within(source, columns, largest)) {
            return fail(&failed, "Row %zu holds a value that is not finite, or too large for %s.", row, kind->name);
        }
        pack(source, row_blocks, target);
        source += columns;
        target += row_blocks * kind->bytes;
    }
    return 1;
}
