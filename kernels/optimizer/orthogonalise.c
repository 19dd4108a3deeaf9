/* The orthogonal factors of many matrices (Jordan et al. 2024, Muon): products one after the other, and no thread waits for another
 * between those of a small matrix.
 *
 * Legend: R rows, C columns, S = min(R, C), L = max(R, C). */
#include <math.h>
#include <stddef.h>

#include "array.h"
#include "gemm/gemm_job.h"

/* What G, P and P X of a matrix that one thread does may take, of each thread's scratch memory and of its share of the last-level
 * cache. (384 x 1,536 in fp32 takes 3.5 MB, 768 x 3,072 in bf16 7 MB.) */
#define MOST_BYTES_OF_ONE (6 << 20)
#define PAGE 4096
#define MOST_ITERATIONS 1000 /* more are a mistake; a call of very many would not end */

/* A product that is its own transpose is cut into so many runs of rows at most, which spares three eighths of it (of a half); of
 * so many rows each, whole tiles of most kernels. No run has less than two thirds of them, 64, so that all are served by the kernel
 * of the whole product (gemm.c). The cut follows from the size alone: results are the same for any number of threads. (AVX-512
 * BF16, one thread: 9 % less for 36 matrices of width 160, 17 % for those of width 384.) */
#define MOST_RUNS 4
#define RUN_ROWS 96
#define TILE 32

typedef struct {
    const hc_context *context;
    int64_t iterations;
    float a, b, c;
    double least_norm, cost; /* of all matrices */
    int type;
    int64_t matrices;
    const int64_t *rows, *columns;
    const float *const *x;
    void *const *out_x;
    char *scratch;
    int64_t scratch_bytes; /* of each thread, or of all */
    int64_t next;          /* matrix that nobody has looked at */
    int status;            /* of the last product that failed */
} orthogonalise_job;

/* The three products of an iteration, of X and three matrices beside it. */
typedef struct {
    hc_gemm_arguments gram, square, update;
    int64_t bytes; /* of G, of P (each to whole pages) and of P X */
} products;

static double cost_of(const orthogonalise_job *job, int64_t i) {
    const double rows = (double)job->rows[i], columns = (double)job->columns[i];
    const double s = fmin(rows, columns);
    return s * (2.0 * rows * columns + s * s);
}

static products products_of(const orthogonalise_job *job, int64_t i, char *memory) {
    const int64_t rows = job->rows[i], columns = job->columns[i], is_tall = rows > columns;
    const int64_t s = is_tall ? columns : rows, l = is_tall ? rows : columns, size = hc_element_bytes(job->type);
    const int64_t square_bytes = hc_round_up(s * s * size, PAGE);
    const hc_matrix x = {job->out_x[i], columns, 1, job->type}, transposed = {job->out_x[i], 1, columns, job->type};
    const hc_matrix gram = {memory, s, 1, job->type}, poly = {memory + square_bytes, s, 1, job->type};
    const hc_matrix update = {memory + 2 * square_bytes, columns, 1, job->type};
    return (products){
        .gram = {.m = s, .n = s, .k = l, .a = is_tall ? transposed : x, .b = is_tall ? x : transposed, .out_c = gram},
        .square = {.m = s, .n = s, .k = s, .a = gram, .b = gram, .out_c = poly},
        .update = {.m = rows, .n = columns, .k = s, .a = is_tall ? x : poly, .b = is_tall ? poly : x, .out_c = update},
        .bytes = 2 * square_bytes + hc_round_up(rows * columns * size, PAGE),
    };
}

static int multiply(hc_context *lent, const orthogonalise_job *job, hc_gemm_arguments *product) {
    product->compute = job->type;
    return hc_gemm_held(lent, product);
}

typedef struct {
    hc_matrix square;
    int64_t start, stop;
} mirror_job;

/* Columns start..stop above the diagonal block become what stands left of it, by tiles that stay in the first-level cache. */
static void mirror_share(void *arguments, int thread, int num_threads) {
    const mirror_job *job = arguments;
    int64_t first, last;
    hc_part(job->start, TILE, thread, num_threads, &first, &last);
    for (int64_t tile = first; tile < last; tile += TILE) {
        const int64_t rows = hc_least(TILE, last - tile);
        for (int64_t column = job->start; column < job->stop; column++) {
            const void *from = hc_element(&job->square, column, tile);
            char *to = hc_element(&job->square, tile, column);
            const int64_t stride = job->square.row_stride;
            for (int64_t row = 0; row < rows; row++) {
                if (job->square.dtype == HC_BF16) {
                    ((uint16_t *)(void *)to)[row * stride] = ((const uint16_t *)from)[row];
                } else {
                    ((float *)(void *)to)[row * stride] = ((const float *)from)[row];
                }
            }
        }
    }
}

/* A product that is its own transpose: run by run of rows up to the diagonal, and what is above it copied. */
static int multiply_symmetric(hc_context *lent, const orthogonalise_job *job, const hc_gemm_arguments *whole) {
    const int64_t fits = hc_least((whole->m + TILE) / RUN_ROWS, MOST_RUNS);
    const int runs = fits < 1 ? 1 : (int)fits;
    int status = HC_OK;
    for (int run = 0; run < runs && status == HC_OK; run++) {
        mirror_job mirror = {.square = whole->out_c};
        hc_part(whole->m, TILE, run, runs, &mirror.start, &mirror.stop);
        hc_gemm_arguments part = *whole;
        part.m = mirror.stop - mirror.start;
        part.n = mirror.stop;
        part.a.data = hc_element(&whole->a, mirror.start, 0);
        part.out_c.data = hc_element(&whole->out_c, mirror.start, 0);
        status = multiply(lent, job, &part);
        hc_team_run(lent->team, hc_threads_for(lent, mirror.start * part.m), mirror_share, &mirror);
    }
    return status;
}

typedef struct {
    const hc_kernels *kernels;
    int64_t count;
    float alpha, beta;
    const void *x, *y;
    void *out;
    int x_type, type; /* of x; of y and out */
} sum_job;

static void add_share(void *arguments, int thread, int num_threads) {
    const sum_job *job = arguments;
    int64_t start, stop;
    hc_part(job->count, HC_CHUNK, thread, num_threads, &start, &stop);
    job->kernels->scale_add(stop - start, job->alpha, hc_at(job->x, start, job->x_type), job->x_type, job->beta,
                            job->y == NULL ? NULL : hc_at(job->y, start, job->type), job->type,
                            hc_out_at(job->out, start, job->type), job->type, 0);
}

static void add(const hc_context *lent, sum_job job) {
    job.kernels = lent->kernels;
    hc_team_run(lent->team, hc_threads_for(lent, job.count), add_share, &job);
}

/* One matrix, on the threads of `lent` and in its scratch memory, of which the first part is that of the products. */
static int orthogonalise(const orthogonalise_job *job, hc_context *lent, int64_t i, char *memory) {
    const int64_t count = job->rows[i] * job->columns[i];
    products p = products_of(job, i, memory);
    const double norm = sqrt(hc_sum_of_squares_held(lent, count, job->x[i], (double *)(void *)memory));
    const float inverse = (float)(1.0 / (norm < job->least_norm ? job->least_norm : norm)); /* of NaN: NaN */
    add(lent, (sum_job){.count = count, .alpha = inverse, .x = job->x[i], .x_type = HC_F32, .out = job->out_x[i],
                        .type = job->type});
    int status = HC_OK;
    for (int64_t iteration = 0; iteration < job->iterations && status == HC_OK; iteration++) {
        void *gram = p.gram.out_c.data, *poly = p.square.out_c.data, *update = p.update.out_c.data, *x = job->out_x[i];
        status = multiply_symmetric(lent, job, &p.gram);
        status = status != HC_OK ? status : multiply_symmetric(lent, job, &p.square);
        add(lent, (sum_job){.count = p.gram.m * p.gram.m, .alpha = job->b, .x = gram, .x_type = job->type, .beta = job->c,
                            .y = poly, .out = poly, .type = job->type});
        status = status != HC_OK ? status : multiply(lent, job, &p.update);
        add(lent, (sum_job){.count = count, .alpha = job->a, .x = x, .x_type = job->type, .beta = 1.0f, .y = update, .out = x,
                            .type = job->type});
    }
    return status;
}

/* 1: all threads do matrix i together. */
static int is_shared(const orthogonalise_job *job, int64_t i) {
    const int num_threads = job->context->num_threads;
    return num_threads == 1 || cost_of(job, i) * num_threads > job->cost || products_of(job, i, NULL).bytes > MOST_BYTES_OF_ONE;
}

/* Scratch memory for matrix i, on one thread or on all; or a negative hc_status. */
static int64_t scratch_of(const orthogonalise_job *job, int64_t i, int num_threads) {
    const hc_context lent = hc_lent(job->context, num_threads, NULL, 0);
    products p = products_of(job, i, NULL);
    hc_gemm_arguments *const all[] = {&p.gram, &p.square, &p.update};
    int64_t most = 0;
    for (int product = 0; product < 3; product++) {
        all[product]->compute = job->type;
        const int64_t bytes = hc_gemm_scratch(&lent, all[product]);
        if (bytes < 0) {
            return bytes;
        }
        most = bytes > most ? bytes : most;
    }
    return p.bytes + hc_round_up(most, PAGE);
}

static void run_one(orthogonalise_job *job, int64_t i, int thread, int num_threads) {
    char *memory = job->scratch + thread * job->scratch_bytes;
    const int64_t own = products_of(job, i, NULL).bytes;
    hc_context lent = hc_lent(job->context, num_threads, memory + own, job->scratch_bytes - own);
    const int status = orthogonalise(job, &lent, i, memory);
    if (status != HC_OK) {
        __atomic_store_n(&job->status, status, __ATOMIC_RELAXED);
    }
}

static int has_elements(const orthogonalise_job *job, int64_t i) {
    return job->rows[i] > 0 && job->columns[i] > 0;
}

/* Small matrices: who has done one takes the next. */
static void take_small(void *arguments, int thread, int num_threads) {
    orthogonalise_job *job = arguments;
    (void)num_threads;
    for (int64_t i; (i = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED)) < job->matrices;) {
        if (has_elements(job, i) && !is_shared(job, i)) {
            run_one(job, i, thread, 1);
        }
    }
}

/* All of them, in scratch memory that is taken first: as much for all threads together as for each alone, where that is more. */
static int run_all(hc_context *context, orthogonalise_job *job) {
    int64_t small = 0, of_one = 0, of_all = 0;
    for (int64_t i = 0; i < job->matrices; i++) {
        if (has_elements(job, i)) {
            const int shared = is_shared(job, i);
            const int64_t bytes = scratch_of(job, i, shared ? context->num_threads : 1);
            if (bytes < 0) {
                return (int)bytes;
            }
            int64_t *most = shared ? &of_all : &of_one;
            *most = bytes > *most ? bytes : *most;
            small += !shared;
        }
    }
    const int num_threads = (int)hc_least(small, context->num_threads);
    const int64_t of_small = of_one * num_threads;
    job->scratch = hc_scratch(context, of_all > of_small ? of_all : of_small);
    if (job->scratch == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    job->scratch_bytes = of_all;
    for (int64_t i = 0; i < job->matrices; i++) {
        if (has_elements(job, i) && is_shared(job, i)) {
            run_one(job, i, 0, context->num_threads);
        }
    }
    job->scratch_bytes = of_one;
    if (small > 0) {
        hc_team_run(context->team, num_threads, take_small, job);
    }
    return job->status;
}

int hc_orthogonalise(hc_context *context, int64_t iterations, float a, float b, float c, double least_norm, int compute,
                     int64_t matrices, const int64_t *rows, const int64_t *columns, const float *const *x, void *const *out_x) {
    if (!hc_is_context(context) || iterations < 0 || iterations > MOST_ITERATIONS || (compute != HC_F32 && compute != HC_BF16) || matrices < 0 ||
        (matrices > 0 && (rows == NULL || columns == NULL || x == NULL || out_x == NULL))) {
        return HC_BAD_ARGUMENT;
    }
    orthogonalise_job job = {.context = context, .iterations = iterations, .a = a, .b = b, .c = c, .least_norm = least_norm,
                             .type = compute, .matrices = matrices, .rows = rows, .columns = columns, .x = x, .out_x = out_x};
    for (int64_t i = 0; i < matrices; i++) {
        const int64_t count = hc_count(rows[i], columns[i], 1), s = rows[i] < columns[i] ? rows[i] : columns[i];
        if (count < 0 || hc_count(s, s, 1) < 0 || !hc_is_array(x[i], count, HC_F32) || !hc_is_array(out_x[i], count, compute)) {
            return HC_BAD_ARGUMENT;
        }
        job.cost += cost_of(&job, i);
    }
    hc_lock(context);
    const int status = run_all(context, &job);
    hc_unlock(context);
    return status;
}
