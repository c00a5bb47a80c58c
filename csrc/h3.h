/*
 * Firstlook's engine: the MiniMax-H3 transformer denoiser on a CPU, from the weights of a GGUF file.
 *
 * A model is opened from a file and stays mapped; nothing copies its weights. A run belongs to one prompt and
 * one shape: it holds the refined text, the modulation tables of every timestep it was prepared for, and all
 * memory that a forward pass needs. Each call of h3_velocity is one forward pass.
 *
 *     h3_options options = H3_OPTIONS_DEFAULT;
 *     h3_model *model;  h3_run *run;  char error[512];
 *     if (!h3_open(path, &options, &model, error, sizeof error)) ...
 *     if (!h3_prepare(model, &sequence, text, timesteps, count, NULL, NULL, &run, error, sizeof error)) ...
 *     if (!h3_velocity(run, &step, error, sizeof error)) ...
 *     h3_release(run);  h3_close(model);
 *
 * Functions that can fail return 1 when they did what they say and 0 when not; then `error` holds one
 * sentence. Nothing exits, prints, or keeps state outside the handles, so several models can be open at once.
 * Calls on one model and its runs may come from any thread; those that compute wait for each other, so a
 * callback must not compute with its own model. Threads do not survive fork(): open models after it.
 *
 * The same input gives the same bytes whatever the number of threads. Other kernels (another processor)
 * round differently: expect a relative difference of about 1e-6, not equal bytes.
 */
#ifndef FIRSTLOOK_H3_H
#define FIRSTLOOK_H3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define H3_API __attribute__((visibility("default")))
#else
#define H3_API
#endif

#define H3_VERSION "0.1.0"

/* The text of the error after a callback asked to stop. */
#define H3_CANCELLED "The run was cancelled."

typedef struct h3_model h3_model;
typedef struct h3_run h3_run;

/*
 * `done` of `total` transformer blocks are finished; called with 0 before the first one. A non-zero return
 * stops the call, within one block.
 */
typedef int (*h3_progress)(void *context, size_t done, size_t total);

/*
 * A named intermediate, [rows, columns] float32, valid during the call only. A non-zero return stops the pass.
 * Names, in order: time_proj, temb, refined_text, rope_cos, rope_sin, packed_input; then for each block i
 * block{i}_adaln [timesteps * 3, 6 * hidden], block{i}_attn_in, block{i}_attn_out, block{i}_ff_in,
 * block{i}_ff_out, block{i}_out; last norm_out. attn_out and ff_out are taken before their gate.
 */
typedef int (*h3_dump)(void *context, const char *name, const float *values, size_t rows, size_t columns);

typedef struct {
    int threads;         /* 0: as many as this process may use processors */
    const char *kernels; /* NULL: the fastest set this processor has, or what H3_KERNELS names. A name forces that
                            set ("plain", "avx2", "avx512", "avx512vnni", "neon"): for diagnosis, and refused where
                            it cannot run. */
    int round_inputs;    /* 0: products are exact, in float32. 1: what Q4_0, Q4_1 and Q4_K weights are multiplied by is
                            rounded to 8 bits, each 32 values by their largest. Moves the velocity by 0.3 to 0.8 %
                            (relative L2, random models of 2 and 6 blocks), where Q4_0 itself costs 9 %. Only where
                            the processor is faster with it, see h3_rounds_inputs; elsewhere products stay exact. */
} h3_options;

#define H3_OPTIONS_DEFAULT {0, NULL, 0}

/*
 * Every dimension, as read from the file. Tensors decide; what they cannot tell comes from metadata
 * `minimax_h3.*`, and where that is silent from the values of the released H3.
 */
typedef struct {
    size_t hidden;          /* width of the residual stream */
    size_t heads;           /* attention heads ... */
    size_t head_width;      /* ... and channels of each; heads * head_width may exceed hidden */
    size_t feed_forward;    /* inner width of the SwiGLU layers */
    size_t blocks;          /* transformer blocks */
    size_t refiner_blocks;  /* blocks that refine the text, once for each prompt */
    size_t text_width;      /* channels of a text row */
    size_t video_width;     /* channels of a video row: latent_channels * patch[0] * patch[1] * patch[2] */
    size_t audio_width;     /* channels of an audio row */
    size_t latent_channels; /* channels of the video latents */
    size_t patch[3];        /* latents in one video row: time, height, width */
    size_t time_frequencies; /* width of the sinusoidal timestep embedding */
    size_t time_hidden;     /* inner width of the timestep MLP */
    size_t time_width;      /* its output width, the input of every AdaLN projection */
    size_t rope_frequencies; /* rotary frequencies for each of the three axes */
    size_t weight_bytes;    /* tensor data in the file */
    size_t adaln_bytes;     /* the part of it that is read by h3_prepare only */
    double rope_theta;      /* used where the file has no rope.inv_freq */
    float norm_epsilon, qk_norm_epsilon, final_norm_epsilon;
} h3_config;

/*
 * How the rows of one request are packed. Every position 0 .. rows - 1 is named exactly once by one of the
 * three index lists. Lists may be empty, except that there is at least one row.
 */
typedef struct {
    size_t rows;
    const double *positions;      /* [rows, 3]: t, h, w coordinates of the rotary embedding */
    const int64_t *tags;          /* [rows]: modulation of each row, 0 video, 1 text, 2 audio */
    const int64_t *video_indices; /* packed position of each video row (keyframe conditions included) ... */
    size_t video_rows;
    const int64_t *audio_indices; /* ... audio row ... */
    size_t audio_rows;
    const int64_t *text_indices;  /* ... and text row */
    size_t text_rows;
} h3_sequence;

/* One forward pass. Rows are in the order of the index lists; the velocity points toward the data. */
typedef struct {
    const float *video;          /* [video_rows, video_width] */
    const float *audio;          /* [audio_rows, audio_width]; may be NULL when there are none */
    const float *row_timesteps;  /* [rows]: each value exactly one of those prepared; 0 is noise, 1 clean */
    float *video_velocity;       /* [video_rows, video_width] */
    float *audio_velocity;       /* [audio_rows, audio_width]; may be NULL when there are none */
    h3_progress progress;        /* may be NULL */
    void *progress_context;
    h3_dump dump;                /* may be NULL */
    void *dump_context;
} h3_step;

/*
 * Maps the file, checks it against its own size and against the model, and starts the threads. Refused, with
 * the reason: what is not GGUF, truncated files, tensors that are missing, unknown, mis-shaped or stored in a
 * format that is not computed here.
 */
H3_API int h3_open(const char *path, const h3_options *options, h3_model **model, char *error, size_t error_size);

/* Runs that are still prepared keep what they need of the model until they are released. NULL is allowed. */
H3_API void h3_close(h3_model *model);

H3_API void h3_get_config(const h3_model *model, h3_config *config);

/* Threads in use, and the name of the kernels that compute. */
H3_API size_t h3_threads(const h3_model *model);
H3_API const char *h3_kernels(const h3_model *model);

/* 1 when inputs of 4-bit weights are rounded: it was asked for, and these kernels do it. */
H3_API int h3_rounds_inputs(const h3_model *model);

/* "" or one sentence: why the fastest kernels of this processor are not the ones in use. */
H3_API const char *h3_kernels_note(const h3_model *model);

/* What a model would use if it were opened now without options; `note` becomes "" or a sentence as above. */
H3_API const char *h3_trusted_kernels(char *note, size_t note_size);
H3_API size_t h3_processors(void);

H3_API const char *h3_version(void);

/* Bytes that h3_prepare will allocate for this many packed rows, text rows and distinct timesteps. */
H3_API int h3_memory(const h3_model *model, size_t rows, size_t text_rows, size_t timesteps, size_t *bytes,
                     char *error, size_t error_size);

/*
 * Everything that does not change from step to step: refines the text [text_rows, text_width] and builds the
 * AdaLN tables of the given timesteps (duplicates are allowed). The tables are float32, 18 * hidden * blocks
 * values a timestep. AdaLN is 40 % of the weights and is not needed again, so its pages are then given back to
 * the system. Runs of one model with the same timesteps share their tables; the latest stay with the model until
 * others replace them. `progress` counts the blocks whose table is built, and is not called for shared ones.
 */
H3_API int h3_prepare(h3_model *model, const h3_sequence *sequence, const float *text, const float *timesteps,
                      size_t timestep_count, h3_progress progress, void *progress_context, h3_run **run,
                      char *error, size_t error_size);

/*
 * One forward pass, in float32 unless h3_options say otherwise. A value that is not finite stops it, named by the
 * block that produced it; the outputs are then undefined.
 */
H3_API int h3_velocity(h3_run *run, const h3_step *step, char *error, size_t error_size);

/* NULL is allowed. */
H3_API void h3_release(h3_run *run);

/*
 * `count` values of tensor data in GGML format `type` as float32, bit for bit what the gguf package gives.
 * `source_bytes` must be exactly the size of that many values.
 */
H3_API int h3_dequantize(uint32_t type, const uint8_t *source, size_t source_bytes, size_t count, float *target,
                         char *error, size_t error_size);

/*
 * Rows of float32 in GGML format `ggml_type`, for what the gguf package only reads (Q6_K). `columns` must be a
 * multiple of the format's block; `target` holds rows * columns / block elements * block bytes.
 */
H3_API int h3_quantize_rows(int ggml_type, const float *source, size_t rows, size_t columns, uint8_t *target,
                            char *error, size_t error_size);

/* The GGML type number of a format name such as "Q6_K", and its block; 0 when it is not computed here. */
H3_API int h3_format(const char *name, uint32_t *type, size_t *block_elements, size_t *block_bytes);

#ifdef __cplusplus
}
#endif
#endif
