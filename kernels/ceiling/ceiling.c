/* Measured ceilings: multiply-adds in registers, a copy, and barriers, on every thread of a context. */
#include "ceiling/ceiling.h"

#include <stddef.h>

#include "context.h"

#define LINE_BYTES 64
/* Granularity of the partition among threads: one page. */
#define COPY_MULTIPLE 4096

/* Kernels for units that compute products of one type only, best first within a type. For other types the vector units
 * compute them. */
static const struct {
    int dtype, isa;
    hc_multiply_add_kernel *kernel;
} TABLE[] = {
#define NUMBER_f32 HC_F32
#define NUMBER_bf16 HC_BF16
#define HC_CEILING_KERNEL(dtype, isa, ISA) {NUMBER_##dtype, ISA, hc_ceiling_##dtype##_##isa},
#include "kernel_table.h"
#undef HC_CEILING_KERNEL
    {HC_F64, HC_ISA_REF, NULL}, /* keeps the table non-empty on machines without these units */
};

/* Return the kernel for a type. A machine of level `isa` runs the kernels of its family up to that level. */
static hc_multiply_add_kernel *choose(const hc_context *context, int dtype) {
    const int lines = (int)(sizeof TABLE / sizeof TABLE[0]);
    for (int line = 0; line < lines; line++) {
        const int isa = TABLE[line].isa;
        if (TABLE[line].kernel != NULL && TABLE[line].dtype == dtype && isa / 10 == context->isa / 10 && isa <= context->isa) {
            return TABLE[line].kernel;
        }
    }
    return context->kernels->multiply_add;
}

/* Result of one thread, on a separate cache line to avoid false sharing. */
typedef struct {
    _Alignas(LINE_BYTES) double flop;
    float sink;
} counted;

typedef struct {
    hc_multiply_add_kernel *kernel;
    hc_ceiling_operands operands;
    int64_t rounds;
    counted *of_thread;
} multiply_add_job;

static void multiply_add(void *arguments, int thread, int num_threads) {
    const multiply_add_job *job = arguments;
    counted *own = &job->of_thread[thread];
    own->flop = job->kernel(job->rounds, &job->operands, &own->sink);
    (void)num_threads;
}

int hc_multiply_add_ceiling(hc_context *context, int compute, int64_t rounds, double *out_flop) {
    if (!hc_is_context(context) || out_flop == NULL || rounds < 0 || (compute != HC_F32 && compute != HC_BF16)) {
        return HC_BAD_ARGUMENT;
    }
    hc_lock(context);
    const int64_t bytes = (int64_t)sizeof(counted) * context->num_threads;
    /* x = 0.5 x + 0.5 converges to 1. This avoids overflow and denormal numbers, which are slow on some units. */
    multiply_add_job job = {choose(context, compute), {0.5f, 0.5f}, rounds, hc_scratch(context, bytes)};
    if (job.of_thread == NULL) {
        hc_unlock(context);
        return HC_OUT_OF_MEMORY;
    }
    for (int thread = 0; thread < context->num_threads; thread++) {
        job.of_thread[thread] = (counted){.flop = 0};
    }
    hc_team_run(context->team, 0, multiply_add, &job);
    double flop = 0;
    for (int thread = 0; thread < context->num_threads; thread++) {
        flop += job.of_thread[thread].flop; /* 0 for a thread that does not exist after a fork */
    }
    *out_flop = flop;
    hc_unlock(context);
    return HC_OK;
}

typedef struct {
    hc_team *team;
    int64_t count;
} barrier_job;

static void barriers(void *arguments, int thread, int num_threads) {
    const barrier_job *job = arguments;
    for (int64_t i = 0; i < job->count; i++) {
        hc_team_barrier(job->team);
    }
    (void)thread;
    (void)num_threads;
}

int hc_barrier_ceiling(hc_context *context, int64_t count) {
    if (!hc_is_context(context) || count < 0) {
        return HC_BAD_ARGUMENT;
    }
    hc_lock(context);
    barrier_job job = {context->team, count};
    hc_team_run(context->team, 0, barriers, &job);
    hc_unlock(context);
    return HC_OK;
}

typedef struct {
    hc_copy_kernel *kernel;
    int64_t bytes;
    const char *source;
    char *target;
} copy_job;

static void copy(void *arguments, int thread, int num_threads) {
    const copy_job *job = arguments;
    int64_t start, stop;
    hc_part(job->bytes, COPY_MULTIPLE, thread, num_threads, &start, &stop);
    if (start < stop) {
        job->kernel(stop - start, job->source + start, job->target + start);
    }
}

int hc_copy(hc_context *context, int64_t bytes, const void *source, void *out_target) {
    if (!hc_is_context(context) || bytes < 0 || (bytes > 0 && (source == NULL || out_target == NULL))) {
        return HC_BAD_ARGUMENT;
    }
    hc_lock(context);
    copy_job job = {context->kernels->copy, bytes, source, out_target};
    hc_team_run(context->team, 0, copy, &job);
    hc_unlock(context);
    return HC_OK;
}
