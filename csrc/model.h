/* What a model and a run consist of. */
#ifndef FIRSTLOOK_MODEL_H
#define FIRSTLOOK_MODEL_H

#include "internal.h"

enum {
    MODALITIES = 3,        /* 0 video, 1 text, 2 audio */
    SLOTS = 6,             /* of a modulation row: what each is, see enum slot */
    LONGEST_NAME = 128,    /* of a tensor or a dump */
    MOST_BLOCKS = 4096     /* more is a damaged file, not a model */
};

enum slot { SHIFT_ATTENTION, SCALE_ATTENTION, GATE_ATTENTION, SHIFT_FEED, SCALE_FEED, GATE_FEED };

/* Names follow the equations: D hidden, I heads * head width, F feed forward, E time width. */
typedef struct {
    float *norm1, *norm2;     /* [D] */
    float *q_norm, *k_norm;   /* [head width], shared by all heads */
    Matrix qkv;               /* [3 I, D]: all queries, all keys, all values */
    Matrix out;               /* [D, I] */
    Matrix fc1;               /* [2 F, D]: gate, then value */
    Matrix fc2;               /* [D, F] */
    Matrix adaln, adaln_bias; /* [18 D, E], [1, 18 D]; not in refiner blocks */
} Block;

typedef struct {
    Matrix weight;
    float *bias;
} Linear;

/* The modulation of every timestep of a schedule. Depends on weights and timesteps only, so runs share it. */
typedef struct {
    atomic_size_t references;
    size_t timestep_count;
    float *timesteps;  /* [M], distinct */
    float *frequencies; /* [M, time frequencies], the sinusoids */
    float *embedding;  /* [M, E] */
    float **blocks;    /* for each block [M * MODALITIES, SLOTS, D] */
    size_t block_count;
    float *final;      /* [M, 2, D]: shift, scale */
} Modulation;

struct h3_model {
    atomic_size_t references; /* 1 for the caller and 1 for each run */
    pthread_mutex_t computing;
    char *path;
    Gguf file;
    h3_config config;
    const Kernels *kernels;
    char kernels_note[160];
    Engine engine;

    Linear video_in, audio_in, text_in, time_in, time_out, video_out, audio_out;
    Block *blocks, *refiner;
    float *refiner_norm; /* [D] */
    float *final_norm;   /* [D] */
    Matrix final_adaln, final_adaln_bias; /* [2 D, E], [1, 2 D] */
    float *inverse_frequencies; /* [rope frequencies] */

    float **owned; /* every vector above, for freeing */
    size_t owned_count;
    Modulation *recent; /* of the latest run; the next often asks for the same timesteps */
};

struct h3_run {
    h3_model *model;
    size_t rows, video_rows, audio_rows, text_rows;
    int64_t *tags, *video_indices, *audio_indices, *text_indices;
    float *cosines, *sines;  /* [rows, 3 * rope frequencies] */
    float *text;             /* [text_rows, D], refined */
    Modulation *modulation;
    size_t *timestep_of;     /* [rows], of the current step */
    size_t *modulation_of;   /* [rows], timestep * MODALITIES + tag */

    float *x;      /* [rows, D], the residual stream */
    float *branch; /* [rows, max(D, I)]: what goes into and comes out of each half of a block */
    float *wide;   /* [rows, max(3 I, F)]: heads, later the inner values of the feed forward */
    float *packed; /* memory for gemm */
};

static int model_load(h3_model *model, Failure *error);

#endif
