/*
 * The kernels for x86-64 with AVX2, FMA and F16C. Target attributes instead of compiler flags: the rest of the
 * library stays runnable on any x86-64, and this set is chosen at run time.
 */
#include "internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX2_INLINE AVX2 __attribute__((always_inline)) static inline

/* ---- unpacking ---- */

AVX2_INLINE __m256i load_u128_wide(const uint8_t *bytes) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)bytes));
}

AVX2 static void avx2_unpack_f16(const uint8_t *source, size_t count, float *target) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(source + 2 * i))));
    unpack_f16(source + 2 * i, count - i, target + i);
}

AVX2 static void avx2_unpack_bf16(const uint8_t *source, size_t count, float *target) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(target + i, _mm256_castsi256_ps(_mm256_slli_epi32(load_u128_wide(source + 2 * i), 16)));
    unpack_bf16(source + 2 * i, count - i, target + i);
}

AVX2_INLINE float avx2_half(const uint8_t *source) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(read_u16(source))));
}

/* Eight signed bytes, the low half of `bytes`, times scale. */
AVX2_INLINE void store_scaled(__m128i bytes, __m256 scale, float *target) {
    _mm256_storeu_ps(target, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
}

AVX2_INLINE void store_scaled_16(__m128i bytes, __m256 scale, float *target) {
    store_scaled(bytes, scale, target);
    store_scaled(_mm_srli_si128(bytes, 8), scale, target + 8);
}

AVX2_INLINE __m256i load_u8_32(const uint8_t *bytes) {
    return _mm256_loadu_si256((const __m256i *)(const void *)bytes);
}

/* The low nibbles of 16 bytes, then their high ones. */
AVX2_INLINE __m256i load_nibbles(const uint8_t *bytes) {
    const __m128i both = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), _mm256_set1_epi8(15));
}

/* Bit j of the 32 as 16 in byte j. */
AVX2_INLINE __m256i load_fifth_bits(const uint8_t *bytes) {
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32((int)read_u32(bytes)), byte_of);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of), _mm256_set1_epi8(16));
}

/* Sixteen signed bytes times scale, plus shift. */
AVX2_INLINE void store_shifted_16(__m128i bytes, float scale, float shift, float *target) {
    for (size_t half = 0; half < 2; half++, bytes = _mm_srli_si128(bytes, 8)) {
        const __m256 product = _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
        _mm256_storeu_ps(target + 8 * half, _mm256_add_ps(product, _mm256_set1_ps(shift)));
    }
}

AVX2_INLINE void store_shifted_32(__m256i bytes, float scale, float shift, float *target) {
    store_shifted_16(_mm256_castsi256_si128(bytes), scale, shift, target);
    store_shifted_16(_mm256_extracti128_si256(bytes, 1), scale, shift, target + 16);
}

AVX2 static void avx2_unpack_q8_0(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 34, target += 32) {
        const __m256 scale = _mm256_set1_ps(avx2_half(source));
        store_scaled_16(_mm_loadu_si128((const __m128i *)(const void *)(source + 2)), scale, target);
        store_scaled_16(_mm_loadu_si128((const __m128i *)(const void *)(source + 18)), scale, target + 16);
    }
}

AVX2 static void avx2_unpack_q4_0(const uint8_t *source, size_t count, float *target) {
    const __m128i low = _mm_set1_epi8(15), offset = _mm_set1_epi8(8);
    for (size_t i = 0; i < count; i += 32, source += 18, target += 32) {
        const __m256 scale = _mm256_set1_ps(avx2_half(source));
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(source + 2));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), low);
        store_scaled_16(_mm_sub_epi8(_mm_and_si128(bytes, low), offset), scale, target);
        store_scaled_16(_mm_sub_epi8(high, offset), scale, target + 16);
    }
}

AVX2 static void avx2_unpack_q4_1(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 20, target += 32)
        store_shifted_32(load_nibbles(source + 4), avx2_half(source), avx2_half(source + 2), target);
}

AVX2 static void avx2_unpack_q5_0(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 22, target += 32) {
        const __m256 scale = _mm256_set1_ps(avx2_half(source));
        const __m256i levels = _mm256_or_si256(load_nibbles(source + 6), load_fifth_bits(source + 2));
        const __m256i values = _mm256_sub_epi8(levels, _mm256_set1_epi8(16));
        store_scaled_16(_mm256_castsi256_si128(values), scale, target);
        store_scaled_16(_mm256_extracti128_si256(values, 1), scale, target + 16);
    }
}

AVX2 static void avx2_unpack_q5_1(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 32, source += 24, target += 32) {
        const __m256i levels = _mm256_or_si256(load_nibbles(source + 8), load_fifth_bits(source + 4));
        store_shifted_32(levels, avx2_half(source), avx2_half(source + 2), target);
    }
}

AVX2 static void avx2_unpack_q2_k(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 256, source += 84) {
        const float scale = avx2_half(source + 80), least = avx2_half(source + 82);
        for (size_t run = 0; run < 8; run++, target += 32) {
            const __m128i shift = _mm_cvtsi32_si128((int)(run % 4 * 2));
            const __m256i pairs = _mm256_srl_epi16(load_u8_32(source + 16 + run / 4 * 32), shift);
            const __m256i levels = _mm256_and_si256(pairs, _mm256_set1_epi8(3));
            const uint8_t a = source[2 * run], b = source[2 * run + 1];
            store_shifted_16(_mm256_castsi256_si128(levels), scale * (float)(a & 15), -(least * (float)(a >> 4)),
                             target);
            store_shifted_16(_mm256_extracti128_si256(levels, 1), scale * (float)(b & 15), -(least * (float)(b >> 4)),
                             target + 16);
        }
    }
}

AVX2 static void avx2_unpack_q3_k(const uint8_t *source, size_t count, float *target) {
    for (size_t i = 0; i < count; i += 256, source += 110) {
        const float scale = avx2_half(source + 108);
        const __m256i high = load_u8_32(source), four = _mm256_set1_epi8(4);
        for (size_t run = 0; run < 8; run++, target += 32) {
            const __m256i pairs =
                _mm256_srl_epi16(load_u8_32(source + 32 + run / 4 * 32), _mm_cvtsi32_si128((int)(run % 4 * 2)));
            const __m256i bit = _mm256_set1_epi8((char)(1u << run));
            const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            const __m256i values = _mm256_sub_epi8(_mm256_and_si256(pairs, _mm256_set1_epi8(3)),
                                                   _mm256_andnot_si256(set, four));
            store_scaled_16(_mm256_castsi256_si128(values),
                            _mm256_set1_ps(scale * q3_scale(source + 96, 2 * run)), target);
            store_scaled_16(_mm256_extracti128_si256(values, 1),
                            _mm256_set1_ps(scale * q3_scale(source + 96, 2 * run + 1)), target + 16);
        }
    }
}

/* Group `group` of Q4_K and Q5_K: levels times their scale less their minimum. */
AVX2_INLINE void store_k_group(__m256i levels, const uint8_t *source, size_t group, float *target) {
    float scale, minimum;
    read_scale_and_minimum(source + 4, group, &scale, &minimum);
    store_shifted_32(levels, avx2_half(source) * scale, -(avx2_half(source + 2) * minimum), target);
}

AVX2 static void avx2_unpack_q4_k(const uint8_t *source, size_t count, float *target) {
    const __m256i low = _mm256_set1_epi8(15);
    for (size_t i = 0; i < count; i += 256, source += 144) {
        for (size_t group = 0; group < 8; group += 2, target += 64) {
            const __m256i nibbles = load_u8_32(source + 16 + group * 16);
            store_k_group(_mm256_and_si256(nibbles, low), source, group, target);
            store_k_group(_mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low), source, group + 1, target + 32);
        }
    }
}

AVX2 static void avx2_unpack_q5_k(const uint8_t *source, size_t count, float *target) {
    const __m256i low = _mm256_set1_epi8(15), sixteen = _mm256_set1_epi8(16);
    for (size_t i = 0; i < count; i += 256, source += 176) {
        const __m256i high = load_u8_32(source + 16);
        for (size_t group = 0; group < 8; group++, target += 32) {
            const __m128i shift = _mm_cvtsi32_si128((int)(group % 2 * 4));
            const __m256i nibbles = _mm256_srl_epi16(load_u8_32(source + 48 + group / 2 * 32), shift);
            const __m256i bit = _mm256_set1_epi8((char)(1u << group));
            const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            store_k_group(_mm256_or_si256(_mm256_and_si256(nibbles, low), _mm256_and_si256(set, sixteen)), source,
                          group, target);
        }
    }
}

/* One run of 32: nibbles and high bit pairs, both already in the low bits of their bytes. */
AVX2_INLINE void store_q6_run(__m256i nibbles, __m256i pairs, float scale, const uint8_t *group_scales,
                              float *target) {
    const __m256i values =
        _mm256_sub_epi8(_mm256_or_si256(nibbles, _mm256_slli_epi16(pairs, 4)), _mm256_set1_epi8(32));
    store_scaled_16(_mm256_castsi256_si128(values), _mm256_set1_ps(scale * (float)(int8_t)group_scales[0]), target);
    store_scaled_16(_mm256_extracti128_si256(values, 1), _mm256_set1_ps(scale * (float)(int8_t)group_scales[1]),
                    target + 16);
}

AVX2 static void avx2_unpack_q6_k(const uint8_t *source, size_t count, float *target) {
    const __m256i low4 = _mm256_set1_epi8(15), low2 = _mm256_set1_epi8(3);
    for (size_t i = 0; i < count; i += 256, source += 210) {
        const float scale = avx2_half(source + 208);
        for (size_t half = 0; half < 2; half++, target += 128) {
            const uint8_t *const scales = source + 192 + 8 * half;
            const __m256i first = _mm256_loadu_si256((const __m256i *)(const void *)(source + 64 * half));
            const __m256i second = _mm256_loadu_si256((const __m256i *)(const void *)(source + 64 * half + 32));
            const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(source + 128 + 32 * half));
            store_q6_run(_mm256_and_si256(first, low4), _mm256_and_si256(high, low2), scale, scales, target);
            store_q6_run(_mm256_and_si256(second, low4), _mm256_and_si256(_mm256_srli_epi16(high, 2), low2), scale,
                         scales + 2, target + 32);
            store_q6_run(_mm256_and_si256(_mm256_srli_epi16(first, 4), low4),
                         _mm256_and_si256(_mm256_srli_epi16(high, 4), low2), scale, scales + 4, target + 64);
            store_q6_run(_mm256_and_si256(_mm256_srli_epi16(second, 4), low4),
                         _mm256_and_si256(_mm256_srli_epi16(high, 6), low2), scale, scales + 6, target + 96);
        }
    }
}

/* ---- the product ---- */

/* Columns i .. i+7 of eight rows to panel[i .. i+7][0 .. 7]. */
AVX2_INLINE void transpose_8(const float *rows, size_t stride, float *panel) {
    __m256 row[8], pair[8], quad[8];
    for (size_t r = 0; r < 8; r++) row[r] = _mm256_loadu_ps(rows + r * stride);
    for (size_t r = 0; r < 8; r += 2) {
        pair[r] = _mm256_unpacklo_ps(row[r], row[r + 1]);
        pair[r + 1] = _mm256_unpackhi_ps(row[r], row[r + 1]);
    }
    for (size_t r = 0; r < 8; r += 4) {
        quad[r] = _mm256_shuffle_ps(pair[r], pair[r + 2], 0x44);
        quad[r + 1] = _mm256_shuffle_ps(pair[r], pair[r + 2], 0xee);
        quad[r + 2] = _mm256_shuffle_ps(pair[r + 1], pair[r + 3], 0x44);
        quad[r + 3] = _mm256_shuffle_ps(pair[r + 1], pair[r + 3], 0xee);
    }
    for (size_t c = 0; c < 4; c++) {
        _mm256_storeu_ps(panel + c * PANEL, _mm256_permute2f128_ps(quad[c], quad[c + 4], 0x20));
        _mm256_storeu_ps(panel + (c + 4) * PANEL, _mm256_permute2f128_ps(quad[c], quad[c + 4], 0x31));
    }
}

AVX2 static void avx2_interleave(const float *rows, size_t stride, size_t count, size_t k, float *panel) {
    size_t i = 0;
    if (count == PANEL) {
        for (; i + 8 <= k; i += 8) {
            transpose_8(rows + i, stride, panel + i * PANEL);
            transpose_8(rows + 8 * stride + i, stride, panel + i * PANEL + 8);
        }
    }
    plain_interleave(rows + i, stride, count, k - i, panel + i * PANEL);
}

#define KERNEL AVX2
#define SET(name) avx2_##name
#define TILE 6

/* `tokens` is a constant wherever this is inlined, so the sums live in registers: 2 * TILE of the 16. */
AVX2_INLINE void avx2_multiply_tile(const float *panel, const float *input, size_t token_stride, size_t k_stride,
                                    size_t k, const size_t tokens, float *output, size_t output_stride,
                                    bool accumulate) {
    __m256 low[TILE], high[TILE];
#pragma GCC unroll 6
    for (size_t t = 0; t < tokens; t++) low[t] = high[t] = _mm256_setzero_ps();
    for (size_t i = 0; i < k; i++) {
        const __m256 panel_low = _mm256_loadu_ps(panel + i * PANEL);
        const __m256 panel_high = _mm256_loadu_ps(panel + i * PANEL + 8);
#pragma GCC unroll 6
        for (size_t t = 0; t < tokens; t++) {
            const __m256 value = _mm256_broadcast_ss(input + t * token_stride + i * k_stride);
            low[t] = _mm256_fmadd_ps(panel_low, value, low[t]);
            high[t] = _mm256_fmadd_ps(panel_high, value, high[t]);
        }
    }
#pragma GCC unroll 6
    for (size_t t = 0; t < tokens; t++) {
        float *const target = output + t * output_stride;
        if (accumulate) {
            low[t] = _mm256_add_ps(_mm256_loadu_ps(target), low[t]);
            high[t] = _mm256_add_ps(_mm256_loadu_ps(target + 8), high[t]);
        }
        _mm256_storeu_ps(target, low[t]);
        _mm256_storeu_ps(target + 8, high[t]);
    }
}

#include "kernels_tiles.h"

/* ---- exponentials ---- */

/*
 * e^x within 2 units in the last place: 2^n e^r with |r| <= ln(2) / 2 and the polynomial of Cephes' expf. Below
 * -87.3 the result is the smallest normal number instead of a subnormal one; above 88 it is e^88. The order of
 * arguments of min and max lets a not-a-number through.
 */
AVX2_INLINE __m256 exp_8(__m256 x) {
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), _mm256_max_ps(_mm256_set1_ps(-87.33654f), x));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_add_ps(_mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

AVX2 static void avx2_softmax(float *scores, size_t keys, float *maximum, float *sum, float *factor) {
    for (size_t half = 0; half < PANEL; half += 8) {
        float *const column = scores + half;
        const __m256 before = _mm256_loadu_ps(maximum + half);
        __m256 highest = before, total = _mm256_setzero_ps();
        for (size_t i = 0; i < keys; i++) highest = _mm256_max_ps(highest, _mm256_loadu_ps(column + i * PANEL));
        const __m256 shrink = exp_8(_mm256_sub_ps(before, highest));
        for (size_t i = 0; i < keys; i++) {
            const __m256 value = exp_8(_mm256_sub_ps(_mm256_loadu_ps(column + i * PANEL), highest));
            _mm256_storeu_ps(column + i * PANEL, value);
            total = _mm256_add_ps(total, value);
        }
        _mm256_storeu_ps(factor + half, shrink);
        _mm256_storeu_ps(sum + half, _mm256_fmadd_ps(_mm256_loadu_ps(sum + half), shrink, total));
        _mm256_storeu_ps(maximum + half, highest);
    }
}

AVX2_INLINE __m256 silu_multiply_8(__m256 gate, __m256 value) {
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 denominator = _mm256_add_ps(one, exp_8(_mm256_sub_ps(_mm256_setzero_ps(), gate)));
    return _mm256_mul_ps(_mm256_div_ps(gate, denominator), value);
}

AVX2 static void avx2_silu_multiply(const float *gate, const float *value, size_t count, float *target) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(target + i, silu_multiply_8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(value + i)));
    if (i == count) return;
    float last[2][8] = {{0}};
    for (size_t j = i; j < count; j++) {
        last[0][j - i] = gate[j];
        last[1][j - i] = value[j];
    }
    _mm256_storeu_ps(last[0], silu_multiply_8(_mm256_loadu_ps(last[0]), _mm256_loadu_ps(last[1])));
    for (size_t j = i; j < count; j++) target[j] = last[0][j - i];
}

/* ---- the set ---- */

#define AVX2_UNPACKERS                                                                                          \
    {                                                                                                           \
        unpack_f32, avx2_unpack_f16, avx2_unpack_bf16, avx2_unpack_q8_0, avx2_unpack_q4_0, avx2_unpack_q4_1,    \
        avx2_unpack_q5_0, avx2_unpack_q5_1, avx2_unpack_q2_k, avx2_unpack_q3_k, avx2_unpack_q4_k,               \
        avx2_unpack_q5_k, avx2_unpack_q6_k                                                                      \
    }

static bool avx2_available(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    const bool fma_and_f16c = (c & bit_FMA) && (c & bit_F16C);
    /* Asks the operating system as well, which must save the wide registers. */
    return fma_and_f16c && __builtin_cpu_supports("avx2");
}

static const Kernels *avx2_kernels(void) {
    static const Kernels set = {
        .name = "avx2",
        .unpack = AVX2_UNPACKERS,
        .interleave = avx2_interleave,
        .multiply = avx2_multiply_tokens,
        .softmax = avx2_softmax,
        .silu_multiply = avx2_silu_multiply,
    };
    return avx2_available() ? &set : NULL;
}

#else
static const Kernels *avx2_kernels(void) {
    return NULL;
}
#endif
