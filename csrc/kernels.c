/* Which kernels compute. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

static size_t available_kernels(const Kernels *sets[MOST_KERNELS]) {
    const Kernels *const candidates[MOST_KERNELS] = {
        vnni_kernels(), avx512_kernels(), avx2_kernels(), neon_kernels(), plain_kernels(),
    };
    size_t count = 0;
    for (size_t i = 0; i < MOST_KERNELS; i++) {
        if (candidates[i]) sets[count++] = candidates[i];
    }
    return count;
}

static const Kernels *fastest_kernels(void) {
    const Kernels *sets[MOST_KERNELS];
    available_kernels(sets);
    return sets[0];
}

static const Kernels *kernels_named(const char *name, Failure *error) {
    const Kernels *sets[MOST_KERNELS];
    const size_t count = available_kernels(sets);
    char names[100] = "";
    for (size_t i = 0, at = 0; i < count; i++) {
        if (strcmp(sets[i]->name, name) == 0) return sets[i];
        at += (size_t)snprintf(names + at, sizeof names - at, "%s\"%s\"", at ? ", " : "", sets[i]->name);
    }
    fail(error, "The kernels \"%s\" do not exist on this processor; these do: %s.", name, names);
    return NULL;
}
