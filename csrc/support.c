/* Error text, sizes that cannot overflow, memory. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* The first error wins: what follows from it is noise. Always 0, so that callers can return it. */
static int fail(Failure *error, const char *format, ...) {
    if (error->text && error->size && error->text[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, error->size, format, arguments);
        va_end(arguments);
    }
    return 0;
}

static Failure start_failure(char *text, size_t size) {
    if (text && size) text[0] = '\0';
    return (Failure){text, size};
}

static bool multiply_size(size_t a, size_t b, size_t *product) {
    if (b && a > SIZE_MAX / b) return false;
    *product = a * b;
    return true;
}

static bool add_size(size_t a, size_t b, size_t *sum) {
    if (a > SIZE_MAX - b) return false;
    *sum = a + b;
    return true;
}

/* Zeroed; NULL when there is no such memory. */
static void *allocate(size_t count, size_t size) {
    return calloc(count ? count : 1, size ? size : 1);
}

/* [rows, columns] at a cache line, not cleared; NULL when there is no such memory. Freed with free(). */
static float *allocate_floats(size_t rows, size_t columns) {
    size_t count, bytes;
    if (!multiply_size(rows, columns, &count) || !multiply_size(count, sizeof(float), &bytes)) return NULL;
    if (!add_size(bytes, 64, &bytes)) return NULL;
    void *memory = NULL;
    return posix_memalign(&memory, 64, bytes) == 0 ? memory : NULL;
}
