/* The CPU as a copy device, for memory and files, and a device with injected faults for tests. */
#define _GNU_SOURCE
#include "memory/copy_device.h"

#include <errno.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

/* Polling interval of a test's delay. */
#define LOOK_NANOSECONDS 1000000

hc_copy_request hc_copy_part(const hc_copy_request *request, int64_t start, int64_t bytes) {
    hc_copy_request part = *request;
    part.bytes = bytes;
    part.source = (const char *)request->source + start;
    part.out_target = (char *)request->out_target + start;
    part.source_offset += start;
    part.target_offset += start;
    return part;
}

/* The system may transfer less than requested. A transfer of 0 bytes is the end of the file, which must be long
 * enough. */
static int64_t write_some(const hc_copy_request *part, int64_t done) {
    return pwrite(part->target_file, (const char *)part->source + done, (size_t)(part->bytes - done), part->target_offset + done);
}

static int64_t read_some(const hc_copy_request *part, int64_t done) {
    return pread(part->source_file, (char *)part->out_target + done, (size_t)(part->bytes - done), part->source_offset + done);
}

static int all_of(const hc_copy_request *part, int64_t (*some)(const hc_copy_request *, int64_t)) {
    for (int64_t done = 0; done < part->bytes;) {
        const int64_t more = some(part, done);
        if (more > 0) {
            done += more;
        } else if (more == 0 || errno != EINTR) {
            return more == 0 || errno == 0 ? EIO : errno;
        }
    }
    return 0;
}

/* Between two files, the source is read through its mapping. A failure there is an EFAULT of the write, not a
 * signal. */
static int start_by_cpu(hc_copy_state *state, const hc_copy_request *part, void **out_token) {
    *out_token = NULL;
    if (part->target_file >= 0) {
        return all_of(part, write_some);
    }
    if (part->source_file >= 0) {
        return all_of(part, read_some);
    }
    state->kernel(part->bytes, part->source, part->out_target);
    return 0;
}

static int finish_by_cpu(hc_copy_state *state, void *token) {
    (void)state, (void)token;
    return 0;
}

const hc_copy_device hc_copy_by_cpu = {"cpu", start_by_cpu, finish_by_cpu};

static void sleep_for(hc_copy_faults *faults) {
    const struct timespec look = {0, LOOK_NANOSECONDS};
    for (int64_t slept = 0; slept < atomic_load(&faults->delay_nanoseconds) && !atomic_load(&faults->stop);
         slept += LOOK_NANOSECONDS) {
        nanosleep(&look, NULL);
    }
}

static int start_with_faults(hc_copy_state *state, const hc_copy_request *part, void **out_token) {
    sleep_for(&state->faults);
    const int error = atomic_load(&state->faults.error);
    if (error != 0 && atomic_fetch_sub(&state->faults.left_bytes, part->bytes) < part->bytes) {
        return error;
    }
    return hc_copy_by_cpu.start(state, part, out_token);
}

const hc_copy_device hc_copy_with_faults = {"faults", start_with_faults, finish_by_cpu};
