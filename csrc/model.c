/*
 * From a file to a model: finds every tensor by name, takes the dimensions from their shapes, and refuses what
 * is missing, unknown or does not fit. Names are those of the community's files; queries, keys and values are
 * stacked, and the first half of fc1 is the gate.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

typedef struct {
    h3_model *model;
    const char *prefix;
    Failure *error;
} Loader;

typedef struct {
    char text[LONGEST_NAME];
} Name;

static Name make_name(const char *format, ...) __attribute__((format(printf, 1, 2)));

static Name make_name(const char *format, ...) {
    Name result;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result.text, sizeof result.text, format, arguments);
    va_end(arguments);
    return result;
}

/* ---- tensors ---- */

static Tensor *look_up(const Loader *loader, const char *tensor_name) {
    return gguf_tensor(&loader->model->file, make_name("%s%s", loader->prefix, tensor_name).text);
}

static Tensor *take_tensor(const Loader *loader, const char *tensor_name) {
    Tensor *const found = look_up(loader, tensor_name);
    if (!found) {
        fail(loader->error, "%s: tensor %s%s is missing.", loader->model->path, loader->prefix, tensor_name);
        return NULL;
    }
    if (found->format < 0) {
        fail(loader->error, "%s: tensor %s%s is stored as %s (type %u), which this engine does not compute.",
             loader->model->path, loader->prefix, tensor_name, type_name(found->type), found->type);
        return NULL;
    }
    found->used = true;
    loader->model->config.weight_bytes += found->bytes;
    return found;
}

/* A dimension of 0 is not known yet and is taken from the tensor. */
static int take_matrix(const Loader *loader, const char *tensor_name, size_t *rows, size_t *columns,
                       Matrix *result) {
    const Tensor *const found = take_tensor(loader, tensor_name);
    if (!found) return 0;
    const bool flat = found->shape[2] == 1 && found->shape[3] == 1;
    if (!flat || (*rows && found->shape[1] != *rows) || (*columns && found->shape[0] != *columns))
        return fail(loader->error, "%s: tensor %s%s has shape [%llu, %llu] where [%zu, %zu] is expected.",
                    loader->model->path, loader->prefix, tensor_name, (unsigned long long)found->shape[1],
                    (unsigned long long)found->shape[0], *rows ? *rows : (size_t)found->shape[1],
                    *columns ? *columns : (size_t)found->shape[0]);
    *rows = (size_t)found->shape[1];
    *columns = (size_t)found->shape[0];
    *result = (Matrix){found->data, *rows, *columns, found->bytes / *rows, found->format};
    return 1;
}

static void unpack_row(const Matrix *row, float *target) {
    format_table()[row->format].unpack(row->data, row->columns, target);
}

/* A norm weight or bias, small enough to keep as float32. */
static int take_vector(const Loader *loader, const char *tensor_name, size_t *count, float **result) {
    h3_model *const model = loader->model;
    Matrix row = {0};
    size_t one = 1;
    if (!take_matrix(loader, tensor_name, &one, count, &row)) return 0;
    *result = allocate_floats(1, row.columns);
    if (!*result) return fail(loader->error, "%s: not enough memory for tensor %s.", model->path, tensor_name);
    model->owned[model->owned_count++] = *result;
    unpack_row(&row, *result);
    return 1;
}

static int take_linear(const Loader *loader, const char *base, size_t *rows, size_t *columns, Linear *result) {
    return take_matrix(loader, make_name("%s.weight", base).text, rows, columns, &result->weight) &&
           take_vector(loader, make_name("%s.bias", base).text, rows, &result->bias);
}

static int take_adaln(const Loader *loader, const char *base, size_t rows, Matrix *weight, Matrix *bias) {
    h3_config *const config = &loader->model->config;
    const size_t before = config->weight_bytes;
    size_t one = 1;
    if (!take_matrix(loader, make_name("%s.weight", base).text, &rows, &config->time_width, weight) ||
        !take_matrix(loader, make_name("%s.bias", base).text, &one, &rows, bias))
        return 0;
    config->adaln_bytes += config->weight_bytes - before;
    return 1;
}

/* ---- blocks ---- */

static int odd(const Loader *loader, const char *base, const char *what) {
    return fail(loader->error, "%s: %s %s.", loader->model->path, base, what);
}

/* The first block read decides what the outer tensors cannot tell: heads and the width of the feed forward. */
static int take_block(const Loader *loader, const char *base, Block *block) {
    h3_config *const config = &loader->model->config;
    size_t qkv_rows = 3 * config->heads * config->head_width, fc1_rows = 2 * config->feed_forward;
    if (!take_vector(loader, make_name("%s.norm1.weight", base).text, &config->hidden, &block->norm1) ||
        !take_vector(loader, make_name("%s.norm2.weight", base).text, &config->hidden, &block->norm2) ||
        !take_vector(loader, make_name("%s.attn.q_norm.weight", base).text, &config->head_width, &block->q_norm) ||
        !take_vector(loader, make_name("%s.attn.k_norm.weight", base).text, &config->head_width, &block->k_norm) ||
        !take_matrix(loader, make_name("%s.attn.qkv_proj.weight", base).text, &qkv_rows, &config->hidden,
                     &block->qkv) ||
        !take_matrix(loader, make_name("%s.mlp.fc1.weight", base).text, &fc1_rows, &config->hidden, &block->fc1))
        return 0;
    if (qkv_rows % (3 * config->head_width))
        return odd(loader, base, "has a qkv_proj that is not three times a whole number of heads");
    if (fc1_rows % 2) return odd(loader, base, "has an fc1 with an odd number of rows");
    config->heads = qkv_rows / (3 * config->head_width);
    config->feed_forward = fc1_rows / 2;
    size_t inner = config->heads * config->head_width;
    return take_matrix(loader, make_name("%s.attn.out_proj.weight", base).text, &config->hidden, &inner,
                       &block->out) &&
           take_matrix(loader, make_name("%s.mlp.fc2.weight", base).text, &config->hidden, &config->feed_forward,
                       &block->fc2);
}

/* One more than the highest N of tensors called <prefix><base>N.*, so that a gap is found as a missing tensor. */
static int count_blocks(const Loader *loader, const char *base, size_t *count) {
    const Name start = make_name("%s%s", loader->prefix, base);
    const size_t length = strlen(start.text);
    *count = 0;
    for (size_t i = 0; i < loader->model->file.tensor_count; i++) {
        const Text found = loader->model->file.tensors[i].name;
        if (found.length <= length || memcmp(found.data, start.text, length) != 0) continue;
        size_t number = 0, at = length;
        for (; at < found.length && found.data[at] >= '0' && found.data[at] <= '9' && number < MOST_BLOCKS; at++)
            number = 10 * number + (size_t)(found.data[at] - '0');
        if (number >= MOST_BLOCKS)
            return fail(loader->error, "%s: tensor %s numbers more than %d blocks; the file is damaged.",
                        loader->model->path, show(found).text, MOST_BLOCKS);
        if (at > length && number + 1 > *count) *count = number + 1;
    }
    return 1;
}

static int take_blocks(const Loader *loader) {
    h3_model *const model = loader->model;
    h3_config *const config = &model->config;
    if (!count_blocks(loader, "blocks.", &config->blocks) ||
        !count_blocks(loader, "token_refiner.blocks.", &config->refiner_blocks))
        return 0;
    if (!config->blocks) return fail(loader->error, "%s: tensor blocks.0.norm1.weight is missing.", model->path);
    model->blocks = allocate(config->blocks, sizeof *model->blocks);
    model->refiner = allocate(config->refiner_blocks, sizeof *model->refiner);
    if (!model->blocks || !model->refiner)
        return fail(loader->error, "%s: not enough memory for %zu blocks.", model->path, config->blocks);
    for (size_t i = 0; i < config->blocks; i++) {
        const Name base = make_name("blocks.%zu", i);
        Block *const block = &model->blocks[i];
        if (!take_block(loader, base.text, block) ||
            !take_adaln(loader, make_name("%s.adaln_proj.linear", base.text).text,
                        MODALITIES * SLOTS * config->hidden, &block->adaln, &block->adaln_bias))
            return 0;
    }
    for (size_t i = 0; i < config->refiner_blocks; i++) {
        if (!take_block(loader, make_name("token_refiner.blocks.%zu", i).text, &model->refiner[i])) return 0;
    }
    return 1;
}

static int take_outer(const Loader *loader) {
    h3_model *const model = loader->model;
    h3_config *const config = &model->config;
    return take_linear(loader, "video_patch_proj", &config->hidden, &config->video_width, &model->video_in) &&
           take_linear(loader, "audio_patch_proj", &config->hidden, &config->audio_width, &model->audio_in) &&
           take_linear(loader, "condition_proj", &config->hidden, &config->text_width, &model->text_in) &&
           take_linear(loader, "time_embedder.proj_in", &config->time_hidden, &config->time_frequencies,
                       &model->time_in) &&
           take_linear(loader, "time_embedder.proj_out", &config->time_width, &config->time_hidden,
                       &model->time_out) &&
           take_vector(loader, "token_refiner.final_norm.weight", &config->hidden, &model->refiner_norm) &&
           take_vector(loader, "final_layer.norm.weight", &config->hidden, &model->final_norm) &&
           take_adaln(loader, "final_layer.adaln_proj.linear", 2 * config->hidden, &model->final_adaln,
                      &model->final_adaln_bias) &&
           take_linear(loader, "final_layer.video_out", &config->video_width, &config->hidden, &model->video_out) &&
           take_linear(loader, "final_layer.audio_out", &config->audio_width, &config->hidden, &model->audio_out);
}

/* ---- what tensors cannot tell ---- */

static int read_epsilon(const Loader *loader, const char *key, float *value) {
    double read = 1e-5;
    bool found;
    if (!gguf_double(&loader->model->file, key, &read, &found, loader->error)) return 0;
    if (!(read > 0.0 && read < 1.0))
        return fail(loader->error, "%s: metadata %s is not between 0 and 1.", loader->model->path, key);
    *value = (float)read;
    return 1;
}

static int read_patch(const Loader *loader) {
    h3_config *const config = &loader->model->config;
    const char *const path = loader->model->path;
    bool found;
    config->patch[0] = 1;
    config->patch[1] = config->patch[2] = 2;
    if (!gguf_sizes(&loader->model->file, "minimax_h3.patch_size", config->patch, 3, &found, loader->error))
        return 0;
    size_t area = 1;
    for (size_t i = 0; i < 3; i++) {
        if (config->patch[i] < 1 || config->patch[i] > 64)
            return fail(loader->error, "%s: metadata minimax_h3.patch_size is absurd.", path);
        area *= config->patch[i];
    }
    if (config->video_width % area)
        return fail(loader->error, "%s: a video row of %zu values is not whole patches of %zux%zux%zu.", path,
                    config->video_width, config->patch[0], config->patch[1], config->patch[2]);
    config->latent_channels = config->video_width / area;
    return 1;
}

/* 1 / theta^(j / f): the file's own frequencies where it has them. */
static int read_rope(const Loader *loader) {
    h3_model *const model = loader->model;
    h3_config *const config = &model->config;
    bool found;
    config->rope_theta = 10000.0;
    config->rope_frequencies = 16;
    if (!gguf_double(&model->file, "minimax_h3.rope.freq_base", &config->rope_theta, &found, loader->error) ||
        !gguf_size(&model->file, "minimax_h3.rope.dimension_count", &config->rope_frequencies, &found, loader->error))
        return 0;
    if (!(config->rope_theta > 0.0 && isfinite(config->rope_theta)))
        return fail(loader->error, "%s: metadata minimax_h3.rope.freq_base is not a positive number.", model->path);
    const bool stored = look_up(loader, "rope.inv_freq") != NULL;
    if (stored) {
        size_t count = found ? config->rope_frequencies : 0;
        if (!take_vector(loader, "rope.inv_freq", &count, &model->inverse_frequencies)) return 0;
        config->rope_frequencies = count;
    }
    if (!config->rope_frequencies || config->rope_frequencies > config->head_width / 6)
        return fail(loader->error,
                    "%s: %zu rotary frequencies an axis do not fit in heads of %zu channels; "
                    "metadata minimax_h3.rope.dimension_count may be missing.",
                    model->path, config->rope_frequencies, config->head_width);
    if (stored) return 1;
    model->inverse_frequencies = allocate_floats(1, config->rope_frequencies);
    if (!model->inverse_frequencies) return fail(loader->error, "%s: not enough memory.", model->path);
    model->owned[model->owned_count++] = model->inverse_frequencies;
    for (size_t j = 0; j < config->rope_frequencies; j++) {
        const float exponent = (float)j / (float)config->rope_frequencies;
        model->inverse_frequencies[j] = 1.0f / powf((float)config->rope_theta, exponent);
    }
    return 1;
}

/* Metadata that repeats what tensors tell must agree, or the file was put together from two models. */
static int check_repeated(const Loader *loader) {
    const h3_config *const config = &loader->model->config;
    const struct {
        const char *key;
        size_t expected;
    } repeated[] = {
        {"minimax_h3.block_count", config->blocks},
        {"minimax_h3.embedding_length", config->hidden},
        {"minimax_h3.feed_forward_length", config->feed_forward},
        {"minimax_h3.attention.head_count", config->heads},
        {"minimax_h3.attention.key_length", config->head_width},
        {"minimax_h3.latent_channels", config->latent_channels},
        {"minimax_h3.audio_channels", config->audio_width},
    };
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        size_t value = 0;
        bool found;
        if (!gguf_size(&loader->model->file, repeated[i].key, &value, &found, loader->error)) return 0;
        if (found && value != repeated[i].expected)
            return fail(loader->error, "%s: metadata %s is %zu, but the tensors say %zu.", loader->model->path,
                        repeated[i].key, value, repeated[i].expected);
    }
    return 1;
}

static int read_metadata(const Loader *loader) {
    h3_config *const config = &loader->model->config;
    return read_epsilon(loader, "minimax_h3.attention.layer_norm_rms_epsilon", &config->norm_epsilon) &&
           read_epsilon(loader, "minimax_h3.attention.qk_norm_epsilon", &config->qk_norm_epsilon) &&
           read_epsilon(loader, "minimax_h3.final_norm_epsilon", &config->final_norm_epsilon) &&
           read_patch(loader) && read_rope(loader) && check_repeated(loader);
}

/* ---- what must not be guessed ---- */

static bool ends_with(Text name, const char *end) {
    const size_t length = strlen(end);
    return name.length >= length && memcmp(name.data + name.length - length, end, length) == 0;
}

static bool starts_with(Text name, const char *start) {
    const size_t length = strlen(start);
    return name.length >= length && memcmp(name.data, start, length) == 0;
}

/* Forms of the model that share names with this one but compute differently. */
static int check_form(const Loader *loader) {
    const Gguf *const file = &loader->model->file;
    const char *const path = loader->model->path;
    Text order;
    bool found;
    if (!gguf_text(file, "firstlook.qkv_order", &order, &found, loader->error)) return 0;
    if (found && !(order.length == strlen("stacked") && starts_with(order, "stacked")))
        return fail(loader->error, "%s: its qkv_order is \"%s\", but this engine reads stacked queries, keys and values.",
                    path, show(order).text);
    if (look_up(loader, "adaln_t_table"))
        return fail(loader->error,
                    "%s: this is the pruned (curve) form of the model, with an adaln_t_table; "
                    "this engine computes the full form.", path);
    for (size_t i = 0; i < file->tensor_count; i++) {
        const Text tensor_name = file->tensors[i].name;
        if (ends_with(tensor_name, ".comfy_quant") || ends_with(tensor_name, ".weight_scale"))
            return fail(loader->error,
                        "%s: tensor %s belongs to a ComfyUI quantization (int8_convrot, fp8_scaled or nvfp4), "
                        "which this engine cannot compute correctly.", path, show(tensor_name).text);
    }
    return 1;
}

/* A tensor that was not asked for may change what the model means: refused, not ignored. */
static int check_unknown(const Loader *loader) {
    const Gguf *const file = &loader->model->file;
    for (size_t i = 0; i < file->tensor_count; i++) {
        const Tensor *const tensor = &file->tensors[i];
        if (!tensor->used && starts_with(tensor->name, loader->prefix))
            return fail(loader->error, "%s: tensor %s is not part of the model this engine knows.",
                        loader->model->path, show(tensor->name).text);
    }
    return 1;
}

static int model_load(h3_model *model, Failure *error) {
    const char *const wrapped = "model.diffusion_model.";
    Loader loader = {model, "", error};
    if (!look_up(&loader, "video_patch_proj.weight")) loader.prefix = wrapped;
    if (!look_up(&loader, "video_patch_proj.weight"))
        return fail(error, "%s: this is not a MiniMax-H3 transformer: it has no tensor video_patch_proj.weight.",
                    model->path);
    model->owned = allocate(model->file.tensor_count + 1, sizeof *model->owned);
    if (!model->owned) return fail(error, "%s: not enough memory.", model->path);
    return check_form(&loader) && take_outer(&loader) && take_blocks(&loader) && read_metadata(&loader) &&
           check_unknown(&loader);
}
