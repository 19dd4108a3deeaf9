/* Device that copies bytes. One entry today, the CPU; a DMA engine would be a second entry. Internal. */
#ifndef HC_COPY_DEVICE_H
#define HC_COPY_DEVICE_H

#include <stdatomic.h>
#include <stdint.h>

#include "ceiling/ceiling.h"
#include "hcops.h"

/* Largest part of a copy in bytes. An urgent copy waits for one part of another copy. 4 MB take 0.2 to 1 ms on one
 * core, and a part costs 1 microsecond of locks. */
#define HC_COPY_PART_BYTES ((int64_t)4 << 20)

/* Faults that tests inject: a delay before each part, and `error` for every part that ends more than `left_bytes` after
 * the setting. */
typedef struct {
    atomic_int error;
    _Atomic int64_t left_bytes, delay_nanoseconds;
    atomic_int stop; /* ends the sleep */
} hc_copy_faults;

typedef struct {
    hc_copy_kernel *kernel; /* copies with non-temporal stores, which are visible when it returns */
    hc_copy_faults faults;
} hc_copy_state;

/* `start` begins to copy a part and may return before the copy ends. Its *out_token is passed to `finish`, which
 * returns when the copy has ended. Both return 0 or an errno. A part with a failed start is not finished. Several
 * threads call them concurrently, and each finishes the parts that it started. */
typedef struct {
    const char *name;
    int (*start)(hc_copy_state *state, const hc_copy_request *part, void **out_token);
    int (*finish)(hc_copy_state *state, void *token);
} hc_copy_device;

/* The CPU: vector copies with non-temporal stores between memories, pread and pwrite for files. */
extern const hc_copy_device hc_copy_by_cpu;

/* The CPU with the faults that tests inject. */
extern const hc_copy_device hc_copy_with_faults;

/* Return bytes `start` to `start + bytes` of a copy. */
hc_copy_request hc_copy_part(const hc_copy_request *request, int64_t start, int64_t bytes);

#endif
