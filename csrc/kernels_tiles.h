/*
 * From one tile to any number of tokens; included by a kernel set after its multiply_tile. KERNEL is the attribute
 * that its functions carry, SET(name) a name in that set, and TILE the most tokens of a tile, up to 12.
 */

#define MULTIPLY(height)                                                                                      \
    SET(multiply_tile)(panel, from, token_stride, k_stride, k, height, to, output_stride, accumulate)

/* Tiles of nearly equal height, as few as possible: 32 tokens are 2 x 6 + 4 x 5, not 5 x 6 + 2. */
KERNEL __attribute__((always_inline)) static inline void SET(multiply_tiles)(const float *panel, const float *input,
                                                                             size_t token_stride, size_t k_stride,
                                                                             size_t k, size_t tokens, float *output,
                                                                             size_t output_stride, bool accumulate) {
    const size_t tiles = (tokens + TILE - 1) / TILE;
    for (size_t tile = 0, t = 0; tile < tiles; tile++) {
        const size_t height = (tokens - t + tiles - tile - 1) / (tiles - tile);
        const float *const from = input + t * token_stride;
        float *const to = output + t * output_stride;
        switch (height) {
        case 1: MULTIPLY(1); break;
        case 2: MULTIPLY(2); break;
        case 3: MULTIPLY(3); break;
        case 4: MULTIPLY(4); break;
        case 5: MULTIPLY(5); break;
        case 6: MULTIPLY(6); break;
#if TILE > 6
        case 7: MULTIPLY(7); break;
        case 8: MULTIPLY(8); break;
        case 9: MULTIPLY(9); break;
        case 10: MULTIPLY(10); break;
        case 11: MULTIPLY(11); break;
        case 12: MULTIPLY(12); break;
#endif
        }
        t += height;
    }
}

/* One of the strides is always 1: told so, the compiler keeps all addresses in a few registers. */
KERNEL static void SET(multiply_tokens)(const float *panel, const float *input, size_t token_stride,
                                        size_t k_stride, size_t k, size_t tokens, float *output,
                                        size_t output_stride, bool accumulate) {
    if (k_stride == 1)
        SET(multiply_tiles)(panel, input, token_stride, 1, k, tokens, output, output_stride, accumulate);
    else
        SET(multiply_tiles)(panel, input, 1, k_stride, k, tokens, output, output_stride, accumulate);
}

#undef MULTIPLY
#undef KERNEL
#undef SET
#undef TILE
