/* What the rooms of the engine share. Everything here is static: the library is one translation unit. */
#ifndef FIRSTLOOK_INTERNAL_H
#define FIRSTLOOK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "h3.h"

/* ---- support.c: error text, sizes, memory -------------------------------------------------------------- */

typedef struct {
    char *text;
    size_t size;
} Failure;

static int fail(Failure *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool multiply_size(size_t a, size_t b, size_t *product);
static bool add_size(size_t a, size_t b, size_t *sum);
static void *allocate(size_t count, size_t size);
static float *allocate_floats(size_t rows, size_t columns);

/* ---- threads.c: a pool that sleeps when idle ------------------------------------------------------------ */

typedef struct pool Pool;
typedef void (*TaskFunction)(void *context, size_t task, size_t worker);

static Pool *pool_create(size_t threads, Failure *error);
static void pool_destroy(Pool *pool);
static void pool_run(Pool *pool, size_t tasks, TaskFunction function, void *context);
static size_t available_processors(void);

/* ---- quants.c: the block formats ------------------------------------------------------------------------ */

enum format_index {
    FORMAT_F32, FORMAT_F16, FORMAT_BF16, FORMAT_Q8_0, FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q5_0, FORMAT_Q5_1,
    FORMAT_Q2_K, FORMAT_Q3_K, FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_COUNT
};

/* `count` values, a multiple of the format's block, as float32. `source` need not be aligned. */
typedef void (*UnpackFunction)(const uint8_t *source, size_t count, float *target);

typedef struct {
    uint32_t type; /* GGML's number */
    const char *name;
    size_t elements, bytes; /* of one block */
    UnpackFunction unpack; /* plain C, exact: what every faster unpacker must equal bit for bit */
} Format;

/*
 * The same values as levels 0 .. 15 [count], with a scale and a shift [count / 32] for each 32 of them: value = scale *
 * level + shift.
 */
typedef void (*LevelsFunction)(const uint8_t *source, size_t count, uint8_t *levels, float *scales, float *shifts);

enum { ROUNDED = 32 };

/* ROUNDED input values in 8 bits: each is scale * level, with levels of -127 .. 127, four in each of `quads`. */
typedef struct {
    float scale, sum; /* sum of the 32 rounded values */
    int32_t quads[8];
} Rounded;

static Rounded round_values(const float *values);
static const Format *format_table(void);
static LevelsFunction levels_of(int format); /* NULL: has none */
static int format_of_type(uint32_t type); /* -1: not computed here */
static const char *type_name(uint32_t type);

/* A weight [rows, columns] in the mapped file, row-major, rows of whole blocks. */
typedef struct {
    const uint8_t *data;
    size_t rows, columns, row_bytes;
    int format;
} Matrix;

/* ---- gguf.c: the file ----------------------------------------------------------------------------------- */

typedef struct {
    const char *data;
    size_t length;
} Text;

typedef struct {
    Text name;
    uint32_t type;
    uint32_t dimensions;
    uint64_t shape[4]; /* fastest first, as in the file; 1 beyond `dimensions` */
    const uint8_t *data;
    size_t bytes;
    int format; /* -1: its type is not computed here, and `bytes` is 0 */
    bool used;
} Tensor;

typedef struct {
    Text key;
    uint32_t type;
    const uint8_t *value;
    size_t bytes;
} Metadata;

typedef struct {
    const char *path; /* as given by the caller; for error texts */
    uint8_t *map;
    size_t size;
    Tensor *tensors; /* sorted by name */
    size_t tensor_count;
    Metadata *metadata; /* sorted by key */
    size_t metadata_count;
} Gguf;

static int gguf_open(Gguf *file, const char *path, Failure *error);
static void gguf_close(Gguf *file);
static Tensor *gguf_tensor(const Gguf *file, const char *name);
/* 1 and *found when the key is absent or holds a number; 0 when it holds something else. */
static int gguf_size(const Gguf *file, const char *key, size_t *value, bool *found, Failure *error);
static int gguf_double(const Gguf *file, const char *key, double *value, bool *found, Failure *error);
static int gguf_sizes(const Gguf *file, const char *key, size_t *values, size_t count, bool *found,
                      Failure *error);
static int gguf_text(const Gguf *file, const char *key, Text *value, bool *found, Failure *error);
static void gguf_give_back(const Gguf *file, const uint8_t *data, size_t bytes);

/* ---- kernels_*.c: one set for each instruction set ------------------------------------------------------ */

/*
 * Every set computes the same shape: PANEL weight rows, interleaved so that a vector runs over rows, times a tile
 * of tokens (or keys, or channels) whose values are broadcast; as many as fit its registers. A new instruction set
 * is one such micro-kernel; a new format is one unpacker.
 */
enum {
    PANEL = 16,    /* weight rows (or queries) of a micro-kernel */
    K_BLOCK = 256, /* columns unpacked at once: a panel is then 16 KB, half of the smallest L1 cache, and every
                      format's block divides it */
    GROUP = 4,     /* panels of one task */
    CHUNK = 512    /* tokens of one task: its output, CHUNK x GROUP x PANEL floats, stays in L2 */
};

/* PANEL rows of K_BLOCK levels: four levels of a row are one of its `quads`, so a vector runs over rows here too. */
typedef struct {
    const float *quads;          /* [k / 4][PANEL], 4 bytes each */
    const float *scales, *shifts; /* [k / 32][PANEL] */
} LevelPanel;

typedef struct {
    const char *name;
    UnpackFunction unpack[FORMAT_COUNT];

    /* rows [count <= PANEL] of k floats, `stride` apart, to [k][PANEL]; missing rows become zero. */
    void (*interleave)(const float *rows, size_t stride, size_t count, size_t k, float *panel);

    /*
     * output[t * output_stride + r] (+)= sum over k of panel[k][r] * input[t * token_stride + k * k_stride] for
     * t < tokens, r < PANEL; k ascending in one accumulator for each output, so that tiling never changes a sum.
     * One of the two strides of the input is 1.
     */
    void (*multiply)(const float *panel, const float *input, size_t token_stride, size_t k_stride, size_t k,
                     size_t tokens, float *output, size_t output_stride, bool accumulate);

    /*
     * As multiply, for levels and rounded inputs: group g of token t is input[g * group_stride + t]. Sums of 32
     * products are exact. NULL where it would not be faster; the plain one is there to compare with.
     */
    void (*multiply_levels)(const LevelPanel *panel, const Rounded *input, size_t group_stride, size_t groups,
                            size_t tokens, float *output, size_t output_stride, bool accumulate);

    /*
     * One step of the online softmax over scores [keys][PANEL]: updates the running maximum and sum [PANEL],
     * turns scores into exp(score - maximum), and gives the factor [PANEL] that earlier results shrink by.
     */
    void (*softmax)(float *scores, size_t keys, float *maximum, float *sum, float *factor);

    /* target = gate * sigmoid(gate) * value; target may be gate. */
    void (*silu_multiply)(const float *gate, const float *value, size_t count, float *target);
} Kernels;

enum { MOST_KERNELS = 5 };

/* The sets that this processor runs, fastest first, plain last. */
static size_t available_kernels(const Kernels *sets[MOST_KERNELS]);
static const Kernels *plain_kernels(void);
static const Kernels *fastest_kernels(void);
static const Kernels *kernels_named(const char *name, Failure *error);

/* ---- selftest.c ----------------------------------------------------------------------------------------- */

/* NULL when `candidate` agrees with the plain kernels on random data, else the name of what differs. */
static const char *selftest(const Kernels *candidate);

/* ---- gemm.c and attention.c ----------------------------------------------------------------------------- */

/* What computes: kernels, threads and, for each thread, scratch of `scratch_floats`. */
typedef struct {
    const Kernels *kernels;
    Pool *pool;
    size_t threads;
    float **scratch;
    bool round_inputs; /* of 4-bit weights, to 8 bits */
} Engine;

static size_t gemm_scratch(void);                   /* floats for each thread */
static size_t attention_scratch(size_t head_width); /* floats for each thread */

/*
 * output = input weight^T + bias, for `tokens` rows of `input`.
 * Column c of token t goes to output[(c / block) * block_stride + t * row_stride + c % block]: block =
 * block_stride = row_stride = columns is an ordinary matrix, block = head width puts each head's rows together.
 * With `swiglu` the first half of the weight's rows is the gate: output = silu(gate) * value, half as wide.
 */
typedef struct {
    const Matrix *weight;
    const float *bias;       /* [weight->rows] or NULL */
    const float *input;      /* [*, weight->columns] */
    const int64_t *gather;   /* [tokens] rows of input to take, or NULL for 0 .. tokens - 1 */
    size_t tokens;
    float *packed;           /* memory for tokens * weight->columns floats */
    float *output;
    size_t block, block_stride, row_stride;
    bool swiglu;
} Product;

static void gemm(const Engine *engine, const Product *product);

/*
 * softmax(q k^T / sqrt(width)) v for every head over all rows, no mask.
 * heads [3 * count][rows][width]: queries, keys, values; output [rows][count * width].
 */
static void attention(const Engine *engine, const float *heads, size_t count, size_t rows, size_t width,
                      float *output);

#endif
