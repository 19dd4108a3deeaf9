/* Device that copies bytes. One entry today, the CPU; a DMA engine would be a second entry. Internal. */
#ifndef HC_COPY_DEVICE_H
#define HC_COPY_DEVICE_H

#include <stdatomic.h>
#include <stdint.h>

#include "ceiling/ceiling.h"
#include "hcops.h"

/* Most bytes of one part of a copy. An urgent copy waits for one part of another: 4 MB are 0.2 to 1 ms of a core's
 * rate, and a part costs 1 microsecond of locks. */
#define HC_COPY_PART_BYTES ((int64_t)4 << 20)

/* What tests have the device do: sleep before each part, and report `error` for every part that ends beyond
 * `left_bytes` from when they were set. */
typedef struct {
    atomic_int error;
    _Atomic int64_t left_bytes, delay_nanoseconds;
    atomic_int stop; /* ends the sleep */
} hc_copy_faults;

typedef struct {
    hc_copy_kernel *kernel; /* copies past the caches, and makes what it wrote visible before it returns */
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

/* The CPU: vectors past the caches between memories, pread and pwrite where one end is a file. */
extern const hc_copy_device hc_copy_by_cpu;

/* The same after the faults that tests set. */
extern const hc_copy_device hc_copy_with_faults;

/* Bytes `start` to `start + bytes` of a copy. */
hc_copy_request hc_copy_part(const hc_copy_request *whole, int64_t start, int64_t bytes);

#endif
