/*
 * From one tile to any number of tokens; included by a kernel set after its multiply_tile. KERNEL is the attribute
 * that its functions carry.
 */

/* Tiles of nearly equal height, as few as possible: 32 tokens are 2 x 6 + 4 x 5, not 5 x 6 + 2. */
KERNEL __attribute__((always_inline)) static inline void multiply_tiles(const float *panel, const float *input,
                                                                        size_t token_stride, size_t k_stride,
                                                                        size_t k, size_t tokens, float *output,
                                                                        size_t output_stride, bool accumulate) {
    const size_t tiles = (tokens + TILE - 1) / TILE;
    for (size_t tile = 0, t = 0; tile < tiles; tile++) {
        const size_t height = (tokens - t + tiles - tile - 1) / (tiles - tile);
        const float *const from = input + t * token_stride;
        float *const to = output + t * output_stride;
        switch (height) {
        case 1: multiply_tile(panel, from, token_stride, k_stride, k, 1, to, output_stride, accumulate); break;
        case 2: multiply_tile(panel, from, token_stride, k_stride, k, 2, to, output_stride, accumulate); break;
        case 3: multiply_tile(panel, from, token_stride, k_stride, k, 3, to, output_stride, accumulate); break;
        case 4: multiply_tile(panel, from, token_stride, k_stride, k, 4, to, output_stride, accumulate); break;
        case 5: multiply_tile(panel, from, token_stride, k_stride, k, 5, to, output_stride, accumulate); break;
        default: multiply_tile(panel, from, token_stride, k_stride, k, 6, to, output_stride, accumulate); break;
        }
        t += height;
    }
}

/* One of the strides is always 1: told so, the compiler keeps all addresses in a few registers. */
KERNEL static void multiply_tokens(const float *panel, const float *input, size_t token_stride, size_t k_stride,
                                   size_t k, size_t tokens, float *output, size_t output_stride, bool accumulate) {
    if (k_stride == 1) multiply_tiles(panel, input, token_stride, 1, k, tokens, output, output_stride, accumulate);
    else multiply_tiles(panel, input, 1, k_stride, k, tokens, output, output_stride, accumulate);
}
