/*
 * GGUF files, versions 2 and 3: header, metadata, tensor table, each checked against the size of the file before
 * it is used. The layout is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
 *
 * A file that is cut short *while it is mapped* still ends the process with SIGBUS: no check can see that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum value_type {
    VALUE_U8, VALUE_I8, VALUE_U16, VALUE_I16, VALUE_U32, VALUE_I32, VALUE_F32, VALUE_BOOL, VALUE_STRING,
    VALUE_ARRAY, VALUE_U64, VALUE_I64, VALUE_F64, VALUE_TYPES
};

enum {
    MOST_DIMENSIONS = 4,
    MOST_NESTING = 4,            /* arrays in arrays; real files have none */
    LEAST_METADATA_BYTES = 13,   /* empty key, type, one byte */
    LEAST_TENSOR_BYTES = 32,     /* empty name, one dimension, type, offset */
    DEFAULT_ALIGNMENT = 32,
    LONGEST_SHOWN = 80
};

typedef struct {
    const uint8_t *at;
    size_t left;
} Cursor;

/* ---- reading ---- */

static const uint8_t *take(Cursor *cursor, size_t bytes) {
    if (bytes > cursor->left) return NULL;
    const uint8_t *const taken = cursor->at;
    cursor->at += bytes;
    cursor->left -= bytes;
    return taken;
}

static uint64_t read_little(const uint8_t *bytes, size_t count) {
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++) value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static bool take_u32(Cursor *cursor, uint32_t *value) {
    const uint8_t *const bytes = take(cursor, 4);
    if (bytes) *value = (uint32_t)read_little(bytes, 4);
    return bytes != NULL;
}

static bool take_u64(Cursor *cursor, uint64_t *value) {
    const uint8_t *const bytes = take(cursor, 8);
    if (bytes) *value = read_little(bytes, 8);
    return bytes != NULL;
}

static bool take_text(Cursor *cursor, Text *value) {
    uint64_t length;
    if (!take_u64(cursor, &length) || length > cursor->left) return false;
    value->length = (size_t)length;
    value->data = (const char *)take(cursor, value->length);
    return true;
}

static size_t value_size(uint32_t type) {
    static const uint8_t sizes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < VALUE_TYPES ? sizes[type] : 0;
}

static bool skip_value(Cursor *cursor, uint32_t type, int nesting) {
    if (type == VALUE_STRING) {
        Text ignored;
        return take_text(cursor, &ignored);
    }
    if (type != VALUE_ARRAY) {
        const size_t size = value_size(type);
        return size && take(cursor, size);
    }
    uint32_t element;
    uint64_t count;
    if (nesting == MOST_NESTING || !take_u32(cursor, &element) || !take_u64(cursor, &count)) return false;
    const size_t size = value_size(element);
    if (size) return count <= cursor->left / size && take(cursor, (size_t)count * size);
    for (uint64_t i = 0; i < count; i++) {
        if (!skip_value(cursor, element, nesting + 1)) return false;
    }
    return true;
}

/* ---- order and search ---- */

static int compare_text(Text a, Text b) {
    const size_t shorter = a.length < b.length ? a.length : b.length;
    const int order = shorter ? memcmp(a.data, b.data, shorter) : 0;
    if (order) return order;
    return (a.length > b.length) - (a.length < b.length);
}

static int compare_tensors(const void *a, const void *b) {
    return compare_text(((const Tensor *)a)->name, ((const Tensor *)b)->name);
}

static int compare_metadata(const void *a, const void *b) {
    return compare_text(((const Metadata *)a)->key, ((const Metadata *)b)->key);
}

static Tensor *gguf_tensor(const Gguf *file, const char *name) {
    const Tensor wanted = {.name = {name, strlen(name)}};
    if (!file->tensor_count) return NULL;
    return bsearch(&wanted, file->tensors, file->tensor_count, sizeof wanted, compare_tensors);
}

static const Metadata *find_metadata(const Gguf *file, const char *key) {
    const Metadata wanted = {.key = {key, strlen(key)}};
    if (!file->metadata_count) return NULL;
    return bsearch(&wanted, file->metadata, file->metadata_count, sizeof wanted, compare_metadata);
}

/* A name from the file, fit to be shown: it may be long and hold anything. */
typedef struct {
    char text[LONGEST_SHOWN + 4];
} Shown;

static Shown show(Text name) {
    Shown result;
    const size_t length = name.length < LONGEST_SHOWN ? name.length : LONGEST_SHOWN;
    for (size_t i = 0; i < length; i++) {
        const char c = name.data[i];
        result.text[i] = c;
        if (c < ' ' || c > '~') result.text[i] = '?';
    }
    memcpy(result.text + length, length < name.length ? "..." : "", length < name.length ? 4 : 1);
    return result;
}

/* ---- metadata values ---- */

static bool integer_value(uint32_t type, const uint8_t *value, uint64_t *result) {
    const size_t size = value_size(type);
    const bool is_signed = type == VALUE_I8 || type == VALUE_I16 || type == VALUE_I32 || type == VALUE_I64;
    const bool is_unsigned = type == VALUE_U8 || type == VALUE_U16 || type == VALUE_U32 || type == VALUE_U64;
    if (!is_signed && !is_unsigned) return false;
    if (is_signed && value[size - 1] & 0x80) return false; /* nothing read here may be negative */
    *result = read_little(value, size);
    return *result <= SIZE_MAX;
}

static int gguf_size(const Gguf *file, const char *key, size_t *value, bool *found, Failure *error) {
    const Metadata *const entry = find_metadata(file, key);
    uint64_t integer;
    *found = entry != NULL;
    if (!entry) return 1;
    if (!integer_value(entry->type, entry->value, &integer))
        return fail(error, "%s: metadata %s is not a whole number.", file->path, key);
    *value = (size_t)integer;
    return 1;
}

static int gguf_double(const Gguf *file, const char *key, double *value, bool *found, Failure *error) {
    const Metadata *const entry = find_metadata(file, key);
    uint64_t integer;
    *found = entry != NULL;
    if (!entry) return 1;
    if (entry->type == VALUE_F32) {
        float narrow;
        memcpy(&narrow, entry->value, sizeof narrow);
        *value = (double)narrow;
    } else if (entry->type == VALUE_F64) {
        memcpy(value, entry->value, sizeof *value);
    } else if (integer_value(entry->type, entry->value, &integer)) {
        *value = (double)integer;
    } else {
        return fail(error, "%s: metadata %s is not a number.", file->path, key);
    }
    return 1;
}

static int gguf_sizes(const Gguf *file, const char *key, size_t *values, size_t count, bool *found,
                      Failure *error) {
    const Metadata *const entry = find_metadata(file, key);
    *found = entry != NULL;
    if (!entry) return 1;
    Cursor cursor = {entry->value, entry->bytes};
    uint32_t type;
    uint64_t length;
    bool good = entry->type == VALUE_ARRAY && take_u32(&cursor, &type) && take_u64(&cursor, &length) &&
                length == count;
    for (size_t i = 0; good && i < count; i++) {
        const uint8_t *const value = take(&cursor, value_size(type));
        uint64_t integer = 0;
        good = value && integer_value(type, value, &integer);
        values[i] = (size_t)integer;
    }
    return good ? 1 : fail(error, "%s: metadata %s is not %zu whole numbers.", file->path, key, count);
}

static int gguf_text(const Gguf *file, const char *key, Text *value, bool *found, Failure *error) {
    const Metadata *const entry = find_metadata(file, key);
    *found = entry != NULL;
    if (!entry) return 1;
    Cursor cursor = {entry->value, entry->bytes};
    if (entry->type != VALUE_STRING || !take_text(&cursor, value))
        return fail(error, "%s: metadata %s is not text.", file->path, key);
    return 1;
}

/* ---- parsing ---- */

static int truncated(const Gguf *file, Failure *error) {
    return fail(error, "%s: the file ends in the middle of its own header; it is truncated or damaged.", file->path);
}

static int parse_header(const Gguf *file, Cursor *cursor, uint64_t *tensors, uint64_t *entries, Failure *error) {
    uint32_t version;
    const uint8_t *const magic = take(cursor, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0) return fail(error, "%s: this is not a GGUF file.", file->path);
    if (!take_u32(cursor, &version)) return truncated(file, error);
    if (version & 0xffff0000u)
        return fail(error, "%s: this GGUF file is big-endian; only little-endian files are read.", file->path);
    if (version != 2 && version != 3)
        return fail(error, "%s: GGUF version %u is not known; versions 2 and 3 are.", file->path, version);
    if (!take_u64(cursor, tensors) || !take_u64(cursor, entries)) return truncated(file, error);
    if (*tensors > cursor->left / LEAST_TENSOR_BYTES || *entries > cursor->left / LEAST_METADATA_BYTES)
        return fail(error, "%s: the header promises more entries than the file can hold; it is truncated or damaged.",
                    file->path);
    return 1;
}

static int parse_metadata(Gguf *file, Cursor *cursor, size_t count, Failure *error) {
    file->metadata = allocate(count, sizeof *file->metadata);
    if (!file->metadata) return fail(error, "%s: not enough memory to read the metadata.", file->path);
    for (size_t i = 0; i < count; i++) {
        Metadata *const entry = &file->metadata[i];
        if (!take_text(cursor, &entry->key) || !take_u32(cursor, &entry->type)) return truncated(file, error);
        entry->value = cursor->at;
        if (entry->type >= VALUE_TYPES)
            return fail(error, "%s: metadata %s has an unknown type; the file is damaged or too new.", file->path,
                        show(entry->key).text);
        if (!skip_value(cursor, entry->type, 0))
            return fail(error, "%s: metadata %s does not fit in the file; it is truncated or damaged.", file->path,
                        show(entry->key).text);
        entry->bytes = (size_t)(cursor->at - entry->value);
        file->metadata_count++;
    }
    qsort(file->metadata, count, sizeof *file->metadata, compare_metadata);
    for (size_t i = 1; i < count; i++) {
        if (compare_metadata(&file->metadata[i - 1], &file->metadata[i]) == 0)
            return fail(error, "%s: metadata %s is there twice.", file->path, show(file->metadata[i].key).text);
    }
    return 1;
}

/* Bytes of a tensor of a known format; false where its shape is absurd. */
static bool tensor_bytes(const Tensor *tensor, size_t *bytes) {
    const Format *const format = &format_table()[tensor->format];
    if (tensor->shape[0] % format->elements) return false;
    size_t size = format->bytes;
    if (!multiply_size(size, (size_t)(tensor->shape[0] / format->elements), &size)) return false;
    for (uint32_t i = 1; i < tensor->dimensions; i++) {
        if (!multiply_size(size, (size_t)tensor->shape[i], &size)) return false;
    }
    *bytes = size;
    return true;
}

static int parse_shape(const Gguf *file, Cursor *cursor, Tensor *tensor, Failure *error) {
    if (!take_u32(cursor, &tensor->dimensions)) return truncated(file, error);
    if (tensor->dimensions < 1 || tensor->dimensions > MOST_DIMENSIONS)
        return fail(error, "%s: tensor %s has %u dimensions; 1 to %d are possible.", file->path,
                    show(tensor->name).text, tensor->dimensions, MOST_DIMENSIONS);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < MOST_DIMENSIONS; i++) {
        tensor->shape[i] = 1;
        if (i >= tensor->dimensions) continue;
        if (!take_u64(cursor, &tensor->shape[i])) return truncated(file, error);
        if (tensor->shape[i] == 0 || tensor->shape[i] > (uint64_t)INT64_MAX / elements)
            return fail(error, "%s: tensor %s has an impossible shape.", file->path, show(tensor->name).text);
        elements *= tensor->shape[i];
    }
    return 1;
}

static int parse_tensors(Gguf *file, Cursor *cursor, size_t count, uint64_t *offsets, Failure *error) {
    for (size_t i = 0; i < count; i++) {
        Tensor *const tensor = &file->tensors[i];
        if (!take_text(cursor, &tensor->name)) return truncated(file, error);
        if (!parse_shape(file, cursor, tensor, error)) return 0;
        if (!take_u32(cursor, &tensor->type) || !take_u64(cursor, &offsets[i])) return truncated(file, error);
        tensor->format = format_of_type(tensor->type);
        if (tensor->format >= 0 && !tensor_bytes(tensor, &tensor->bytes))
            return fail(error, "%s: tensor %s has a shape that %s cannot store.", file->path,
                        show(tensor->name).text, type_name(tensor->type));
        file->tensor_count++;
    }
    return 1;
}

static int place_tensors(Gguf *file, const uint64_t *offsets, size_t start, size_t alignment, Failure *error) {
    const size_t space = file->size - start;
    for (size_t i = 0; i < file->tensor_count; i++) {
        Tensor *const tensor = &file->tensors[i];
        if (offsets[i] % alignment)
            return fail(error, "%s: tensor %s is not aligned; the file is damaged.", file->path,
                        show(tensor->name).text);
        if (offsets[i] > space || tensor->bytes > space - (size_t)offsets[i])
            return fail(error, "%s: tensor %s ends beyond the end of the file; it is truncated or damaged.",
                        file->path, show(tensor->name).text);
        tensor->data = file->map + start + (size_t)offsets[i];
    }
    return 1;
}

static int compare_places(const void *a, const void *b) {
    const Tensor *const first = *(const Tensor *const *)a, *const second = *(const Tensor *const *)b;
    if (first->data != second->data) return first->data < second->data ? -1 : 1;
    return (first->bytes > second->bytes) - (first->bytes < second->bytes);
}

static int check_overlap(const Gguf *file, Failure *error) {
    const Tensor **const order = allocate(file->tensor_count, sizeof *order);
    if (!order) return fail(error, "%s: not enough memory to read the tensor table.", file->path);
    for (size_t i = 0; i < file->tensor_count; i++) order[i] = &file->tensors[i];
    qsort(order, file->tensor_count, sizeof *order, compare_places);
    int good = 1;
    for (size_t i = 1; good && i < file->tensor_count; i++) {
        if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
            good = fail(error, "%s: tensors %s and %s overlap; the file is damaged.", file->path,
                        show(order[i - 1]->name).text, show(order[i]->name).text);
    }
    free(order);
    return good;
}

static int sort_tensors(Gguf *file, Failure *error) {
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_tensors);
    for (size_t i = 1; i < file->tensor_count; i++) {
        if (compare_tensors(&file->tensors[i - 1], &file->tensors[i]) == 0)
            return fail(error, "%s: tensor %s is there twice.", file->path, show(file->tensors[i].name).text);
    }
    return 1;
}

static int read_alignment(const Gguf *file, size_t *alignment, Failure *error) {
    bool found;
    *alignment = DEFAULT_ALIGNMENT;
    if (!gguf_size(file, "general.alignment", alignment, &found, error)) return 0;
    /* At least 8, so that float32 tensors are aligned for a plain load. */
    if (*alignment < 8 || *alignment > 1u << 20 || (*alignment & (*alignment - 1)))
        return fail(error, "%s: metadata general.alignment is %zu, not a power of two from 8 on.", file->path,
                    *alignment);
    return 1;
}

static int parse(Gguf *file, Failure *error) {
    Cursor cursor = {file->map, file->size};
    uint64_t tensors = 0, entries = 0;
    size_t alignment;
    if (!parse_header(file, &cursor, &tensors, &entries, error)) return 0;
    if (!parse_metadata(file, &cursor, (size_t)entries, error)) return 0;
    if (!read_alignment(file, &alignment, error)) return 0;
    file->tensors = allocate((size_t)tensors, sizeof *file->tensors);
    uint64_t *const offsets = allocate((size_t)tensors, sizeof *offsets);
    int good = file->tensors && offsets;
    if (!good) fail(error, "%s: not enough memory to read the tensor table.", file->path);
    if (good) good = parse_tensors(file, &cursor, (size_t)tensors, offsets, error);
    if (good) {
        const size_t header = (size_t)(cursor.at - file->map);
        const size_t padding = (alignment - header % alignment) % alignment;
        if (padding > cursor.left) good = tensors ? truncated(file, error) : 1;
        else good = place_tensors(file, offsets, header + padding, alignment, error);
    }
    free(offsets);
    return good && check_overlap(file, error) && sort_tensors(file, error);
}

/* ---- the mapping ---- */

static int map_file(Gguf *file, int descriptor, Failure *error) {
    struct stat status;
    if (fstat(descriptor, &status) != 0)
        return fail(error, "%s: cannot be read: %s.", file->path, strerror(errno));
    if (!S_ISREG(status.st_mode)) return fail(error, "%s: this is not a file.", file->path);
    if (status.st_size == 0) return fail(error, "%s: the file is empty.", file->path);
    if ((uintmax_t)status.st_size > SIZE_MAX) return fail(error, "%s: the file is too large.", file->path);
    void *const map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (map == MAP_FAILED) return fail(error, "%s: cannot be mapped: %s.", file->path, strerror(errno));
    file->map = map;
    file->size = (size_t)status.st_size;
    return 1;
}

static int gguf_open(Gguf *file, const char *path, Failure *error) {
    *file = (Gguf){.path = path};
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return fail(error, "%s: cannot be opened: %s.", path, strerror(errno));
    const int mapped = map_file(file, descriptor, error);
    close(descriptor);
    if (mapped && parse(file, error)) return 1;
    gguf_close(file);
    return 0;
}

static void gguf_close(Gguf *file) {
    if (file->map) munmap(file->map, file->size);
    free(file->tensors);
    free(file->metadata);
    *file = (Gguf){0};
}

/* Tells the system that these pages are not needed for now. They stay valid: touching them reads the file again. */
static void gguf_give_back(const Gguf *file, const uint8_t *data, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t start = ((size_t)(data - file->map) + page - 1) / page * page;
    const size_t end = ((size_t)(data - file->map) + bytes) / page * page;
    if (end > start) madvise(file->map + start, end - start, MADV_DONTNEED);
}
