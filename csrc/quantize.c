/* From float rows to the block formats of GGUF that `convert` writes: Q8_0, Q4_0 and Q6_K.
 *
 * A format is one entry of `quantize_formats` and one function that packs a batch of blocks; Q4_K will be the
 * next. Q8_0 gives the bytes of the `gguf` package. Q4_0 and Q6_K look for better scales than rounding to the
 * largest value gives: a scale is good when little squared error is left, and for fixed integer levels l the
 * best scale is sum(x l) / sum(l l), which removes sum(x l)^2 / sum(l l) of the squared norm. So a few ways to
 * choose the levels are tried and the one that removes most is kept. All values count alike; weighting them by
 * their own square, as ggml does, leaves more squared error on Gaussian weights.
 *
 * Groups are searched sixteen at a time, one in each lane of an array, so that compilers can use the vector unit
 * without being allowed to reorder a sum. */

#include "h3.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    QUANTIZE_LANES = 16,
    QUANTIZE_SMALL_BLOCK = 32,
    QUANTIZE_SUPER_BLOCK = 256,
    QUANTIZE_TRIALS = 9,
    QUANTIZE_TYPE_Q4_0 = 2,
    QUANTIZE_TYPE_Q8_0 = 8,
    QUANTIZE_TYPE_Q6_K = 14
};

/* Packs `blocks` consecutive blocks; every value is finite and no larger than the format's limit. */
typedef void (*quantize_pack)(const float *source, size_t blocks, uint8_t *target);

typedef struct {
    int ggml_type;
    const char *name;
    size_t block_values;
    size_t block_bytes;
    float largest; /* beyond it the half precision scale would overflow */
    quantize_pack pack;
} quantize_format;

/* To half precision, ties to even, for magnitudes below 65520. */
static uint16_t quantize_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x38800000u) { /* subnormal: the unit is 2^-24 */
        float units = fabsf(value) * 16777216.0f;
        return (uint16_t)(sign | (uint32_t)nearbyintf(units));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

static float quantize_unhalf(uint16_t half)
{
    uint32_t exponent = half >> 10 & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    float magnitude = exponent == 0 ? ldexpf((float)mantissa, -24)
                                    : ldexpf((float)(mantissa + 1024u), (int)exponent - 25);
    return (half & 0x8000u) != 0 ? -magnitude : magnitude;
}

static void quantize_store_half(uint8_t *target, uint16_t half)
{
    target[0] = (uint8_t)(half & 0xffu);
    target[1] = (uint8_t)(half >> 8);
}

/* The integer nearest to value * inverse (ties to even, below 2^22), held between -limit and limit - 1. The product
 * has its own statement, so that no compiler fuses it with the sum. */
static inline float quantize_level(float value, float inverse, float limit)
{
    const float shift = 12582912.0f;
    float scaled = value * inverse;
    float shifted = scaled + shift;
    float level = shifted - shift;
    level = level < -limit ? -limit : level;
    return level > limit - 1.0f ? limit - 1.0f : level;
}

/* The best of a few scales for sixteen groups; levels run from -limit to limit - 1. `values` holds element j of
 * group g at [j][g]. A group without values worth a scale gets 0. */
static void quantize_search(const float (*values)[QUANTIZE_LANES], size_t count, float limit,
                            float scale[QUANTIZE_LANES])
{
    float peak[QUANTIZE_LANES] = {0};
    float removed[QUANTIZE_LANES] = {0};
    for (size_t j = 0; j < count; j++) {
        for (int g = 0; g < QUANTIZE_LANES; g++) {
            peak[g] = fabsf(values[j][g]) > fabsf(peak[g]) ? values[j][g] : peak[g];
        }
    }
    for (int g = 0; g < QUANTIZE_LANES; g++) {
        scale[g] = 0.0f;
    }
    for (int trial = -QUANTIZE_TRIALS; trial <= QUANTIZE_TRIALS; trial++) {
        float inverse[QUANTIZE_LANES], cross[QUANTIZE_LANES] = {0}, square[QUANTIZE_LANES] = {0};
        for (int g = 0; g < QUANTIZE_LANES; g++) {
            inverse[g] = fabsf(peak[g]) < 1e-15f ? 0.0f : -(limit + 0.1f * (float)trial) / peak[g];
        }
        for (size_t j = 0; j < count; j++) {
            for (int g = 0; g < QUANTIZE_LANES; g++) {
                float level = quantize_level(values[j][g], inverse[g], limit);
                cross[g] += values[j][g] * level;
                square[g] += level * level;
            }
        }
        for (int g = 0; g < QUANTIZE_LANES; g++) {
            float divisor = square[g] > 0.0f ? square[g] : 1.0f;
            float candidate = cross[g] / divisor;
            float gain = candidate * cross[g];
            scale[g] = gain > removed[g] ? candidate : scale[g];
            removed[g] = gain > removed[g] ? gain : removed[g];
        }
    }
}

/* ---- Q8_0: half scale, 32 signed bytes ---- */

static void quantize_pack_q8_0(const float *source, size_t blocks, uint8_t *target)
{
    for (size_t block = 0; block < blocks; block++, source += QUANTIZE_SMALL_BLOCK, target += 34) {
        float largest = 0.0f;
        for (int j = 0; j < QUANTIZE_SMALL_BLOCK; j++) {
            largest = fabsf(source[j]) > largest ? fabsf(source[j]) : largest;
        }
        float scale = largest / 127.0f;
        float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        inverse = isfinite(inverse) ? inverse : 0.0f;
        quantize_store_half(target, quantize_half(scale));
        for (int j = 0; j < QUANTIZE_SMALL_BLOCK; j++) {
            target[2 + j] = (uint8_t)(int8_t)roundf(source[j] * inverse);
        }
    }
}

/* ---- Q4_0: half scale, 16 bytes of two levels each: value j low, value j + 16 high, both plus 8 ---- */

static void quantize_pack_q4_0(const float *source, size_t blocks, uint8_t *target)
{
    const float limit = 8.0f;
    while (blocks > 0) {
        size_t group = blocks < QUANTIZE_LANES ? blocks : QUANTIZE_LANES;
        float values[QUANTIZE_SMALL_BLOCK][QUANTIZE_LANES] = {{0}};
        float scale[QUANTIZE_LANES];
        for (size_t g = 0; g < group; g++) {
            for (int j = 0; j < QUANTIZE_SMALL_BLOCK; j++) {
                values[j][g] = source[g * QUANTIZE_SMALL_BLOCK + (size_t)j];
            }
        }
        quantize_search((const float (*)[QUANTIZE_LANES])values, QUANTIZE_SMALL_BLOCK, limit, scale);
        for (size_t g = 0; g < group; g++, target += 18) {
            uint16_t half = quantize_half(scale[g]);
            float stored = quantize_unhalf(half);
            float inverse = stored != 0.0f ? 1.0f / stored : 0.0f;
            quantize_store_half(target, half);
            for (int j = 0; j < 16; j++) {
                int low = (int)quantize_level(values[j][g], inverse, limit) + 8;
                int high = (int)quantize_level(values[j + 16][g], inverse, limit) + 8;
                target[2 + j] = (uint8_t)(low | high << 4);
            }
        }
        source += group * QUANTIZE_SMALL_BLOCK;
        blocks -= group;
    }
}

/* ---- Q6_K: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed group scales, half scale ---- */

/* The half scale that lets the largest group scale use the whole signed byte, and the bytes. They are rounded
 * against the scale as stored, so its own rounding costs nothing. */
static uint16_t quantize_group_scales(const float scale[QUANTIZE_LANES], int8_t bytes[QUANTIZE_LANES])
{
    float peak = 0.0f;
    for (int g = 0; g < QUANTIZE_LANES; g++) {
        peak = fabsf(scale[g]) > fabsf(peak) ? scale[g] : peak;
    }
    uint16_t half = quantize_half(peak / -128.0f);
    if (peak != 0.0f && (half & 0x7fffu) == 0) {
        half |= 1u; /* the smallest there is keeps more than zero would */
    }
    float stored = quantize_unhalf(half);
    float inverse = stored != 0.0f ? 1.0f / stored : 0.0f;
    for (int g = 0; g < QUANTIZE_LANES; g++) {
        bytes[g] = (int8_t)quantize_level(scale[g], inverse, 128.0f);
    }
    return half;
}

static void quantize_store_q6_k(const uint8_t levels[QUANTIZE_SUPER_BLOCK], uint8_t *target)
{
    uint8_t *low = target, *high = target + 128;
    for (int part = 0; part < 2; part++, levels += 128, low += 64, high += 32) {
        for (int j = 0; j < 32; j++) {
            uint8_t a = levels[j], b = levels[j + 32], c = levels[j + 64], d = levels[j + 96];
            low[j] = (uint8_t)((a & 15) | (c & 15) << 4);
            low[j + 32] = (uint8_t)((b & 15) | (d & 15) << 4);
            high[j] = (uint8_t)(a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6);
        }
    }
}

static void quantize_pack_q6_k(const float *source, size_t blocks, uint8_t *target)
{
    const float limit = 32.0f;
    for (size_t block = 0; block < blocks; block++, source += QUANTIZE_SUPER_BLOCK, target += 210) {
        float values[16][QUANTIZE_LANES], scale[QUANTIZE_LANES], inverse[QUANTIZE_LANES];
        uint8_t levels[QUANTIZE_SUPER_BLOCK];
        for (int g = 0; g < QUANTIZE_LANES; g++) {
            for (int j = 0; j < 16; j++) {
                values[j][g] = source[16 * g + j];
            }
        }
        quantize_search((const float (*)[QUANTIZE_LANES])values, 16, limit, scale);
        int8_t bytes[QUANTIZE_LANES];
        uint16_t half = quantize_group_scales(scale, bytes);
        float stored = quantize_unhalf(half);
        for (int g = 0; g < QUANTIZE_LANES; g++) {
            float step = stored * (float)bytes[g];
            inverse[g] = step != 0.0f ? 1.0f / step : 0.0f;
        }
        for (int g = 0; g < QUANTIZE_LANES; g++) {
            for (int j = 0; j < 16; j++) {
                levels[16 * g + j] = (uint8_t)((int)quantize_level(values[j][g], inverse[g], limit) + 32);
            }
        }
        quantize_store_q6_k(levels, target);
        for (int g = 0; g < QUANTIZE_LANES; g++) {
            target[192 + g] = (uint8_t)bytes[g];
        }
        quantize_store_half(target + 208, half);
    }
}

/* ---- any format ---- */

static const quantize_format quantize_formats[] = {
    {QUANTIZE_TYPE_Q8_0, "Q8_0", QUANTIZE_SMALL_BLOCK, 34, 65504.0f * 127.0f, quantize_pack_q8_0},
    {QUANTIZE_TYPE_Q4_0, "Q4_0", QUANTIZE_SMALL_BLOCK, 18, 65504.0f * 4.0f, quantize_pack_q4_0},
    {QUANTIZE_TYPE_Q6_K, "Q6_K", QUANTIZE_SUPER_BLOCK, 210, 65504.0f * 16.0f, quantize_pack_q6_k},
};

/* Whether every value is finite and at most `largest`; the comparison is written so that NaN fails it. */
static int quantize_in_range(const float *values, size_t count, float largest)
{
    int inside = 1;
    for (size_t i = 0; i < count; i++) {
        inside &= fabsf(values[i]) <= largest;
    }
    return inside;
}

int h3_quantize_rows(int ggml_type, const float *source, size_t rows, size_t columns, uint8_t *target, char *error,
                     size_t error_size)
{
    const quantize_format *format = NULL;
    for (size_t i = 0; i < sizeof quantize_formats / sizeof quantize_formats[0]; i++) {
        if (quantize_formats[i].ggml_type == ggml_type) {
            format = &quantize_formats[i];
        }
    }
    if (format == NULL) {
        snprintf(error, error_size, "Weights of ggml type %d cannot be written.", ggml_type);
        return 0;
    }
    if (columns == 0 || columns % format->block_values != 0) {
        snprintf(error, error_size, "Rows of %zu values do not divide into the blocks of %zu that %s needs.", columns,
                 format->block_values, format->name);
        return 0;
    }
    if (rows > SIZE_MAX / sizeof *source / columns) {
        snprintf(error, error_size, "%zu rows of %zu values are more than memory can address.", rows, columns);
        return 0;
    }
    size_t row_blocks = columns / format->block_values;
    for (size_t row = 0; row < rows; row++) {
        if (!quantize_in_range(source, columns, format->largest)) {
            snprintf(error, error_size, "Row %zu holds a value that is not finite or too large for %s.", row,
                     format->name);
            return 0;
        }
        format->pack(source, row_blocks, target);
        source += columns;
        target += row_blocks * format->block_bytes;
    }
    return 1;
}
