/* The door of the kernels: every function that Python may call.
 *
 * Legend: N images, T tokens, D width, H heads, K head width (D = H * K), M = N * T rows, F output features.
 *
 * Rules. Functions that can fail return an hc_status; results go through pointers. Sizes count elements, strides count
 * elements, pointers need the alignment of their element type only. Arrays are never written unless the name of the
 * argument says `out`. Only hc_context_*, hc_pool_* and hc_copies_* allocate or start threads; nothing prints or reads the environment.
 * A handle (hc_context, hc_pool, hc_copies, hc_exchange) that is NULL, or another kind of handle, is HC_BAD_ARGUMENT, or what a
 * function without a status says of a refusal; those that end a handle leave it alone.
 * `const void *x, hc_dtype x_type`: an array of fp32 or bf16 (IEEE bfloat16, rounded to nearest even on a store). Arithmetic is
 * fp32 whatever the types of the arrays. inf and nan propagate as in IEEE arithmetic. Every result is the same from run
 * to run and, unless said otherwise, for any number of threads.
 */
#ifndef HCOPS_H
#define HCOPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Raised whenever a function below changes; the caller compares it with the one it was written for. */
#define HC_ABI_VERSION 13

typedef enum {
    HC_OK = 0,
    HC_BAD_ARGUMENT = -1,    /* null pointer, another handle, negative size, or a type that the function does not take */
    HC_UNKNOWN_ISA = -2,     /* no instruction set of that name or number */
    HC_UNSUPPORTED_ISA = -3, /* a known one that this CPU lacks */
    HC_NO_KERNEL = -4,       /* index past the end of a table */
    HC_OUT_OF_MEMORY = -5,   /* the system refused memory */
    HC_NO_THREAD = -6,       /* the system refused a thread or its place on a CPU */
    HC_NOT_BOUND = -7,       /* the system refused to bind memory to a node */
    HC_PROCESS_GONE = -8,    /* a process that was waited for has ended */
    HC_TIMED_OUT = -9,       /* ... has not come in time */
    HC_NOT_RUNNING = -10,    /* closed, or the threads are those of the process that this one was forked from */
    HC_PROCESS_STOPPED = -11 /* a process that was waited for is stopped by a signal */
} hc_status;

/* Instruction sets. Tens are the family; within a family a higher one can run the kernels of the lower ones. */
typedef enum {
    HC_ISA_REF = 0,
    HC_ISA_AVX2 = 10,
    HC_ISA_AVX512 = 11,
    HC_ISA_AVX512BF16 = 12,
    HC_ISA_AMX = 13,
    HC_ISA_NEON = 20,
    HC_ISA_SVE = 21,
    HC_ISA_SME = 22
} hc_isa;

typedef enum { HC_F32 = 0, HC_BF16 = 1, HC_F64 = 2 } hc_dtype;

int hc_version(void);

/* Name of an instruction set, "ref" to "sme"; NULL for a number that is none. Static storage. */
const char *hc_isa_name(int isa);

/* The instruction set of this CPU and operating system whose kernels are fastest, or the one named by `wanted` (NULL or "": the
 * fastest). */
int hc_isa_detect(const char *wanted, int *out_isa);

/* Line `index` of the kernel table: the operator and the instruction set of the kernel that serves it on a machine of
 * level `isa`. HC_NO_KERNEL past the end. Static storage. */
int hc_kernel(int isa, int index, const char **out_op, int *out_kernel_isa);

/* ------------------------------------------------------------------------------------------------ context and threads */

/* What a machine lends to the kernels: a team of threads, scratch memory, the sizes that blocking follows. */
typedef struct hc_context hc_context;
#define HC_MOST_THREADS 4096

/* Functions of an OpenMP runtime that is in the process: GOMP_parallel, which libgomp and LLVM's have, omp_get_thread_num and
 * omp_get_num_threads. */
typedef struct {
    void (*parallel)(void (*function)(void *), void *argument, unsigned num_threads, unsigned flags);
    int (*thread)(void);
    int (*num_threads)(void);
} hc_openmp;

typedef struct {
    int isa;             /* hc_isa */
    int num_threads;     /* 1 to HC_MOST_THREADS; the caller of an operator is thread 0, the others belong to the context */
    const int *cpus;     /* num_threads CPUs; thread i > 0 is pinned to cpus[i]; NULL: nobody is pinned */
    int64_t l1_bytes;    /* caches of one core, and the last level's share of one core; 0: a default is used */
    int64_t l2_bytes;
    int64_t l3_bytes;
    int64_t spin_nanoseconds; /* how long an idle thread looks for work before it sleeps; 0: a default */
    int num_clusters;         /* groups of consecutive threads, as equal as can be, that share a memory; 0: one */
    const int *nodes;         /* num_clusters memory nodes that blocks of the pool are bound to; NULL: nothing is bound */
    const hc_openmp *openmp;  /* the threads are this runtime's, where it puts them: cpus is NULL; NULL: threads of our own */
} hc_machine;

int hc_context_create(const hc_machine *machine, hc_context **out_context);

/* Ends the threads and gives memory back. No operator may be running. */
void hc_context_destroy(hc_context *context);

/* Gives the context's scratch memory back to the system, unless an operator is using it; the next one takes its own again. */
int hc_context_trim(hc_context *context);

/* Where the scratch memory is now, packed operands mostly: NULL and 0 before the first operator that needs any. */
int hc_context_scratch(hc_context *context, void **out_pages, int64_t *out_bytes);

/* Called once on every thread of a run; num_threads is that of the run, 1 in a forked child. */
typedef void (*hc_callback)(void *arguments, int thread, int num_threads);

/* Calls `job` on every thread of the context and returns when all are done. Operators of the same context
 * that the job calls run on the calling thread alone, one after the other. */
int hc_run(hc_context *context, hc_callback job, void *arguments);

/* Consecutive part `thread` of `num_threads` of range(count), cut at multiples of `multiple`, parts as equal as can be and larger
 * ones first: the rule by which every operator is cut, the same as dithc.cftp.partition. HC_BAD_ARGUMENT: no such part. */
int hc_part(int64_t count, int64_t multiple, int thread, int num_threads, int64_t *out_start, int64_t *out_stop);

/* ------------------------------------------------------------------------------------------------------------- memory */

/* Pre-faulted, re-used huge pages, cut into blocks of any size; blocks given back join their neighbours, which takes the place of
 * size classes. Never shrinks below what is in use; a miss first gives idle huge pages back, so that memory in use and idle
 * together stays below 9/8 of the most that was ever in use at once, but for idle parts of huge pages that a block in use shares.
 *
 * A pool may have a budget: what it has taken from the system, in use and idle together, by whole huge pages, never is more,
 * not for a moment. What does not fit, or what the system refuses, is taken from the pool below it, a counted spill. */
typedef struct hc_pool hc_pool;

typedef struct {
    int64_t budget_bytes; /* of physical memory; negative: none; of a file its size, whole huge pages (2 MiB) */
    const int *nodes;     /* num_nodes memory nodes, at most 64, that pages are bound to, equal runs of threads to each in turn */
    hc_pool *next;        /* the pool below, which has to outlive this one; NULL: none, then what does not fit is refused */
    int num_nodes;        /* 0: the context's nodes */
    int file;             /* descriptor of a file all of whose blocks are on the disk: it is the memory; negative: none */
    int reserved_pages;   /* 1: the whole budget comes from the huge pages that the administrator reserved, where they suffice */
} hc_pool_options;

/* options NULL: no budget, no pool below. The memory of a file and reserved pages are the pool's from here on, and stay until its
 * end. The child of a fork takes nothing from a file: its parent's blocks are there. */
int hc_pool_create(const hc_pool_options *options, hc_pool **out_pool);

/* Refuses every take from now on, also on behalf of the pool below it; those who name it may go on asking. */
void hc_pool_close(hc_pool *pool);

/* The same, and nobody names it any more; it ends when its last block is given back. */
void hc_pool_release(hc_pool *pool);

/* Changes the budget (negative: none), and gives idle memory back until the new one holds. What is in use stays, so a smaller one
 * may hold only after some gives. HC_BAD_ARGUMENT: the memory is a file's, or of reserved pages. */
int hc_pool_budget(hc_pool *pool, int64_t budget_bytes);

/* The addresses that the pool reserved at its creation, without memory: twice the machine's, or four times its budget, or a quarter
 * of RLIMIT_AS where that is less, or what the system grants. Blocks that do not fit there are mapped and unmapped one by one,
 * slower; with 0 bytes, all are. */
int hc_pool_reserved(hc_pool *pool, void **out_start, int64_t *out_bytes);

/* A block of `bytes` or more of this pool or of those below it, aligned to 4,096 bytes, content undefined. New memory is cut among
 * the threads by huge pages: each thread touches its part, which is bound to its node where nodes are known. NULL: refused. */
void *hc_pool_take(hc_pool *pool, hc_context *context, int64_t bytes);

/* Returns a block of this pool or of those below it; any thread may do so. */
void hc_pool_give(hc_pool *pool, void *block);

/* 1: the address lies in this pool's memory, and not in that of those below it. */
int hc_pool_holds(hc_pool *pool, const void *address);

typedef struct {
    int64_t used_bytes, idle_bytes;                 /* in use; taken from the system and not in use */
    int64_t peak_bytes;                             /* the most in use since hc_pool_start_peak */
    int64_t hits, misses;                           /* blocks that found idle memory alone, or did not */
    int64_t backed_bytes, peak_backed_bytes;        /* used + idle, which the budget is on, and the most of it ever */
    int64_t budget_bytes;                           /* negative: none */
    int64_t spills, spilled_bytes;                  /* takes that this pool refused, and what they asked for */
    int64_t largest_free_bytes;                     /* the longest run of idle memory */
    int64_t num_blocks;                             /* in use */
} hc_pool_state;

int hc_pool_counters(hc_pool *pool, hc_pool_state *out_state);

/* peak_bytes starts anew from what is in use now; peak_backed_bytes, the evidence that a budget was kept, never does. */
int hc_pool_start_peak(hc_pool *pool);

/* Has the system take the pages of `bytes` from `out_pages` on, a multiple of 4,096 both, from one memory node as long as that has
 * any left, and moves those there that have been touched (Linux's mbind). HC_NOT_BOUND: refused (a container's seccomp filter, a node that does not
 * exist); memory then comes from where it is first touched. */
int hc_bind(void *out_pages, int64_t bytes, int node);

/* Has the system put the whole huge pages (2 MiB) within `bytes` from `out_start` on huge pages: at once where it can, by and by
 * where it cannot, never where they are off. The content stays. */
int hc_use_huge_pages(void *out_start, int64_t bytes);

/* Gives every idle huge page back to the system. */
int hc_pool_trim(hc_pool *pool);

/* A DLPack tensor (DLManagedTensor *, version 0) over a block of the pool or of those below it: contiguous, on the CPU, given back
 * by its deleter, whatever has become of the pool. NULL: refused. */
void *hc_pool_tensor(hc_pool *pool, hc_context *context, int dtype, int num_dimensions, const int64_t *shape);

/* ------------------------------------------------------------------------------------------------------------- copies */

/* Copies between memories, or between memory and a file, beside the work. Two streams, each a queue: higher priorities first, among
 * equal ones in the order of submission; an urgent copy overtakes another after at most 4 MB of it. With threads each stream has
 * one, which sleeps while there is nothing to do and blocks the process's signals; without, callers who wait or advance copy with
 * the team of their context, as they do beside the threads too. Copies pass by the caches where the instruction set can. All
 * functions but destroy may be called by any thread. In a child of a fork, and after close: HC_NOT_RUNNING. */
typedef struct hc_copies hc_copies;
typedef enum { HC_LOAD = 0, HC_OFFLOAD = 1 } hc_copy_stream;
#define HC_COPY_STREAMS 2
#define HC_COPY_PENDING (-1)

/* No overlap. An end that lies in a mapped file is written or read through the descriptor: so what the system has to report is an
 * errno, and no page fault or signal of a thread. */
typedef struct {
    int64_t bytes;
    const void *source;
    void *out_target;
    int source_file, target_file;         /* descriptors of the files that they are mapped from; -1: memory */
    int64_t source_offset, target_offset; /* where they start in these files */
} hc_copy_request;

/* with_threads: 0: none. cpus: of each stream's thread, -1: not pinned; NULL: none is. */
int hc_copies_create(const hc_context *context, int with_threads, const int *cpus, hc_copies **out_copies);

/* Queues a copy; source and target have to live until *out_state, which is HC_COPY_PENDING by then, has become 0 or the errno of what
 * failed (target undefined). ECANCELED: closed before. Read it by hc_copies_state, and what was copied is to be seen too. */
int hc_copies_submit(hc_copies *copies, const hc_copy_request *request, int stream, int priority, int *out_state);
int hc_copies_state(const int *state); /* EINVAL: NULL */

/* Returns when the copy of a state is done, and has it overtake all others; without a state, when all are. HC_TIMED_OUT. */
int hc_copies_wait(hc_copies *copies, hc_context *context, const int *state, int64_t timeout_nanoseconds);

/* Copies up to `bytes` of what is queued on both streams with the team, and returns. */
int hc_copies_advance(hc_copies *copies, hc_context *context, int64_t bytes, int64_t *out_copied);

/* Copies at once with the team, whatever is queued; *out_error is 0 or an errno. */
int hc_copies_now(hc_copies *copies, hc_context *context, const hc_copy_request *request, int *out_error);

/* Sums since the engine was made; after close too. */
typedef struct {
    int64_t bytes[HC_COPY_STREAMS], busy_nanoseconds[HC_COPY_STREAMS]; /* copied through each stream; time of all parts of copies */
    int64_t team_bytes;        /* copied by the teams of callers, hc_copies_now's among them */
    int64_t queued_bytes;      /* that nobody has begun to copy, now */
    int64_t failed;            /* copies */
    int64_t stall_nanoseconds; /* that callers spent in wait, advance and now */
} hc_copy_counters;
int hc_copies_counters(hc_copies *copies, hc_copy_counters *out_counters);

/* Ends the threads after the parts under way; what is not copied then is cancelled. HC_TIMED_OUT: a part still is under way, and
 * nothing may be freed. Again: no harm. */
int hc_copies_close(hc_copies *copies, int64_t timeout_nanoseconds);

/* Frees a closed engine, which nobody calls any more; one that is not closed stays as it is. */
void hc_copies_destroy(hc_copies *copies);

/* For tests: from now on each part of a copy sleeps first, until close, and fails with `error` (0: never) once `after_bytes` more
 * have been copied. */
int hc_copies_set_faults(hc_copies *copies, int error, int64_t after_bytes, int64_t delay_nanoseconds);

/* --------------------------------------------------------------------------------------------------------------- gemm */

/* Element (i, j) is data[i * row_stride + j * column_stride]; one of the strides is 1, or the matrix has one row or column. */
typedef struct {
    void *data;
    int64_t row_stride, column_stride;
    int dtype; /* hc_dtype */
} hc_matrix;

/* What happens to C = A B before it is stored; each term that is set is applied in the order of these lines. */
typedef struct {
    const void *bias; /* (n) or NULL: C[i, j] += bias[j] */
    int bias_type;
    void *out_before; /* NULL, or an m x n matrix of C's strides and of before_type: what C is after the bias */
    int before_type;
    int gelu; /* 1: C = gelu(C), the tanh form */
    const void *gelu_gradient_at; /* NULL, or an m x n matrix u of C's strides and of C's type: C *= gelu'(u) */
    const void *gate; /* NULL, or row i / rows_per_gate of a matrix with gate_stride between rows: C[i, j] *= gate */
    int gate_type;
    int64_t gate_stride, rows_per_gate;
    const void *residual; /* NULL, or an m x n matrix of C's strides and of residual_type: C[i, j] += residual[i, j] */
    int residual_type;
} hc_epilogue;

/* What of C the clusters share out. */
typedef enum {
    HC_CUT_BY_COST = 0, /* what costs less by the model in gemm/blocking.c; on one memory node the clusters pack together */
    HC_CUT_ROWS = 1,    /* each cluster packs its rows of A, and all of B */
    HC_CUT_COLUMNS = 2  /* each cluster packs its columns of B, and all of A */
} hc_cluster_cut;

/* How a product is cut; zeros mean: from the cache sizes and shape, by the rule in gemm/blocking.c. */
typedef struct {
    int64_t mc, nc, kc;          /* block of A in rows, of B in columns, of both in depth */
    int row_cuts, column_cuts;   /* cuts of m and of n among the threads of a cluster; their product is at most the threads */
    int num_threads;             /* 0: all of the context */
    int cluster_cut;             /* hc_cluster_cut, where the threads are those of several clusters */
} hc_blocking;

typedef struct {
    int64_t m, n, k;
    hc_matrix a, b;     /* m x k and k x n; fp32 or bf16 each, or both fp64 */
    hc_matrix out_c;    /* m x n; fp32 or bf16, row_stride any, column_stride 1; fp64 for an fp64 product */
    int compute;        /* HC_F32: products of fp32; HC_BF16: of operands rounded to bf16, summed in fp32; HC_F64 */
    int accumulate;     /* 1: out_c += product (fp32 or fp64 c, no epilogue) */
    float *out_row_sum_a; /* NULL, or (m): the sum of each row of A (the bias gradient when A = dY^T); += with accumulate */
    hc_epilogue epilogue;
    hc_blocking blocking;
    int64_t rows_like; /* 0, or what stands for m wherever m decides in which order a sum is taken: rows that are cut among
                        * processes, or among calls, get the bits that they have in a product of so many rows */
    const void *packed_b; /* NULL, or what hc_gemm_pack made of b, which then is not read where it serves */
} hc_gemm_arguments;

/* C = epilogue(A B). k = 0 gives the epilogue of zeros. Equal for any number of threads at the same kc.
 * Error of an element: |c - exact| <= (k + 2) * 2^-24 * sum |a||b| for fp32; with compute bf16 the same over the rounded
 * operands, plus the rounding of a bf16 c. AMX: products of fp32 with m, n, k >= 64 are summed from bf16 parts of the operands
 * (gemm/x86/gemm_f32_amx.c), unless an operand has an inf or NaN, or magnitudes are so large or small that sums or parts leave
 * fp32's range (gemm/gemm_range.c). Their error is at most (6 k + 8) * 2^-24 * sum |a||b| + 2^-123 * k * (1 + max|a| + max|b|),
 * as parts and sums below 2^-126 count as zero. Measured on normal numbers it is below that of MKL's fp32: root mean square
 * 0.18 against 0.47, largest 1.8 against 4.4, in units of 2^-24 * sum |a||b| at k = 384. */
int hc_gemm(hc_context *context, const hc_gemm_arguments *arguments);

/* B as the product that these arguments ask of hc_gemm reads it: bytes, 0 where that packs nothing (few rows, little depth, or an
 * empty B). Of other products of the same b, k and compute, with any m and epilogue and on any context of this process with the same
 * caches, it serves those that hc_gemm gives the same kernel; the others pack for themselves. Never in another process. */
int hc_gemm_pack_bytes(hc_context *context, const hc_gemm_arguments *arguments, int64_t *out_bytes);

/* Arranges B so, for `packed_b` of products, which have the bits that they have without it. b is to stay as it is: products that
 * the arranged one does not serve, and those whose operands are out of the range of bf16 parts, read it. out_packed is aligned
 * to 64 bytes. */
int hc_gemm_pack(hc_context *context, const hc_gemm_arguments *arguments, void *out_packed);

/* The part of C that `thread` of the context computes in the product that these arguments ask of hc_gemm: first row, row behind
 * the last, the same of columns; all zero where it has no part. Nothing is computed, and no data is read. A product whose
 * operands turn out to be out of the range of bf16 parts may be cut otherwise. */
int hc_gemm_cut(hc_context *context, const hc_gemm_arguments *arguments, int thread, int64_t *out_part);

/* --------------------------------------------------------------------------------------------------------------- adaLN */

/* out[n, t, :] = (x - mean) * rstd * (1 + scale[n, :]) + shift[n, :], mean and variance over D, rstd = 1 / sqrt(variance + eps).
 * shift and scale: rows of D elements, condition_stride apart. out_mean, out_rstd: (N, T). out_mean NULL: the norm is RMSNorm
 * (Zhang & Sennrich 2019, equation 4), out = x * rstd * (1 + scale) + shift, rstd = 1 / sqrt(mean of x^2 + eps), which is 0 where
 * the sum of x^2 is more than fp32 holds, as in PyTorch. */
int hc_adaln_forward(hc_context *context, int64_t n, int64_t t, int64_t d, float eps, const void *x, int x_type,
                     const void *shift, const void *scale, int condition_type, int64_t condition_stride, void *out,
                     int out_type, float *out_mean, float *out_rstd);

/* dx (N, T, D), dshift and dscale (N, D) contiguous. mean NULL: the norm was RMSNorm. dstream: NULL, or (N, T, D), which is added
 * to dx: what comes back to x beside the norm. Sums over tokens are in a fixed order: first within blocks of tokens of a fixed length, then over the blocks. */
int hc_adaln_backward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *dout, int dout_type, const void *x,
                      int x_type, const void *scale, int condition_type, int64_t condition_stride, const float *mean,
                      const float *rstd, const void *dstream, int dstream_type, void *out_dx, int dx_type, void *out_dshift,
                      void *out_dscale, int dcondition_type);

/* ------------------------------------------------------------------------------------------------------ gate + residual */

/* LayerNorm (Ba et al. 2016) or, with out_mean and mean NULL, RMSNorm (Zhang & Sennrich 2019) of rows of D numbers with weights of
 * their own: out = (x - mean) * rstd * weight + bias; and the gradients. weight and bias (D) of one type. */
int hc_norm_forward(hc_context *context, int64_t rows, int64_t d, float eps, const void *x, int x_type, const void *bias,
                    const void *weight, int weight_type, void *out, int out_type, float *out_mean, float *out_rstd);
int hc_norm_backward(hc_context *context, int64_t rows, int64_t d, const void *dout, int dout_type, const void *x, int x_type,
                     const void *weight, int weight_type, const float *mean, const float *rstd, void *out_dx, int dx_type,
                     void *out_dbias, void *out_dweight, int dweight_type);

/* out = x + gate[n, :] * y; x, y, out (N, T, D), gate rows gate_stride apart. */
int hc_gate_residual_forward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *x, int x_type,
                             const void *gate, int gate_type, int64_t gate_stride, const void *y, int y_type, void *out,
                             int out_type);

/* dy = gate * dout, dgate[n, :] = sum over t of dout * y (ordered); dgate (N, D) contiguous. dx is dout itself. */
int hc_gate_residual_backward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *dout, int dout_type,
                              const void *gate, int gate_type, int64_t gate_stride, const void *y, int y_type, void *out_dy,
                              int dy_type, void *out_dgate, int dgate_type);

/* ----------------------------------------------------------------------------------------------------------- attention */

/* out = softmax(q k^T / sqrt(K)) v for each head; qkv (N, T, 3, H, K) contiguous, out (N, T, H, K), out_lse (N, H, T): the
 * logarithm of each row's sum of exponentials. compute: HC_F32, or HC_BF16 for products of operands rounded to bf16. No T x T
 * array is kept. AMX: products of fp32 with T >= 64 and K >= 40 are summed from bf16 parts of the operands, in heads of which
 * q, k, v and dout have no inf or NaN and largest magnitudes from 2^-45 to 2^30 (attention/attention_range.c). Of the parts x1 +
 * x2 + x3 of a number the products x2 y3, x3 y2 and x3 y3 are left out, at most 2^-23 |x||y|, and as for hc_gemm parts and sums
 * below 2^-126 count as zero. The root mean square of the errors of out, dq, dk and dv is 0.45 to 0.85 times that of PyTorch's
 * fp32 attention, which is measured in its tests. */
int hc_attention_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *qkv, int qkv_type,
                         void *out, int out_type, float *out_lse, int compute);

/* Heads (N, H, T, K) of fp32 or bf16 at any strides, but for the K elements of a row, which lie side by side. */
typedef struct {
    void *data;
    int type;
    int64_t image_stride, head_stride, token_stride;
} hc_heads;

/* The same for heads that lie anywhere: of `queries` and of `keys` tokens, several heads of queries to a head of keys and values
 * (H = key_heads times a whole number: head h has those of h key_heads / H), any scale > 0. causal: query i sees keys 0 to i. */
typedef struct {
    int64_t n, queries, keys, h, key_heads, k;
    float scale;
    int causal, compute;
    hc_heads query, key, value; /* H, key_heads, key_heads */
    hc_heads out, dout;         /* H; of the same token_stride. Forward writes out */
    hc_heads out_dquery, out_dkey, out_dvalue; /* H each: sums over the heads of queries of a head of keys are the caller's */
    float *lse;                 /* (N, H, queries); forward writes it */
    int64_t queries_like;       /* forward: 0, or the queries of the whole of which these are a part, whose bits they get */
} hc_attention_arguments;

int hc_attention_heads_forward(hc_context *context, const hc_attention_arguments *arguments);
int hc_attention_heads_backward(hc_context *context, const hc_attention_arguments *arguments);

/* dqkv (N, T, 3, H, K), computed again from qkv and lse. */
int hc_attention_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *dout, int dout_type,
                          const void *qkv, int qkv_type, const void *out, int out_type, const float *lse, void *out_dqkv,
                          int dqkv_type, int compute);

/* -------------------------------------------------------------------------------------------------------- rotate heads */

/* What stands between q, k, v and attention. Each head of q and k, a row x of K numbers: first x * rstd * weight with rstd = 1 /
 * sqrt(mean of x^2 + eps) (RMSNorm), unless the weights are NULL; then for K even its pairs (2i, 2i + 1) are turned by the angle
 * of (token, i), (a, b) -> (a cos - b sin, a sin + b cos) (Su et al. 2021, equation 34), unless cos and sin are NULL. v is copied.
 * qkv and out (N, T, 3, H, K) of one type, not the same memory; cos and sin (T, K / 2), query_weight and key_weight (K). */
int hc_rotate_heads_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, float eps, const float *cos,
                            const float *sin, const float *query_weight, const float *key_weight, const void *qkv, void *out,
                            int type);

/* The gradients to qkv and to the weights; without weights qkv is not read and may be NULL, as out_dquery_weight and
 * out_dkey_weight then are. Sums over heads and tokens are in a fixed order: within blocks of tokens of a fixed length, token by
 * token and head by head, then over the blocks. */
int hc_rotate_heads_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, float eps, const float *cos,
                             const float *sin, const float *query_weight, const float *key_weight, const void *dout,
                             const void *qkv, void *out_dqkv, int type, float *out_dquery_weight, float *out_dkey_weight);

/* --------------------------------------------------------------------------------------------------------- elementwise */

/* Errors against float64 over all finite fp32: see the table in activation/activation.h. */
typedef enum {
    HC_EXP = 0,
    HC_TANH = 1,
    HC_GELU = 2, /* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    HC_SILU = 3, /* x / (1 + exp(-x)) */
    HC_GELU_ERF = 4 /* 0.5 x (1 + erf(x / sqrt(2))) */
} hc_function;

/* out[i] = f(x[i]) */
int hc_map(hc_context *context, int function, int64_t count, const void *x, int x_type, void *out, int out_type);

/* out_dx[i] = dout[i] * f'(x[i]) for HC_GELU, HC_SILU and HC_GELU_ERF; for HC_EXP and HC_TANH `x` holds the results y = f(x): the factor is
 * y, or 1 - y^2. */
int hc_map_backward(hc_context *context, int function, int64_t count, const void *dout, int dout_type, const void *x,
                    int x_type, void *out_dx, int dx_type);

/* SwiGLU (Shazeer 2020, equation 6): rows of 2 * columns elements to rows of `columns`, out[i, j] = silu(x[i, j]) *
 * x[i, columns + j]; and its gradient to x. */
int hc_swiglu_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type);
int hc_swiglu_backward(hc_context *context, int64_t rows, int64_t columns, const void *dout, int dout_type, const void *x,
                       int x_type, void *out_dx, int dx_type);

/* out[i] = alpha * x[i] + beta * y[i]; y may be NULL with beta 0. */
int hc_scale_add(hc_context *context, int64_t count, float alpha, const void *x, int x_type, float beta, const void *y,
                 int y_type, void *out, int out_type);

/* Softmax over each of `rows` rows of `columns` contiguous elements, and its gradient out_dx = y * (dy - sum(dy * y)). */
int hc_softmax_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type);
int hc_softmax_backward(hc_context *context, int64_t rows, int64_t columns, const void *dout, int dout_type, const void *y,
                        int y_type, void *out_dx, int dx_type);

/* An image (N, C, R * p, S * p) to patches (N, R * S, order of a patch's elements), and back. order 0: (c, row, column), what
 * the patch embedding reads; order 1: (row, column, c), what the last layer writes. */
int hc_patchify(hc_context *context, int64_t n, int64_t c, int64_t r, int64_t s, int64_t p, int order, const void *image,
                int image_type, void *out_patches, int out_type);
int hc_unpatchify(hc_context *context, int64_t n, int64_t c, int64_t r, int64_t s, int64_t p, int order, const void *patches,
                  int patches_type, void *out_image, int out_type);

/* Mean over each of `rows` rows of (x - y)^2, in float64 inside; and its gradient to x:
 * out_dx = 2 (x - y) dout[row] / columns. */
int hc_mse_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, const void *y, int y_type,
                   float *out);
int hc_mse_backward(hc_context *context, int64_t rows, int64_t columns, const float *dout, const void *x, int x_type,
                    const void *y, int y_type, void *out_dx, int dx_type);

/* ----------------------------------------------------------------------------------------------------------- optimizer */

/* *out_sum = sum of the squares of all elements of `tensors` arrays of fp32, in float64 and a fixed order. */
int hc_sum_of_squares(hc_context *context, int64_t tensors, const int64_t *counts, const float *const *x, double *out_sum);

typedef struct {
    double lr, beta1, beta2, eps, weight_decay; /* fp64: 1 - beta2 of an fp32 beta2 is wrong in the fifth digit */
    double gradient_scale; /* each gradient is multiplied by this first: clip factor times loss scale */
    int64_t step;          /* 1 for the first update: the bias corrections are 1 - beta^step */
    double ema_decay;      /* ema = ema_decay * ema + (1 - ema_decay) * weight, after the update */
} hc_adamw_settings;

/* One pass over `tensors` arrays: AdamW with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), then the moving
 * average and the bf16 copy of the new weights. out_ema, out_shadow, or single entries of them, may be NULL. */
int hc_adamw(hc_context *context, const hc_adamw_settings *settings, int64_t tensors, const int64_t *counts,
             float *const *out_weight, const float *const *gradient, float *const *out_first, float *const *out_second,
             float *const *out_ema, uint16_t *const *out_shadow);

/* ------------------------------------------------------------------------------------------------------------ sequence */

/* The operators that a sequence can hold, each with as many words as it has arguments behind the context, in their order: whole
 * numbers and addresses as they are, a float as the bits of the double of its value. hc_gemm and hc_attention_heads_forward: the
 * address of their arguments; hc_exchange_meet: all of its arguments. */
typedef enum {
    HC_STEP_GEMM = 0,
    HC_STEP_ADALN_FORWARD = 1,
    HC_STEP_ADALN_BACKWARD = 2,
    HC_STEP_GATE_RESIDUAL_BACKWARD = 3,
    HC_STEP_ATTENTION_FORWARD = 4,
    HC_STEP_ATTENTION_BACKWARD = 5,
    HC_STEP_MAP = 6,
    HC_STEP_MAP_BACKWARD = 7,
    HC_STEP_SWIGLU_FORWARD = 8,
    HC_STEP_SWIGLU_BACKWARD = 9,
    HC_STEP_ROTATE_HEADS_FORWARD = 10,
    HC_STEP_ROTATE_HEADS_BACKWARD = 11,
    HC_STEP_ATTENTION_HEADS_FORWARD = 12,
    HC_STEP_COPY_BLOCKS = 13,
    HC_STEP_EXCHANGE_MEET = 14
} hc_step;

/* Operators one after the other: for each its hc_step, then its words. Stops at the first that fails, with its status; what
 * those before it wrote stays. *out_at: where in `words` the last one stands that was begun. */
int hc_sequence(hc_context *context, const int64_t *words, int64_t num_words, int64_t *out_at);

/* ------------------------------------------------------------------------------------------------------------ exchange */

/* Arrays of the processes of one node become one, through a segment of memory that all of them have mapped (filled with
 * zeros before the first attaches). Chunks are numbered 0, 1, 2, ... over the life of the segment, alike in all processes. A chunk is a
 * sum (put, combine, publish, get), a sum of which everybody keeps its own piece alone (put, combine without out_piece), or a hand-out
 * (offer, get); the first step may run ahead by the number of slots. Values are combined in fp32, in the order of the ranks, each
 * rounded to `type` before, and the result once after. HC_PROCESS_GONE and HC_TIMED_OUT name the process in *out_rank. */
typedef struct hc_exchange hc_exchange;
typedef enum { HC_SUM = 0, HC_PRODUCT = 1, HC_LARGEST = 2, HC_SMALLEST = 3 } hc_combination;
#define HC_MOST_PROCESSES 256

int hc_exchange_bytes(int ranks, int slots, int64_t slot_bytes, int64_t *out_bytes);
int hc_exchange_attach(void *segment, const hc_context *context, int rank, int ranks, int slots, int64_t slot_bytes,
                       hc_exchange **out_exchange);
void hc_exchange_detach(hc_exchange *exchange);

/* Piece r of a chunk, for process r: elements offsets[r] .. + length of an array, of which those from `limit` on do not exist. All
 * pieces together, each in whole cache lines of 64 bytes, fit a slot. */
typedef struct {
    const int64_t *offsets;
    int64_t length, limit;
} hc_pieces;

/* Copies the pieces of the others out of x, as `type`, into the own slot; waits until the slot has been read by all. */
int hc_exchange_put(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                    int64_t timeout_nanoseconds, int *out_rank);

/* Copies the own piece, which is all of x here, into the own slot, and publishes it. */
int hc_exchange_offer(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                      int64_t timeout_nanoseconds, int *out_rank);

/* Combines the own piece of the chunk over all processes, the own values being those of x. The result, times scale, goes to
 * `out`, which may be where the piece lies in x, and to the own slot; *out_piece is where it lies there. Before it is published it
 * may be changed, for instance by processes of other nodes. Either may be NULL; without out_piece the chunk ends here. out_type is
 * x_type, or without out_piece also `type`. */
int hc_exchange_combine(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                        int op, float scale, void *out, int out_type, void **out_piece, int64_t timeout_nanoseconds,
                        int *out_rank);
int hc_exchange_publish(hc_exchange *exchange, uint32_t number);

/* Copies the pieces of the others, and the own one `with_own`, to their places in `out`. */
int hc_exchange_get(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, int type, int with_own, void *out,
                    int out_type, int64_t timeout_nanoseconds, int *out_rank);

/* A whole operation in one call, on arrays of x_type that go through the segment as `type`. `count` is of all of x for a sum (x and
 * out are the same), else of the part of one process: a reduce-scatter combines the parts of x and leaves out the own one, an
 * all-gather collects x of every process in `out`, where x may be the own part already (of another type it is rounded as the
 * others are). It takes as many chunk numbers from `first` on as there are chunks of `chunk` elements (of x, or of a part) in count.
 * done[HC_WHOLE_STEPS], zeros at first, is how many chunks each step has done. */
typedef enum { HC_ALL_REDUCE = 0, HC_REDUCE_SCATTER = 1, HC_ALL_GATHER = 2 } hc_whole_kind;
#define HC_WHOLE_STEPS 3
typedef struct {
    const void *x;
    void *out;
    int64_t *done;
    int64_t count, chunk;
    uint32_t first;
    int kind, x_type, type, op;
    float scale;
} hc_whole;

/* Makes `rounds` rounds over the steps at most, and waits so long where no step can be done. HC_TIMED_OUT: call it again. */
int hc_exchange_whole(hc_exchange *exchange, const hc_whole *whole, int64_t rounds, int64_t timeout_nanoseconds, int *out_rank);

/* Returns when all processes have called it as often as this one has; what they wrote before can then be read. For a segment in
 * which nothing else is done (no slot is used). It waits awake for half a millisecond, then asleep. HC_PROCESS_STOPPED: a process has been stopped by a signal for ten seconds. */
int hc_exchange_meet(hc_exchange *exchange, int64_t timeout_nanoseconds, int *out_rank);

/* out[i] = op over r of x[r][i], r = 0, 1, ... in this order, in fp32; all of `type`. out may be one of the x. */
int hc_exchange_fold(hc_exchange *exchange, int num_arrays, int64_t count, const void *const *x, int type, int op, void *out);

/* Blocks of rows of `bytes` bytes each, copied to where they lie at other distances (in bytes): row r of block b of the source is at
 * b * source_block + r * source_row. */
int hc_copy_blocks(hc_context *context, int64_t blocks, int64_t rows, int64_t bytes, const void *source, int64_t source_block,
                   int64_t source_row, void *out_target, int64_t target_block, int64_t target_row);

/* ------------------------------------------------------------------------------------------------------------ ceilings */

/* Runs `rounds` rounds of independent multiply-adds in registers on every thread of the context, with the widest unit that
 * serves products of `compute`; *out_flop is the number of floating-point operations done. The caller holds the clock. */
int hc_multiply_add_ceiling(hc_context *context, int compute, int64_t rounds, double *out_flop);

/* `count` barriers of all threads of the context, back to back. */
int hc_barrier_ceiling(hc_context *context, int64_t count);

/* Copies `bytes` with every thread of the context. */
int hc_copy(hc_context *context, int64_t bytes, const void *source, void *out_target);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
