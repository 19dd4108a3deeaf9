/* Copies of several callers through one engine. Each caller checks every byte of its copies. */
#define _GNU_SOURCE
#include "test/cases.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "memory/copy_device.h"

#define CALLERS 4
#define ROUNDS 6
#define BATCH 6
#define MAX_BYTES (HC_COPY_PART_BYTES + 70000)
#define SECOND ((int64_t)1000000000)

typedef struct {
    hc_copies *copies;
    hc_context *context;
    int caller, has_faults;
    long wrong, done_bytes, failed, is_cut_off;
} caller;

/* A copy kernel that a sanitizer can check byte by byte. */
static void copy_bytes(int64_t bytes, const void *source, void *out_target) {
    memcpy(out_target, source, (size_t)bytes);
}

static unsigned next(unsigned *random) {
    return *random = *random * 1664525u + 1013904223u;
}

typedef struct {
    unsigned char *source, *target;
    int64_t bytes;
    int state, file, is_from_file;
} one_copy;

/* Create the request of a copy, with a file as source or target for some kinds. */
static hc_copy_request request_of(one_copy *copy, unsigned kind) {
    hc_copy_request request = {copy->bytes, copy->source, copy->target, -1, -1, 0, 0};
    if (kind == 0 || copy->file < 0) {
        return request;
    }
    copy->is_from_file = kind == 1;
    if (kind == 1) {
        if (pwrite(copy->file, copy->source, (size_t)copy->bytes, 64) != copy->bytes) {
            return request;
        }
        request.source_file = copy->file;
        request.source_offset = 64;
    } else {
        request.target_file = copy->file;
        request.target_offset = 128;
    }
    return request;
}

static int is_right(const one_copy *copy, const hc_copy_request *request) {
    if (request->target_file >= 0 && pread(copy->file, copy->target, (size_t)copy->bytes, 128) != copy->bytes) {
        return 0;
    }
    return memcmp(copy->source, copy->target, (size_t)copy->bytes) == 0;
}

/* Submit and check a batch. Return 1 if the engine is closed. */
static int run_batch(caller *own, one_copy *copies, unsigned *random) {
    hc_copy_request requests[BATCH];
    int submitted = 0, is_closed = 0;
    for (; submitted < BATCH && !is_closed; submitted += !is_closed) {
        one_copy *copy = &copies[submitted];
        copy->bytes = next(random) >> 8 & 3 ? next(random) % 100000 : next(random) % MAX_BYTES;
        memset(copy->source, (int)(next(random) >> 16), (size_t)copy->bytes);
        memset(copy->target, 0, (size_t)copy->bytes);
        requests[submitted] = request_of(copy, next(random) >> 10 & 3);
        is_closed = hc_copies_submit(own->copies, &requests[submitted], (int)(next(random) >> 12 & 1),
                                     (int)(next(random) >> 14 & 3), &copy->state) != HC_OK;
    }
    int64_t advanced;
    hc_copies_advance(own->copies, own->context, next(random) % MAX_BYTES, &advanced);
    for (int i = submitted - 1; i >= 0; i--) {
        while (hc_copies_state(&copies[i].state) == HC_COPY_PENDING) {
            hc_copies_wait(own->copies, own->context, &copies[i].state, SECOND / 100);
        }
        const int state = hc_copies_state(&copies[i].state);
        own->failed += state != 0;
        own->wrong += state == 0 ? !is_right(&copies[i], &requests[i]) : state != ECANCELED && !(own->has_faults && state == EIO);
        own->done_bytes += state == 0 ? copies[i].bytes : 0;
    }
    return is_closed;
}

static void *call(void *argument) {
    caller *own = argument;
    one_copy copies[BATCH];
    unsigned random = (unsigned)own->caller * 7919u + 1u;
    FILE *files[BATCH];
    for (int i = 0; i < BATCH; i++) {
        files[i] = tmpfile();
        copies[i] = (one_copy){.source = malloc(MAX_BYTES), .target = malloc(MAX_BYTES),
                               .file = files[i] == NULL ? -1 : fileno(files[i])};
    }
    for (int round = 0; round < ROUNDS && !own->is_cut_off; round++) {
        own->is_cut_off = run_batch(own, copies, &random);
    }
    for (int i = 0; i < BATCH; i++) {
        free(copies[i].source);
        free(copies[i].target);
        if (files[i] != NULL) {
            fclose(files[i]);
        }
    }
    return NULL;
}

/* Treatment of the engine while its callers work. */
enum { LEFT_ALONE, WITH_FAULTS, CLOSED_UNDER_THEM };

static long run_callers(hc_context *context, int with_threads, int treatment) {
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    hc_copies *copies;
    if (hc_copies_create(context, with_threads, NULL, &copies) != HC_OK) {
        return -1;
    }
    if (treatment == WITH_FAULTS) {
        hc_copies_set_faults(copies, EIO, MAX_BYTES * 4, 1000);
    }
    long wrong = 0, bytes = 0, failed = 0;
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.copies = copies, .context = context, .caller = i, .has_faults = treatment == WITH_FAULTS};
        pthread_create(&threads[i], NULL, call, &callers[i]);
    }
    if (treatment == CLOSED_UNDER_THEM) {
        usleep(30000);
        wrong += hc_copies_close(copies, 100 * SECOND) != HC_OK;
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        wrong += callers[i].wrong;
        bytes += callers[i].done_bytes;
        failed += callers[i].failed;
    }
    hc_copy_counters found;
    wrong += hc_copies_counters(copies, &found) != HC_OK || found.failed != failed || found.queued_bytes != 0 ||
             found.bytes[0] + found.bytes[1] < bytes || (treatment == LEFT_ALONE && (found.bytes[0] + found.bytes[1] > bytes || failed > 0));
    wrong += treatment == WITH_FAULTS && failed == 0;
    wrong += hc_copies_close(copies, 100 * SECOND) != HC_OK;
    hc_copies_destroy(copies);
    return wrong;
}

int hc_test_copies(int with_threads, int num_threads) {
    hc_kernels kernels = {.copy = copy_bytes};
    hc_context context = {.tag = HC_CONTEXT_TAG, .num_threads = num_threads, .num_clusters = 1, .kernels = &kernels};
    if (hc_team_create(num_threads, 1, NULL, 1, NULL, &context.team) != HC_OK) {
        return -1;
    }
    long wrong = 0;
    for (int treatment = LEFT_ALONE; treatment <= CLOSED_UNDER_THEM; treatment++) {
        wrong += run_callers(&context, with_threads, treatment) != 0;
    }
    hc_team_destroy(context.team);
    return wrong > 0;
}
