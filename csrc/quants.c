/*
 * The block formats of GGML that weights may have, in plain C and exact: the order of operations is that of the
 * gguf package, so results agree bit for bit.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t read_u16(const uint8_t *bytes) {
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static float float_of_half(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 31u;
    const uint32_t fraction = half & 1023u;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | (fraction ? 0x400000u : 0) | fraction << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float subnormal = (float)fraction * (1.0f / 16777216.0f);
    return sign ? -subnormal : subnormal;
}

static void unpack_f32(const uint8_t *source, size_t count, float *target) {
    memcpy(target, source, count * sizeof *target);
}

static void unpack_f16(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i++) target[i] = float_of_half(read_u16(source + 2 * i));
}

static void unpack_bf16(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i++) target[i] = float_of_bits((uint32_t)read_u16(source + 2 * i) << 16);
}

/* Block of 32: half scale, 32 int8. */
static void unpack_q8_0(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 34, target += 32) {
        const float scale = float_of_half(read_u16(source));
        for (size_t j = 0; j < 32; j++) target[j] = scale * (float)(int8_t)source[2 + j];
    }
}

/* Block of 32: half scale, 16 bytes whose low nibbles are the first 16 values, offset 8. */
static void unpack_q4_0(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 18, target += 32) {
        const float scale = float_of_half(read_u16(source));
        for (size_t j = 0; j < 16; j++) {
            target[j] = scale * (float)((source[2 + j] & 15) - 8);
            target[16 + j] = scale * (float)((source[2 + j] >> 4) - 8);
        }
    }
}

/* As Q4_0 without the offset, but with a half minimum after the scale. */
static void unpack_q4_1(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 20, target += 32) {
        const float scale = float_of_half(read_u16(source)), minimum = float_of_half(read_u16(source + 2));
        for (size_t j = 0; j < 16; j++) {
            /* Products in statements of their own, here and below: no compiler may fuse them with the sum. */
            const float low = scale * (float)(source[4 + j] & 15), high = scale * (float)(source[4 + j] >> 4);
            target[j] = low + minimum;
            target[16 + j] = high + minimum;
        }
    }
}

static uint32_t read_u32(const uint8_t *bytes) {
    return read_u16(bytes) | (uint32_t)read_u16(bytes + 2) << 16;
}

/* Level j of 32 in five bits: nibbles as in Q4_0, and bit j of `high`. */
static inline int five_bits(const uint8_t *nibbles, uint32_t high, size_t j) {
    return (nibbles[j % 16] >> j / 16 * 4 & 15) | (int)(high >> j & 1) << 4;
}

/* Block of 32: half scale, 32 fifth bits, nibbles as in Q4_0, offset 16. */
static void unpack_q5_0(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 22, target += 32) {
        const float scale = float_of_half(read_u16(source));
        const uint32_t high = read_u32(source + 2);
        for (size_t j = 0; j < 32; j++) target[j] = scale * (float)(five_bits(source + 6, high, j) - 16);
    }
}

/* As Q5_0 without the offset, but with a half minimum after the scale. */
static void unpack_q5_1(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 24, target += 32) {
        const float scale = float_of_half(read_u16(source)), minimum = float_of_half(read_u16(source + 2));
        const uint32_t high = read_u32(source + 4);
        for (size_t j = 0; j < 32; j++) {
            const float product = scale * (float)five_bits(source + 8, high, j);
            target[j] = product + minimum;
        }
    }
}

/*
 * The K formats: blocks of 256 with one or two half scales, which small integers refine for each 16 or 32 values.
 * Values that share bytes are 16 or 32 apart, so the loops over `j` run over neighbours and compilers use vectors.
 */

/* 16 bytes (4-bit scale, 4-bit minimum of 16 values), 64 bytes of four bit pairs, half scale, half minimum. */
static void unpack_q2_k(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 256, source += 84) {
        const float scale = float_of_half(read_u16(source + 80)), least = float_of_half(read_u16(source + 82));
        for (size_t group = 0; group < 16; group++, target += 16) {
            const uint8_t *const pairs = source + 16 + group / 8 * 32 + group % 2 * 16;
            const unsigned shift = group % 8 / 2 * 2;
            const float group_scale = scale * (float)(source[group] & 15);
            const float minimum = least * (float)(source[group] >> 4);
            for (size_t j = 0; j < 16; j++) {
                const float product = group_scale * (float)(pairs[j] >> shift & 3);
                target[j] = product - minimum;
            }
        }
    }
}

/* The sixteen 6-bit scales of Q3_K in 12 bytes: 8 bytes of low nibbles, 4 of high pairs, offset 32. */
static inline float q3_scale(const uint8_t *packed, size_t group) {
    const int low = packed[group % 8] >> group / 8 * 4 & 15, high = packed[8 + group % 4] >> group / 4 * 2 & 3;
    return (float)((low | high << 4) - 32);
}

/*
 * 32 bytes of high bits (bit r of byte j belongs to value 32 r + j; clear takes 4 off), 64 bytes of bit pairs, 12 bytes
 * of scales, half scale.
 */
static void unpack_q3_k(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 256, source += 110) {
        const float scale = float_of_half(read_u16(source + 108));
        for (size_t group = 0; group < 16; group++, target += 16) {
            const uint8_t *const high = source + group % 2 * 16;
            const uint8_t *const pairs = source + 32 + group / 8 * 32 + group % 2 * 16;
            const unsigned run = (unsigned)group / 2, shift = run % 4 * 2;
            const float group_scale = scale * q3_scale(source + 96, group);
            for (size_t j = 0; j < 16; j++) {
                const int level = (pairs[j] >> shift & 3) + (high[j] >> run & 1) * 4 - 4;
                target[j] = group_scale * (float)level;
            }
        }
    }
}

/*
 * The eight 6-bit scales (index 0 .. 7) and minima of Q4_K and Q5_K in 12 bytes: those of the first four groups in the
 * low bits of bytes 0 .. 3 and 4 .. 7; of the others low nibbles and high nibbles of bytes 8 .. 11, and the top bits
 * of the first eight bytes.
 */
static inline void read_scale_and_minimum(const uint8_t *packed, size_t group, float *scale, float *minimum) {
    if (group < 4) {
        *scale = (float)(packed[group] & 63);
        *minimum = (float)(packed[group + 4] & 63);
    } else {
        *scale = (float)((packed[group + 4] & 15) | packed[group - 4] >> 6 << 4);
        *minimum = (float)(packed[group + 4] >> 4 | packed[group] >> 6 << 4);
    }
}

/* Half scale, half minimum, 12 bytes of 6-bit scales and minima, 128 bytes: 32 low nibbles, then their high ones. */
static void unpack_q4_k(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 256, source += 144) {
        const float scale = float_of_half(read_u16(source)), least = float_of_half(read_u16(source + 2));
        for (size_t group = 0; group < 8; group++, target += 32) {
            const uint8_t *const nibbles = source + 16 + group / 2 * 32;
            const unsigned shift = group % 2 * 4;
            float group_scale, minimum;
            read_scale_and_minimum(source + 4, group, &group_scale, &minimum);
            group_scale *= scale;
            minimum *= least;
            for (size_t j = 0; j < 32; j++) {
                const float product = group_scale * (float)(nibbles[j] >> shift & 15);
                target[j] = product - minimum;
            }
        }
    }
}

/* As Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte j belongs to value 32 g + j. */
static void unpack_q5_k(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 256, source += 176) {
        const float scale = float_of_half(read_u16(source)), least = float_of_half(read_u16(source + 2));
        for (size_t group = 0; group < 8; group++, target += 32) {
            const uint8_t *const high = source + 16, *const nibbles = source + 48 + group / 2 * 32;
            const unsigned shift = group % 2 * 4;
            float group_scale, minimum;
            read_scale_and_minimum(source + 4, group, &group_scale, &minimum);
            group_scale *= scale;
            minimum *= least;
            for (size_t j = 0; j < 32; j++) {
                const float product = group_scale * (float)((nibbles[j] >> shift & 15) | (high[j] >> group & 1) << 4);
                target[j] = product - minimum;
            }
        }
    }
}

/*
 * Block of 256: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales (one for 16 values), half
 * scale. Each half of 128 values holds four runs of 32: low nibbles of 64 bytes, then their high nibbles; run r
 * takes its high bits from bits 2r of the same 32 bytes.
 */
static void unpack_q6_k(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 256, source += 210, target += 256) {
        const float scale = float_of_half(read_u16(source + 208));
        for (size_t j = 0; j < 256; j++) {
            const size_t half = j / 128, run = j % 128 / 32, lane = j % 32;
            const unsigned low = source[64 * half + 32 * (run & 1) + lane] >> (run & 2 ? 4 : 0) & 15;
            const unsigned high = source[128 + 32 * half + lane] >> 2 * run & 3;
            const float group_scale = scale * (float)(int8_t)source[192 + j / 16];
            target[j] = group_scale * (float)((int)(low | high << 4) - 32);
        }
    }
}

/* ---- inputs in 8 bits ---- */

/* The bits of the largest magnitude, which order as integers; compilers know how to find that with vectors. */
static int32_t largest_bits(const float *values) {
    int32_t largest = 0;
    for (size_t i = 0; i < ROUNDED; i++) {
        int32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* A value that is not finite makes all 32 not a number, so that it is still found in the output. */
static Rounded round_values(const float *values) {
    const float shift = 12582912.0f; /* adding it rounds to an integer, ties to even, below 2^22 */
    const float largest = float_of_bits((uint32_t)largest_bits(values));
    Rounded result = {0};
    if (!isfinite(largest)) result.scale = result.sum = NAN;
    if (!isfinite(largest) || largest < 1e-30f) return result;
    const float inverse = 127.0f / largest;
    int8_t levels[ROUNDED];
    int total = 0;
    for (size_t i = 0; i < ROUNDED; i++) {
        const float scaled = values[i] * inverse;
        const float shifted = scaled + shift;
        const int level = (int)(shifted - shift);
        levels[i] = (int8_t)level;
        total += level;
    }
    memcpy(result.quads, levels, sizeof levels);
    result.scale = largest / 127.0f;
    result.sum = result.scale * (float)total;
    return result;
}

/* ---- 4-bit weights as levels: value = scale * level + shift ---- */

/* The low nibbles of `count` bytes, then their high ones; eight at a time in a word of any byte order. */
static void split_nibbles(const uint8_t *bytes, size_t count, uint8_t *levels) {
    for (size_t j = 0; j < count; j += 8) {
        uint64_t word;
        memcpy(&word, bytes + j, sizeof word);
        const uint64_t low = word & 0x0f0f0f0f0f0f0f0fu, high = word >> 4 & 0x0f0f0f0f0f0f0f0fu;
        memcpy(levels + j, &low, sizeof low);
        memcpy(levels + count + j, &high, sizeof high);
    }
}

static void levels_q4_0(const uint8_t *source, size_t count, uint8_t *levels, float *scales, float *shifts) {
    for (size_t i = 0; i < count / 32; i++, source += 18, levels += 32) {
        scales[i] = float_of_half(read_u16(source));
        shifts[i] = -8.0f * scales[i];
        split_nibbles(source + 2, 16, levels);
    }
}

static void levels_q4_1(const uint8_t *source, size_t count, uint8_t *levels, float *scales, float *shifts) {
    for (size_t i = 0; i < count / 32; i++, source += 20, levels += 32) {
        scales[i] = float_of_half(read_u16(source));
        shifts[i] = float_of_half(read_u16(source + 2));
        split_nibbles(source + 4, 16, levels);
    }
}

static void levels_q4_k(const uint8_t *source, size_t count, uint8_t *levels, float *scales, float *shifts) {
    for (size_t i = 0; i < count / 32; i += 8, source += 144) {
        const float scale = float_of_half(read_u16(source)), least = float_of_half(read_u16(source + 2));
        for (size_t group = 0; group < 8; group++) {
            read_scale_and_minimum(source + 4, group, &scales[i + group], &shifts[i + group]);
            scales[i + group] *= scale;
            shifts[i + group] *= -least;
        }
        for (size_t pair = 0; pair < 4; pair++, levels += 64) split_nibbles(source + 16 + 32 * pair, 32, levels);
    }
}

/* NULL for the formats whose own error is too small to hide that of 8-bit inputs. */
static LevelsFunction levels_of(int format) {
    static const LevelsFunction functions[FORMAT_COUNT] = {
        [FORMAT_Q4_0] = levels_q4_0, [FORMAT_Q4_1] = levels_q4_1, [FORMAT_Q4_K] = levels_q4_k};
    return functions[format];
}

/* In the order of enum format_index. A new format is one row here and, where speed matters, one in a kernel set. */
static const Format *format_table(void) {
    static const Format formats[FORMAT_COUNT] = {
        {0, "F32", 1, 4, unpack_f32},        {1, "F16", 1, 2, unpack_f16},        {30, "BF16", 1, 2, unpack_bf16},
        {8, "Q8_0", 32, 34, unpack_q8_0},    {2, "Q4_0", 32, 18, unpack_q4_0},    {3, "Q4_1", 32, 20, unpack_q4_1},
        {6, "Q5_0", 32, 22, unpack_q5_0},    {7, "Q5_1", 32, 24, unpack_q5_1},    {10, "Q2_K", 256, 84, unpack_q2_k},
        {11, "Q3_K", 256, 110, unpack_q3_k}, {12, "Q4_K", 256, 144, unpack_q4_k}, {13, "Q5_K", 256, 176, unpack_q5_k},
        {14, "Q6_K", 256, 210, unpack_q6_k},
    };
    return formats;
}

static int format_of_type(uint32_t type) {
    for (int i = 0; i < FORMAT_COUNT; i++) {
        if (format_table()[i].type == type) return i;
    }
    return -1;
}

/* GGML's name of a type, for error texts; "type N" has no name here. */
static const char *type_name(uint32_t type) {
    static const char *const names[] = {
        "F32",     "F16",     "Q4_0",  "Q4_1",  NULL,      NULL,    "Q5_0",   "Q5_1",  "Q8_0", "Q8_1", "Q2_K",
        "Q3_K",    "Q4_K",    "Q5_K",  "Q6_K",  "Q8_K",    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",
        "IQ3_S",   "IQ2_S",   "IQ4_XS", "I8",   "I16",     "I32",   "I64",    "F64",   "IQ1_M", "BF16", NULL,
        NULL,      NULL,      "TQ1_0", "TQ2_0", NULL,      NULL,    NULL,     "MXFP4", "NVFP4",
    };
    const char *name = type < sizeof names / sizeof *names ? names[type] : NULL;
    return name ? name : "an unknown type";
}

/* ---- for callers ---- */

int h3_format(const char *format_name, uint32_t *type, size_t *block_elements, size_t *block_bytes) {
    for (int i = 0; i < FORMAT_COUNT; i++) {
        const Format *const format = &format_table()[i];
        if (strcmp(format->name, format_name) != 0) continue;
        *type = format->type;
        *block_elements = format->elements;
        *block_bytes = format->bytes;
        return 1;
    }
    return 0;
}

int h3_dequantize(uint32_t type, const uint8_t *source, size_t source_bytes, size_t count, float *target,
                  char *error, size_t error_size) {
    Failure failure = start_failure(error, error_size);
    const int index = format_of_type(type);
    if (index < 0) return fail(&failure, "%s (type %u) is not computed here.", type_name(type), type);
    const Format *const format = &format_table()[index];
    size_t bytes;
    if (count % format->elements || !multiply_size(count / format->elements, format->bytes, &bytes) ||
        bytes != source_bytes)
        return fail(&failure, "%zu bytes are not %zu values of %s.", source_bytes, count, format->name);
    format->unpack(source, count, target);
    return 1;
}
