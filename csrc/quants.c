/*
 * The block formats of GGML that weights may have, in plain C and exact: the order of operations is that of the
 * gguf package, so results agree bit for bit.
 */
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

/* In the order of enum format_index. A new format is one row here and, where speed matters, one in a kernel set. */
static const Format *format_table(void) {
    static const Format formats[FORMAT_COUNT] = {
        {0, "F32", 1, 4, unpack_f32},       {1, "F16", 1, 2, unpack_f16},     {30, "BF16", 1, 2, unpack_bf16},
        {8, "Q8_0", 32, 34, unpack_q8_0},   {2, "Q4_0", 32, 18, unpack_q4_0}, {14, "Q6_K", 256, 210, unpack_q6_k},
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
