/*
 * The kernels for x86-64 with AVX-512 (F, BW, DQ, VL): a panel is one vector, so twice the tokens fit a tile and each
 * value is broadcast by the multiplication that uses it. Unpacking is that of the AVX2 set, which every such
 * processor has.
 */
#include "internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) static inline

/* ---- the product ---- */

#define KERNEL AVX512
#define SET(name) avx512_##name
#define TILE 12

/* As in the AVX2 set; twelve sums, because two multiplications a cycle take four cycles each. */
AVX512_INLINE void avx512_multiply_tile(const float *panel, const float *input, size_t token_stride,
                                        size_t k_stride, size_t k, const size_t tokens, float *output,
                                        size_t output_stride, bool accumulate) {
    __m512 sum[TILE];
#pragma GCC unroll 12
    for (size_t t = 0; t < tokens; t++) sum[t] = _mm512_setzero_ps();
    for (size_t i = 0; i < k; i++) {
        const __m512 weights = _mm512_loadu_ps(panel + i * PANEL);
#pragma GCC unroll 12
        for (size_t t = 0; t < tokens; t++)
            sum[t] = _mm512_fmadd_ps(weights, _mm512_set1_ps(input[t * token_stride + i * k_stride]), sum[t]);
    }
#pragma GCC unroll 12
    for (size_t t = 0; t < tokens; t++) {
        float *const target = output + t * output_stride;
        if (accumulate) sum[t] = _mm512_add_ps(_mm512_loadu_ps(target), sum[t]);
        _mm512_storeu_ps(target, sum[t]);
    }
}

#include "kernels_tiles.h"

/* ---- the product with 8-bit inputs ---- */

#define VNNI __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define LEVEL_TILE 12

/* One instruction multiplies a quad of every row by a quad of the input and adds the four products. */
VNNI __attribute__((always_inline)) static inline void multiply_level_tile(const LevelPanel *panel,
                                                                           const Rounded *input, size_t group_stride,
                                                                           size_t groups, const size_t tokens,
                                                                           float *output, size_t output_stride,
                                                                           bool accumulate) {
    __m512 sum[LEVEL_TILE];
#pragma GCC unroll 12
    for (size_t t = 0; t < tokens; t++) sum[t] = _mm512_setzero_ps();
    for (size_t g = 0; g < groups; g++, input += group_stride) {
        __m512i dot[LEVEL_TILE];
#pragma GCC unroll 12
        for (size_t t = 0; t < tokens; t++) dot[t] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (size_t q = 0; q < 8; q++) {
            const __m512i levels = _mm512_loadu_si512(panel->quads + (8 * g + q) * PANEL);
#pragma GCC unroll 12
            for (size_t t = 0; t < tokens; t++)
                dot[t] = _mm512_dpbusd_epi32(dot[t], levels, _mm512_set1_epi32(input[t].quads[q]));
        }
        const __m512 scale = _mm512_loadu_ps(panel->scales + g * PANEL);
        const __m512 shift = _mm512_loadu_ps(panel->shifts + g * PANEL);
#pragma GCC unroll 12
        for (size_t t = 0; t < tokens; t++) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[t]), scale);
            sum[t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(input[t].scale), sum[t]);
            sum[t] = _mm512_fmadd_ps(shift, _mm512_set1_ps(input[t].sum), sum[t]);
        }
    }
#pragma GCC unroll 12
    for (size_t t = 0; t < tokens; t++) {
        float *const target = output + t * output_stride;
        if (accumulate) sum[t] = _mm512_add_ps(_mm512_loadu_ps(target), sum[t]);
        _mm512_storeu_ps(target, sum[t]);
    }
}

VNNI static void vnni_multiply_levels(const LevelPanel *panel, const Rounded *input, size_t group_stride,
                                      size_t groups, size_t tokens, float *output, size_t output_stride,
                                      bool accumulate) {
    const size_t tiles = (tokens + LEVEL_TILE - 1) / LEVEL_TILE;
    for (size_t tile = 0; tile < tiles; tile++) {
        const size_t height = (tokens + tiles - tile - 1) / (tiles - tile);
        switch (height) {
#define CASE(count)                                                                                           \
    case count:                                                                                               \
        multiply_level_tile(panel, input, group_stride, groups, count, output, output_stride, accumulate);     \
        break
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
            CASE(5);
            CASE(6);
            CASE(7);
            CASE(8);
            CASE(9);
            CASE(10);
            CASE(11);
            CASE(12);
#undef CASE
        }
        tokens -= height;
        input += height;
        output += height * output_stride;
    }
}

/* ---- exponentials ---- */

/* As exp_8 of the AVX2 set, where the bounds and the polynomial are explained. */
AVX512_INLINE __m512 exp_16(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_max_ps(_mm512_set1_ps(-87.33654f), x));
    const __m512 n = _mm512_cvtepi32_ps(_mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f))));
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_add_ps(_mm512_fmadd_ps(y, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

AVX512 static void avx512_softmax(float *scores, size_t keys, float *maximum, float *sum, float *factor) {
    const __m512 before = _mm512_loadu_ps(maximum);
    __m512 highest = before, total = _mm512_setzero_ps();
    for (size_t i = 0; i < keys; i++) highest = _mm512_max_ps(highest, _mm512_loadu_ps(scores + i * PANEL));
    const __m512 shrink = exp_16(_mm512_sub_ps(before, highest));
    for (size_t i = 0; i < keys; i++) {
        const __m512 value = exp_16(_mm512_sub_ps(_mm512_loadu_ps(scores + i * PANEL), highest));
        _mm512_storeu_ps(scores + i * PANEL, value);
        total = _mm512_add_ps(total, value);
    }
    _mm512_storeu_ps(factor, shrink);
    _mm512_storeu_ps(sum, _mm512_fmadd_ps(_mm512_loadu_ps(sum), shrink, total));
    _mm512_storeu_ps(maximum, highest);
}

AVX512 static void avx512_silu_multiply(const float *gate, const float *value, size_t count, float *target) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (size_t i = 0; i < count; i += 16) {
        const __mmask16 present = (__mmask16)(count - i < 16 ? (1u << (count - i)) - 1u : 0xffffu);
        const __m512 x = _mm512_maskz_loadu_ps(present, gate + i), y = _mm512_maskz_loadu_ps(present, value + i);
        const __m512 denominator = _mm512_add_ps(one, exp_16(_mm512_sub_ps(_mm512_setzero_ps(), x)));
        _mm512_mask_storeu_ps(target + i, present, _mm512_mul_ps(_mm512_div_ps(x, denominator), y));
    }
}

/* ---- the set ---- */

#define AVX512_COMMON                                                                                           \
    .unpack = AVX2_UNPACKERS, .interleave = avx2_interleave, .multiply = avx512_multiply_tokens,                \
    .softmax = avx512_softmax, .silu_multiply = avx512_silu_multiply

static const Kernels *avx512_kernels(void) {
    static const Kernels set = {.name = "avx512", AVX512_COMMON};
    const bool available = avx2_available() && __builtin_cpu_supports("avx512f") &&
                           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512vl");
    return available ? &set : NULL;
}

static const Kernels *vnni_kernels(void) {
    static const Kernels set = {.name = "avx512vnni", AVX512_COMMON, .multiply_levels = vnni_multiply_levels};
    return avx512_kernels() && __builtin_cpu_supports("avx512vnni") ? &set : NULL;
}

#else
static const Kernels *vnni_kernels(void) {
    return NULL;
}

static const Kernels *avx512_kernels(void) {
    return NULL;
}
#endif
