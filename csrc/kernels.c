/* Which kernels compute. */
#include <string.h>

#include "internal.h"

static const Kernels *fastest_kernels(void) {
    const Kernels *const candidates[] = {avx2_kernels(), neon_kernels()};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        if (candidates[i]) return candidates[i];
    }
    return plain_kernels();
}

static const Kernels *kernels_named(const char *name, Failure *error) {
    const Kernels *const candidates[] = {plain_kernels(), avx2_kernels(), neon_kernels()};
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        if (candidates[i] && strcmp(candidates[i]->name, name) == 0) return candidates[i];
    }
    fail(error, "The kernels \"%s\" do not exist on this processor; \"plain\" and \"%s\" do.", name,
         fastest_kernels()->name);
    return NULL;
}
