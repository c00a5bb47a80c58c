/* The kernels for 64-bit Arm, where NEON is always there. */
#include "internal.h"

#if defined(__aarch64__)
#include <arm_neon.h>

/* ---- unpacking ---- */

static void neon_unpack_f16(const uint8_t *source, size_t count, float *target) {
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1q_f32(target + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(source + 2 * i))));
    unpack_f16(source + 2 * i, count - i, target + i);
}

static void neon_unpack_bf16(const uint8_t *source, size_t count, float *target) {
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        vst1q_f32(target + i, vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(source + 2 * i)), 16)));
    unpack_bf16(source + 2 * i, count - i, target + i);
}

static inline void store_scaled_16(int8x16_t bytes, float scale, float *target) {
    const int16x8_t halves[2] = {vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)};
    for (size_t h = 0; h < 2; h++) {
        vst1q_f32(target + 8 * h, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves[h]))), scale));
        vst1q_f32(target + 8 * h + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(halves[h])), scale));
    }
}

static void neon_unpack_q8_0(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 34, target += 32) {
        const float scale = float_of_half(read_u16(source));
        store_scaled_16(vreinterpretq_s8_u8(vld1q_u8(source + 2)), scale, target);
        store_scaled_16(vreinterpretq_s8_u8(vld1q_u8(source + 18)), scale, target + 16);
    }
}

static void neon_unpack_q4_0(const uint8_t *source, size_t count, float *target) {
    const int8x16_t offset = vdupq_n_s8(8);
    for (size_t i = 0; i < count; i += 32, source += 18, target += 32) {
        const float scale = float_of_half(read_u16(source));
        const uint8x16_t bytes = vld1q_u8(source + 2);
        const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
        const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
        store_scaled_16(vsubq_s8(low, offset), scale, target);
        store_scaled_16(vsubq_s8(high, offset), scale, target + 16);
    }
}

/* Sixteen values: nibbles and high bit pairs, both in the low bits of their bytes. */
static inline void store_q6_16(uint8x16_t nibbles, uint8x16_t pairs, float scale, float *target) {
    const uint8x16_t together = vorrq_u8(nibbles, vshlq_n_u8(pairs, 4));
    store_scaled_16(vsubq_s8(vreinterpretq_s8_u8(together), vdupq_n_s8(32)), scale, target);
}

static void neon_unpack_q6_k(const uint8_t *source, size_t count, float *target) {
    const uint8x16_t low4 = vdupq_n_u8(15), low2 = vdupq_n_u8(3);
    for (size_t i = 0; i < count; i += 256, source += 210) {
        const float scale = float_of_half(read_u16(source + 208));
        for (size_t part = 0; part < 4; part++) { /* 16 lanes of each run of 32 in each half of 128 */
            const size_t half = part / 2, lane = part % 2;
            const uint8_t *const scales = source + 192 + 8 * half + lane;
            float *const to = target + i + 128 * half + 16 * lane;
            const uint8x16_t first = vld1q_u8(source + 64 * half + 16 * lane);
            const uint8x16_t second = vld1q_u8(source + 64 * half + 32 + 16 * lane);
            const uint8x16_t high = vld1q_u8(source + 128 + 32 * half + 16 * lane);
            store_q6_16(vandq_u8(first, low4), vandq_u8(high, low2), scale * (float)(int8_t)scales[0], to);
            store_q6_16(vandq_u8(second, low4), vandq_u8(vshrq_n_u8(high, 2), low2),
                        scale * (float)(int8_t)scales[2], to + 32);
            store_q6_16(vshrq_n_u8(first, 4), vandq_u8(vshrq_n_u8(high, 4), low2), scale * (float)(int8_t)scales[4],
                        to + 64);
            store_q6_16(vshrq_n_u8(second, 4), vshrq_n_u8(high, 6), scale * (float)(int8_t)scales[6], to + 96);
        }
    }
}

/* ---- the product ---- */

/* Columns i .. i+3 of four rows to panel[i .. i+3][0 .. 3]. */
static inline void transpose_4(const float *rows, size_t stride, float *panel) {
    const float32x4_t a = vld1q_f32(rows), b = vld1q_f32(rows + stride);
    const float32x4_t c = vld1q_f32(rows + 2 * stride), d = vld1q_f32(rows + 3 * stride);
    const float64x2_t ab0 = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), ab1 = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    const float64x2_t cd0 = vreinterpretq_f64_f32(vtrn1q_f32(c, d)), cd1 = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    vst1q_f32(panel, vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0)));
    vst1q_f32(panel + PANEL, vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1)));
    vst1q_f32(panel + 2 * PANEL, vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0)));
    vst1q_f32(panel + 3 * PANEL, vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1)));
}

static void neon_interleave(const float *rows, size_t stride, size_t count, size_t k, float *panel) {
    size_t i = 0;
    if (count == PANEL) {
        for (; i + 4 <= k; i += 4) {
            for (size_t r = 0; r < PANEL; r += 4) transpose_4(rows + r * stride + i, stride, panel + i * PANEL + r);
        }
    }
    plain_interleave(rows + i, stride, count, k - i, panel + i * PANEL);
}

#define KERNEL
#define SET(name) neon_##name
#define TILE 6

/* `tokens` is a constant wherever this is inlined, so the sums live in registers: 4 * TILE of the 32. */
__attribute__((always_inline)) static inline void neon_multiply_tile(const float *panel, const float *input,
                                                                     size_t token_stride, size_t k_stride, size_t k,
                                                                     const size_t tokens, float *output,
                                                                     size_t output_stride, bool accumulate) {
    float32x4_t sum[TILE][4];
#pragma GCC unroll 6
    for (size_t t = 0; t < tokens; t++) sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = vdupq_n_f32(0.0f);
    for (size_t i = 0; i < k; i++) {
        const float *const row = panel + i * PANEL;
        const float32x4_t a = vld1q_f32(row), b = vld1q_f32(row + 4), c = vld1q_f32(row + 8), d = vld1q_f32(row + 12);
#pragma GCC unroll 6
        for (size_t t = 0; t < tokens; t++) {
            const float32x4_t value = vld1q_dup_f32(input + t * token_stride + i * k_stride);
            sum[t][0] = vfmaq_f32(sum[t][0], a, value);
            sum[t][1] = vfmaq_f32(sum[t][1], b, value);
            sum[t][2] = vfmaq_f32(sum[t][2], c, value);
            sum[t][3] = vfmaq_f32(sum[t][3], d, value);
        }
    }
#pragma GCC unroll 6
    for (size_t t = 0; t < tokens; t++) {
        float *const target = output + t * output_stride;
#pragma GCC unroll 4
        for (size_t v = 0; v < 4; v++) {
            if (accumulate) sum[t][v] = vaddq_f32(vld1q_f32(target + 4 * v), sum[t][v]);
            vst1q_f32(target + 4 * v, sum[t][v]);
        }
    }
}

#include "kernels_tiles.h"

/* ---- exponentials ---- */

/* As exp_8 of the AVX2 set: e^x within 2 units in the last place. NEON's min and max let a not-a-number through. */
static inline float32x4_t exp_4(float32x4_t x) {
    x = vminq_f32(vdupq_n_f32(88.0f), vmaxq_f32(vdupq_n_f32(-87.33654f), x));
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0.693359375f));
    r = vfmsq_f32(r, n, vdupq_n_f32(-2.12194440e-4f));
    float32x4_t y = vdupq_n_f32(1.9875691500e-4f);
    y = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), y, r);
    y = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), y, r);
    y = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), y, r);
    y = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), y, r);
    y = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), y, r);
    y = vaddq_f32(vfmaq_f32(r, y, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(y, vreinterpretq_f32_s32(power));
}

static void neon_softmax(float *scores, size_t keys, float *maximum, float *sum, float *factor) {
    for (size_t quarter = 0; quarter < PANEL; quarter += 4) {
        float *const column = scores + quarter;
        const float32x4_t before = vld1q_f32(maximum + quarter);
        float32x4_t highest = before, total = vdupq_n_f32(0.0f);
        for (size_t i = 0; i < keys; i++) highest = vmaxq_f32(highest, vld1q_f32(column + i * PANEL));
        const float32x4_t shrink = exp_4(vsubq_f32(before, highest));
        for (size_t i = 0; i < keys; i++) {
            const float32x4_t value = exp_4(vsubq_f32(vld1q_f32(column + i * PANEL), highest));
            vst1q_f32(column + i * PANEL, value);
            total = vaddq_f32(total, value);
        }
        vst1q_f32(factor + quarter, shrink);
        vst1q_f32(sum + quarter, vfmaq_f32(total, vld1q_f32(sum + quarter), shrink));
        vst1q_f32(maximum + quarter, highest);
    }
}

static inline float32x4_t silu_multiply_4(float32x4_t gate, float32x4_t value) {
    const float32x4_t denominator = vaddq_f32(vdupq_n_f32(1.0f), exp_4(vnegq_f32(gate)));
    return vmulq_f32(vdivq_f32(gate, denominator), value);
}

static void neon_silu_multiply(const float *gate, const float *value, size_t count, float *target) {
    size_t i = 0;
    for (; i + 4 <= count; i += 4) vst1q_f32(target + i, silu_multiply_4(vld1q_f32(gate + i), vld1q_f32(value + i)));
    if (i == count) return;
    float last[2][4] = {{0}};
    for (size_t j = i; j < count; j++) {
        last[0][j - i] = gate[j];
        last[1][j - i] = value[j];
    }
    vst1q_f32(last[0], silu_multiply_4(vld1q_f32(last[0]), vld1q_f32(last[1])));
    for (size_t j = i; j < count; j++) target[j] = last[0][j - i];
}

static const Kernels *neon_kernels(void) {
    static const Kernels set = {
        .name = "neon",
        .unpack = {unpack_f32, neon_unpack_f16, neon_unpack_bf16, neon_unpack_q8_0, neon_unpack_q4_0, unpack_q4_1,
                   unpack_q5_0, unpack_q5_1, unpack_q2_k, unpack_q3_k, unpack_q4_k, unpack_q5_k,
                   neon_unpack_q6_k},
        .interleave = neon_interleave,
        .multiply = neon_multiply_tokens,
        .softmax = neon_softmax,
        .silu_multiply = neon_silu_multiply,
    };
    return &set;
}

#else
static const Kernels *neon_kernels(void) {
    return NULL;
}
#endif
