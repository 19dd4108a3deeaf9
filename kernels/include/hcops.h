/* Public API of the kernels: every function that Python may call.
 *
 * Legend: N images, T tokens, D width, H heads, K head width (D = H * K), M = N * T rows, F output features.
 *
 * Rules:
 * - Functions that can fail return an hc_status. Results are written through pointers.
 * - Sizes and strides count elements. Pointers need only the alignment of their element type.
 * - Functions write only arrays whose argument or field name starts with `out`.
 * - Only hc_context_*, hc_pool_*, hc_copies_* and hc_exchange_* allocate memory or start threads. No function prints
 *   or reads the environment.
 * - A handle (hc_context, hc_pool, hc_copies, hc_exchange) that is NULL or of another type gives HC_BAD_ARGUMENT.
 *   Functions without a status return their failure value. Functions that destroy a handle ignore it.
 * - `const void *x, hc_dtype x_type` is an array of fp32 or bf16 (IEEE bfloat16, rounded to nearest even on a
 *   store). Arithmetic is fp32 for all array types. inf and nan propagate as in IEEE arithmetic.
 * - Results are the same in every run and, unless documented otherwise, for any number of threads.
 */
#ifndef HCOPS_H
#define HCOPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Increase with every change of a function below. Callers compare it with the version they were written for. */
#define HC_ABI_VERSION 14

typedef enum {
    HC_OK = 0,
    HC_BAD_ARGUMENT = -1,    /* null pointer, wrong handle, negative size, or unsupported type */
    HC_UNKNOWN_ISA = -2,     /* unknown name or number */
    HC_UNSUPPORTED_ISA = -3, /* known, but this CPU lacks it */
    HC_NO_KERNEL = -4,       /* index past the end of a table */
    HC_OUT_OF_MEMORY = -5,   /* the system refused memory */
    HC_NO_THREAD = -6,       /* the system refused a thread or its place on a CPU */
    HC_NOT_BOUND = -7,       /* the system refused to bind memory to a node */
    HC_PROCESS_GONE = -8,    /* a process that this process waits for has ended */
    HC_TIMED_OUT = -9,       /* a process that this process waits for has not arrived in time */
    HC_NOT_RUNNING = -10,    /* closed, or the threads belong to the parent process of a fork */
    HC_PROCESS_STOPPED = -11 /* a process that this process waits for is stopped by a signal */
} hc_status;

/* Instruction sets. Tens are the family. Within a family a higher set can run the kernels of lower sets. */
typedef enum {
    HC_ISA_REF = 0,
    HC_ISA_AVX2 = 10,
    HC_ISA_AVX512 = 11,
    HC_ISA_AVX512BF16 = 12,
    HC_ISA_AMX = 13,      /* bf16 products on tiles */
    HC_ISA_AMX_FP32 = 14, /* also large fp32 products, as sums of products of bf16 parts */
    HC_ISA_NEON = 20,
    HC_ISA_SVE = 21,
    HC_ISA_SVEBF16 = 22,
    HC_ISA_SME = 23
} hc_isa;

typedef enum { HC_F32 = 0, HC_BF16 = 1, HC_F64 = 2 } hc_dtype;

int hc_version(void);

/* Return the name of an instruction set, "ref" to "sme", or NULL for an unknown number. Static storage. */
const char *hc_isa_name(int isa);

/* Find the instruction set with the fastest kernels for this CPU and operating system. If `wanted` is neither NULL nor
 * "", return the set of this name. */
int hc_isa_detect(const char *wanted, int *out_isa);

/* Return line `index` of the kernel table: the operator, and the instruction set of its kernel on a machine of level
 * `isa`. HC_NO_KERNEL after the last line. Static storage. */
int hc_kernel(int isa, int index, const char **out_op, int *out_kernel_isa);

/* ---------------------------------------------------------------------------------------------- context and threads */

/* Resources for kernels: a team of threads, scratch memory, and the cache sizes that blocking uses. */
typedef struct hc_context hc_context;
#define HC_MAX_THREADS 4096

/* Functions of a loaded OpenMP runtime: GOMP_parallel, which libgomp and LLVM's runtime provide, omp_get_thread_num
 * and omp_get_num_threads. */
typedef struct {
    void (*parallel)(void (*function)(void *), void *argument, unsigned num_threads, unsigned flags);
    int (*thread)(void);
    int (*num_threads)(void);
} hc_openmp;

typedef struct {
    int isa;             /* hc_isa */
    int num_threads;     /* 1 to HC_MAX_THREADS; thread 0 is the caller, the others belong to the context */
    const int *cpus;     /* num_threads CPUs; thread i > 0 is pinned to cpus[i]; NULL: not pinned */
    int64_t l1_bytes;    /* caches of one core, and one core's share of the last level; 0: default */
    int64_t l2_bytes;
    int64_t l3_bytes;
    int64_t spin_nanoseconds; /* time that an idle thread polls for work before it sleeps; 0: default */
    int num_clusters;         /* groups of consecutive threads with a common memory, as equal as possible; 0: one */
    const int *nodes;         /* memory node per cluster for blocks of the pool; NULL: not bound */
    const hc_openmp *openmp;  /* use the threads of this runtime, unpinned, with cpus NULL; NULL: own threads */
} hc_machine;

int hc_context_create(const hc_machine *machine, hc_context **out_context);

/* End the threads and free the memory. No operator may be running. */
void hc_context_destroy(hc_context *context);

/* Return the context's scratch memory to the system unless an operator uses it. The next operator allocates it
 * again. */
int hc_context_trim(hc_context *context);

/* Return the scratch memory, mainly packed operands; NULL and 0 before the first operator that needs it. */
int hc_context_scratch(hc_context *context, void **out_pages, int64_t *out_bytes);

/* Callback of a run, called once per thread. num_threads is the number of threads of the run, 1 in a forked child. */
typedef void (*hc_callback)(void *arguments, int thread, int num_threads);

/* Call `job` on every thread of the context; return after all calls. Operators of the same context that the job
 * calls run on the calling thread alone, one after the other. */
int hc_run(hc_context *context, hc_callback job, void *arguments);

/* Return consecutive part `thread` of `num_threads` of range(count), cut at multiples of `multiple`, as equal as
 * possible and larger parts first. Every operator cuts by this rule, as does dithc.engine.cftp.partition. HC_BAD_ARGUMENT
 * for an invalid part. */
int hc_part(int64_t count, int64_t multiple, int thread, int num_threads, int64_t *out_start, int64_t *out_stop);

/* ----------------------------------------------------------------------------------------------------------- memory */

/* Pool of pre-faulted, re-used huge pages, cut into blocks of any size. Returned blocks merge with their neighbors,
 * so that no size classes are needed. The pool never shrinks below the memory in use. A miss first returns idle huge
 * pages to the system, so that used and idle memory together stay below 9/8 of the largest amount ever used, except
 * idle parts of huge pages that contain a used block.
 *
 * A pool may have a budget. The memory that it has taken from the system, used and idle, in complete huge pages,
 * never exceeds the budget. Blocks that do not fit, or that the system refuses, come from the next pool and are
 * counted as spills. */
typedef struct hc_pool hc_pool;

typedef struct {
    int64_t budget_bytes; /* limit of physical memory; negative: none; for a file its size, in huge pages (2 MiB) */
    const int *nodes;     /* num_nodes memory nodes, at most 64; equal runs of threads are bound to them in order */
    hc_pool *next;        /* next pool, which must outlive this pool; NULL: refuse blocks that do not fit */
    int num_nodes;        /* 0: the context's nodes */
    int file;             /* descriptor of a fully allocated file that provides the memory; negative: none */
    int reserved_pages;   /* 1: take the complete budget from reserved huge pages, if there are enough */
} hc_pool_options;

/* NULL options mean no budget and no next pool. Memory of a file and reserved pages belong to the pool until its
 * end. The child of a fork takes no memory from a file, because it contains blocks of the parent. */
int hc_pool_create(const hc_pool_options *options, hc_pool **out_pool);

/* Refuse all later takes, also for the next pool. Callers may still use the handle. */
void hc_pool_close(hc_pool *pool);

/* Close the pool and release the caller's handle. The pool ends when its last block is returned. */
void hc_pool_release(hc_pool *pool);

/* Return the address range that the pool reserved at its creation, without memory: twice the machine's memory, or
 * four times its budget, or a quarter of a smaller RLIMIT_AS, or the range that the system grants. Blocks outside
 * the range are mapped and unmapped separately, which is slower. With 0 bytes, all blocks are. */
int hc_pool_reserved(hc_pool *pool, void **out_start, int64_t *out_bytes);

/* Return a block of at least `bytes` of this or a later pool, aligned to 4,096 bytes, with undefined content. New
 * memory is split among the threads in huge pages. Each thread touches its part, which is bound to its memory node
 * if known. NULL if refused. */
void *hc_pool_take(hc_pool *pool, hc_context *context, int64_t bytes);

/* Return a block to this or a later pool. Any thread may call it. */
void hc_pool_give(hc_pool *pool, void *block);

/* Return 1 if the address is in the memory of this pool, excluding later pools. */
int hc_pool_holds(hc_pool *pool, const void *address);

typedef struct {
    int64_t used_bytes, idle_bytes;                 /* in use; taken from the system and not in use */
    int64_t peak_bytes;                             /* largest use since hc_pool_start_peak */
    int64_t hits, misses;                           /* blocks served by idle memory only, and other blocks */
    int64_t backed_bytes, peak_backed_bytes;        /* used + idle, which the budget limits, and its largest value */
    int64_t budget_bytes;                           /* negative: none */
    int64_t spills, spilled_bytes;                  /* takes that this pool refused, and their size */
    int64_t largest_free_bytes;                     /* longest run of idle memory */
    int64_t num_blocks;                             /* in use */
} hc_pool_state;

int hc_pool_counters(hc_pool *pool, hc_pool_state *out_state);

/* Restart peak_bytes at the memory in use. peak_backed_bytes is never reset, so that it proves that a budget held. */
int hc_pool_start_peak(hc_pool *pool);

/* Bind `bytes` of pages from `out_pages`, both multiples of 4,096, to one memory node while it has memory, and move
 * touched pages there (Linux's mbind). HC_NOT_BOUND if refused, by a container's seccomp filter or for a missing
 * node; pages then come from the node of the first access. */
int hc_bind(void *out_pages, int64_t bytes, int node);

/* Place the complete huge pages (2 MiB) within `bytes` from `out_start` on huge pages: immediately if possible,
 * later otherwise, never if they are disabled. The content is unchanged. */
int hc_use_huge_pages(void *out_start, int64_t bytes);

/* Return every idle huge page to the system. */
int hc_pool_trim(hc_pool *pool);

/* Return a DLPack tensor (DLManagedTensor *, version 0) in a block of this or a later pool: contiguous, on the CPU.
 * Its deleter returns the block, even after the pool was released. NULL if refused. */
void *hc_pool_tensor(hc_pool *pool, hc_context *context, int dtype, int num_dimensions, const int64_t *shape);

/* ----------------------------------------------------------------------------------------------------------- copies */

/* Asynchronous copies between memories, or between memory and a file. Each of two streams has a queue, ordered by
 * priority, then by submission. An urgent copy overtakes another copy after at most 4 MB of it. With threads, each
 * stream has one thread, which sleeps while idle and blocks the signals of the process. Callers that wait or advance
 * also copy with the team of their context; without threads, only they copy. Copies bypass the caches if the
 * instruction set allows it. Any thread may call all functions except destroy. In a child of a fork, and after
 * close: HC_NOT_RUNNING. */
typedef struct hc_copies hc_copies;
typedef enum { HC_LOAD = 0, HC_OFFLOAD = 1 } hc_copy_stream;
#define HC_COPY_STREAMS 2
#define HC_COPY_PENDING (-1)

/* Copy request without overlap. For an end in a mapped file the engine uses the descriptor, so that errors of the
 * system are an errno instead of a page fault or signal of a thread. */
typedef struct {
    int64_t bytes;
    const void *source;
    void *out_target;
    int source_file, target_file;         /* descriptors of the mapped files; -1: memory */
    int64_t source_offset, target_offset; /* start in these files */
} hc_copy_request;

/* with_threads 0: no threads. cpus: CPU of each stream's thread, -1: not pinned; NULL: no thread is pinned. */
int hc_copies_create(const hc_context *context, int with_threads, const int *cpus, hc_copies **out_copies);

/* Queue a copy. Source and target must live until *out_state changes from HC_COPY_PENDING to 0 or the errno of a
 * failure (target undefined; ECANCELED if closed before). Read it by hc_copies_state, which also makes the copied
 * data visible. */
int hc_copies_submit(hc_copies *copies, const hc_copy_request *request, int stream, int priority, int *out_state);
int hc_copies_state(const int *state); /* Return the value of a state, or EINVAL for NULL. */

/* Wait for the copy of a state, which overtakes all other copies. Without a state, wait for all copies. HC_TIMED_OUT
 * after the timeout. */
int hc_copies_wait(hc_copies *copies, hc_context *context, const int *state, int64_t timeout_nanoseconds);

/* Copy up to `bytes` of queued data of both streams with the team, then return. */
int hc_copies_advance(hc_copies *copies, hc_context *context, int64_t bytes, int64_t *out_copied);

/* Copy immediately with the team, before queued copies; *out_error is 0 or an errno. */
int hc_copies_now(hc_copies *copies, hc_context *context, const hc_copy_request *request, int *out_error);

/* Totals since creation of the engine, also available after close. */
typedef struct {
    /* bytes copied per stream; time of all parts of copies */
    int64_t bytes[HC_COPY_STREAMS], busy_nanoseconds[HC_COPY_STREAMS];
    int64_t team_bytes;        /* bytes copied by callers' teams, including hc_copies_now */
    int64_t queued_bytes;      /* bytes queued and not yet started */
    int64_t failed;            /* number of copies */
    int64_t stall_nanoseconds; /* time of callers in wait, advance and now */
} hc_copy_counters;
int hc_copies_counters(hc_copies *copies, hc_copy_counters *out_counters);

/* End the threads after the active parts, and cancel the remaining copies. HC_TIMED_OUT: a part is still active, and
 * no memory may be freed. Repeated calls are allowed. */
int hc_copies_close(hc_copies *copies, int64_t timeout_nanoseconds);

/* Free a closed engine that no thread uses. An open engine is unchanged. */
void hc_copies_destroy(hc_copies *copies);

/* For tests: until close, delay each part of a copy, and fail with `error` (0: never) after `after_bytes` more
 * bytes. */
int hc_copies_set_faults(hc_copies *copies, int error, int64_t after_bytes, int64_t delay_nanoseconds);

/* ------------------------------------------------------------------------------------------------------------- gemm */

/* Matrix with element (i, j) at data[i * row_stride + j * column_stride]. One of the strides is 1, or the matrix has
 * one row or column. */
typedef struct {
    void *data;
    int64_t row_stride, column_stride;
    int dtype; /* hc_dtype */
} hc_matrix;

/* Operations on C = A B before it is stored. Those that are set are applied in the order of the fields. */
typedef struct {
    const void *bias; /* (n) or NULL: C[i, j] += bias[j] */
    int bias_type;
    void *out_before; /* NULL, or an m x n matrix with C's strides and before_type: C after the bias */
    int before_type;
    int gelu; /* 1: C = gelu(C), the tanh form */
    const void *gelu_gradient_at; /* NULL, or an m x n matrix u of C's strides and of C's type: C *= gelu'(u) */
    const void *gate; /* NULL, or row i / rows_per_gate of a matrix with gate_stride between rows: C[i, j] *= gate */
    int gate_type;
    int64_t gate_stride, rows_per_gate;
    const void *residual; /* NULL, or an m x n matrix of C's strides and of residual_type: C[i, j] += residual[i, j] */
    int residual_type;
} hc_epilogue;

/* Dimension of C that is split among the clusters. */
typedef enum {
    HC_CUT_BY_COST = 0, /* lower cost by the model in gemm/blocking.c; clusters on one memory node pack together */
    HC_CUT_ROWS = 1,    /* each cluster packs its rows of A, and all of B */
    HC_CUT_COLUMNS = 2  /* each cluster packs its columns of B, and all of A */
} hc_cluster_cut;

/* Partition and block sizes of a product. The rule in gemm/blocking.c replaces zeros, based on cache sizes and
 * shape. */
typedef struct {
    int64_t mc, nc, kc;          /* block sizes: rows of A, columns of B, depth of both */
    /* parts of m and n within a cluster; their product is at most its number of threads */
    int row_cuts, column_cuts;
    int num_threads;             /* 0: all threads of the context */
    int cluster_cut;             /* hc_cluster_cut, if the threads belong to several clusters */
} hc_blocking;

typedef struct {
    int64_t m, n, k;
    hc_matrix a, b;     /* m x k and k x n; fp32 or bf16 each, or both fp64 */
    hc_matrix out_c;    /* m x n; fp32 or bf16, row_stride any, column_stride 1; fp64 for an fp64 product */
    int compute;        /* HC_F32; HC_BF16: operands rounded to bf16, summed in fp32; HC_F64 */
    int accumulate;     /* 1: out_c += product (fp32 or fp64 c, no epilogue) */
    float *out_row_sum_a; /* NULL, or (m): the sum of each row of A (the bias gradient if A = dY^T); += with accumulate */
    hc_epilogue epilogue;
    hc_blocking blocking;
    int64_t rows_like; /* 0, or the value that replaces m in every decision about the order of a sum. Rows that are split
                        * among processes or calls then have the bits of a product with this number of rows. */
    const void *packed_b; /* NULL, or b packed by hc_gemm_pack; b is then not read if the packed form serves */
} hc_gemm_arguments;

/* C = epilogue(A B). k = 0 gives the epilogue of zeros. Results are equal for any number of threads at the same kc.
 *
 * Error of an element: |c - exact| <= (k + 2) * 2^-24 * sum |a||b| for fp32. With compute bf16 the same bound holds
 * for the rounded operands, plus the rounding of a bf16 c. AMX: fp32 products with m, n, k >= 64 are summed from
 * bf16 parts of the operands (gemm/x86/gemm_f32_amx.c), unless an operand has an inf or NaN, or magnitudes so large
 * or small that sums or parts leave fp32's range (gemm/gemm_range.c). Their error is at most (6 k + 8) * 2^-24 * sum
 * |a||b| + 2^-123 * k * (1 + max|a| + max|b|), because parts and sums below 2^-126 count as zero. Measured on normal
 * numbers it is below the error of MKL's fp32: root mean square 0.18 against 0.47, largest 1.8 against 4.4, in units
 * of 2^-24 * sum |a||b| at k = 384. */
int hc_gemm(hc_context *context, const hc_gemm_arguments *arguments);

/* Return the size of B packed for this product, or 0 if hc_gemm packs nothing (few rows, little depth, or an empty
 * B). The packed form serves products with the same b, k and compute, any m and epilogue, and any context of this
 * process with the same caches, if hc_gemm selects the same kernel. Other products pack separately. Never use it in
 * another process. */
int hc_gemm_pack_bytes(hc_context *context, const hc_gemm_arguments *arguments, int64_t *out_bytes);

/* Pack B for `packed_b` of products. Their results do not change. b must stay unchanged, because products of other
 * kernels, and products with operands outside the range of bf16 parts, read it. out_packed is aligned to 64 bytes. */
int hc_gemm_pack(hc_context *context, const hc_gemm_arguments *arguments, void *out_packed);

/* Return the part of C that `thread` of the context computes in this product: first row, end row, first column, end
 * column; all zero without a part. Nothing is computed, and no data is read. A product with operands outside the
 * range of bf16 parts may be cut differently. */
int hc_gemm_cut(hc_context *context, const hc_gemm_arguments *arguments, int thread, int64_t *out_part);

/* ------------------------------------------------------------------------------------------------------------ adaLN */

/* Compute out[n, t, :] = (x - mean) * rstd * (1 + scale[n, :]) + shift[n, :], with mean and variance over D, and rstd =
 * 1 / sqrt(variance + eps). shift and scale: rows of D elements with distance condition_stride. out_mean, out_rstd: (N,
 * T). With out_mean NULL the norm is RMSNorm (Zhang & Sennrich 2019, equation 4): out = x * rstd * (1 + scale) + shift,
 * rstd = 1 / sqrt(mean of x^2 + eps). rstd is 0 if the sum of x^2 overflows fp32, as in PyTorch. */
int hc_adaln_forward(hc_context *context, int64_t n, int64_t t, int64_t d, float eps, const void *x, int x_type,
                     const void *shift, const void *scale, int condition_type, int64_t condition_stride, void *out,
                     int out_type, float *out_mean, float *out_rstd);

/* Compute dx (N, T, D), dshift and dscale (N, D), contiguous. mean NULL: RMSNorm. dstream: NULL, or (N, T, D), the
 * gradient of x outside the norm, which is added to dx. Sums over tokens have a fixed order: within blocks of tokens of
 * a fixed length, then over the blocks. */
int hc_adaln_backward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *dout, int dout_type, const void *x,
                      int x_type, const void *scale, int condition_type, int64_t condition_stride, const float *mean,
                      const float *rstd, const void *dstream, int dstream_type, void *out_dx, int dx_type, void *out_dshift,
                      void *out_dscale, int dcondition_type);

/* ----------------------------------------------------------------------------------------------- norm with weights */

/* LayerNorm (Ba et al. 2016), or RMSNorm (Zhang & Sennrich 2019) with out_mean and mean NULL, of rows of D numbers
 * with weights: out = (x - mean) * rstd * weight + bias; and the gradients. weight and bias (D) have one type. */
int hc_norm_forward(hc_context *context, int64_t rows, int64_t d, float eps, const void *x, int x_type, const void *bias,
                    const void *weight, int weight_type, void *out, int out_type, float *out_mean, float *out_rstd);
int hc_norm_backward(hc_context *context, int64_t rows, int64_t d, const void *dout, int dout_type, const void *x, int x_type,
                     const void *weight, int weight_type, const float *mean, const float *rstd, void *out_dx, int dx_type,
                     void *out_dbias, void *out_dweight, int dweight_type);

/* -------------------------------------------------------------------------------------------------- gate + residual */

/* Compute out = x + gate[n, :] * y. x, y, out (N, T, D), gate rows with distance gate_stride. */
int hc_gate_residual_forward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *x, int x_type,
                             const void *gate, int gate_type, int64_t gate_stride, const void *y, int y_type, void *out,
                             int out_type);

/* Compute dy = gate * dout, and dgate[n, :] = sum over t of dout * y in a fixed order. dgate (N, D) is contiguous. dx
 * equals dout. */
int hc_gate_residual_backward(hc_context *context, int64_t n, int64_t t, int64_t d, const void *dout, int dout_type,
                              const void *gate, int gate_type, int64_t gate_stride, const void *y, int y_type, void *out_dy,
                              int dy_type, void *out_dgate, int dgate_type);

/* -------------------------------------------------------------------------------------------------------- attention */

/* Compute out = softmax(q k^T / sqrt(K)) v for each head. qkv (N, T, 3, H, K) contiguous, out (N, T, H, K). out_lse (N,
 * H, T) is the logarithm of each row's sum of exponentials. compute: HC_F32, or HC_BF16 for products of operands
 * rounded to bf16. No T x T array is stored.
 *
 * AMX: fp32 products with T >= 64 and K >= 40 are summed from bf16 parts of the operands. This applies to heads if q,
 * k, v and dout have no inf or NaN and largest magnitudes from 2^-45 to 2^30 (attention/attention_range.c). Of the
 * parts x1 + x2 + x3 of a number the products x2 y3, x3 y2 and x3 y3 are omitted, at most 2^-23 |x||y|. As for hc_gemm,
 * parts and sums below 2^-126 count as zero. The root mean square of the errors of out, dq, dk and dv is 0.45 to 0.85
 * times the error of PyTorch's fp32 attention, as measured in the tests. */
int hc_attention_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *qkv, int qkv_type,
                         void *out, int out_type, float *out_lse, int compute);

/* Heads (N, H, T, K) of fp32 or bf16 at any strides; the K elements of a row are contiguous. */
typedef struct {
    void *data;
    int type;
    int64_t image_stride, head_stride, token_stride;
} hc_heads;

/* hc_attention_forward for separate heads at any strides, with `queries` and `keys` tokens and any scale > 0. Several heads
 * of queries may share a head of keys and values: H is a multiple of key_heads, and head h uses head h key_heads /
 * H. causal: query i attends to keys 0 to i. */
typedef struct {
    int64_t n, queries, keys, h, key_heads, k;
    float scale;
    int causal, compute;
    hc_heads query, key, value; /* H, key_heads, key_heads */
    hc_heads out, dout;         /* H, with the same token_stride; forward writes out */
    /* H each; the caller sums over the heads of queries that share a head of keys */
    hc_heads out_dquery, out_dkey, out_dvalue;
    float *out_lse;             /* (N, H, queries); forward writes it, backward reads it */
    /* forward: 0, or the number of queries of the complete sequence, for bitwise equal results */
    int64_t queries_like;
} hc_attention_arguments;

int hc_attention_heads_forward(hc_context *context, const hc_attention_arguments *arguments);
int hc_attention_heads_backward(hc_context *context, const hc_attention_arguments *arguments);

/* dqkv (N, T, 3, H, K), recomputed from qkv and lse. */
int hc_attention_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, const void *dout, int dout_type,
                          const void *qkv, int qkv_type, const void *out, int out_type, const float *lse, void *out_dqkv,
                          int dqkv_type, int compute);

/* ----------------------------------------------------------------------------------------------------- rotate heads */

/* Norm and rotation of q and k before attention. Each head of q and k is a row x of K numbers. First, unless the
 * weights are NULL, x * rstd * weight with rstd = 1 / sqrt(mean of x^2 + eps) (RMSNorm). Then, unless cos and sin
 * are NULL, for even K, its pairs (2i, 2i + 1) are rotated by the angle of (token, i), (a, b) -> (a cos - b sin, a
 * sin + b cos) (Su et al. 2021, equation 34). v is copied. qkv and out (N, T, 3, H, K) have one type and separate
 * memory; cos and sin (T, K / 2), query_weight and key_weight (K). */
int hc_rotate_heads_forward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, float eps, const float *cos,
                            const float *sin, const float *query_weight, const float *key_weight, const void *qkv, void *out,
                            int type);

/* Gradients of qkv and of the weights. Without weights qkv is not read and may be NULL, like out_dquery_weight and
 * out_dkey_weight. Sums over heads and tokens have a fixed order: within blocks of tokens of a fixed length, token
 * by token and head by head, then over the blocks. */
int hc_rotate_heads_backward(hc_context *context, int64_t n, int64_t t, int64_t h, int64_t k, float eps, const float *cos,
                             const float *sin, const float *query_weight, const float *key_weight, const void *dout,
                             const void *qkv, void *out_dqkv, int type, float *out_dquery_weight, float *out_dkey_weight);

/* ------------------------------------------------------------------------------------------------------ elementwise */

/* Errors against float64 over all finite fp32: see the table in activation/activation.h. */
typedef enum {
    HC_EXP = 0,
    HC_TANH = 1,
    HC_GELU = 2, /* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    HC_SILU = 3, /* x / (1 + exp(-x)) */
    HC_GELU_ERF = 4 /* 0.5 x (1 + erf(x / sqrt(2))) */
} hc_function;

/* Compute out[i] = f(x[i]). */
int hc_map(hc_context *context, int function, int64_t count, const void *x, int x_type, void *out, int out_type);

/* Compute out_dx[i] = dout[i] * f'(x[i]) for HC_GELU, HC_SILU and HC_GELU_ERF. For HC_EXP and HC_TANH `x` contains the
 * results y = f(x), and the factor is y, or 1 - y^2. */
int hc_map_backward(hc_context *context, int function, int64_t count, const void *dout, int dout_type, const void *x,
                    int x_type, void *out_dx, int dx_type);

/* SwiGLU (Shazeer 2020, equation 6) of rows of 2 * columns elements, to rows of `columns`: out[i, j] = silu(x[i, j]) *
 * x[i, columns + j]; and the gradient of x. */
int hc_swiglu_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type);
int hc_swiglu_backward(hc_context *context, int64_t rows, int64_t columns, const void *dout, int dout_type, const void *x,
                       int x_type, void *out_dx, int dx_type);

/* Compute out[i] = alpha * x[i] + beta * y[i]. y may be NULL with beta 0. */
int hc_scale_add(hc_context *context, int64_t count, float alpha, const void *x, int x_type, float beta, const void *y,
                 int y_type, void *out, int out_type);

/* Softmax over each of `rows` rows of `columns` contiguous elements, and its gradient out_dx = y * (dy - sum(dy * y)). */
int hc_softmax_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, void *out, int out_type);
int hc_softmax_backward(hc_context *context, int64_t rows, int64_t columns, const void *dout, int dout_type, const void *y,
                        int y_type, void *out_dx, int dx_type);

/* Cut an image (N, C, R * p, S * p) into patches (N, R * S, elements of a patch), and back. order 0: (c, row,
 * column), for the patch embedding; order 1: (row, column, c), for the final layer. */
int hc_patchify(hc_context *context, int64_t n, int64_t c, int64_t r, int64_t s, int64_t p, int order, const void *image,
                int image_type, void *out_patches, int out_type);
int hc_unpatchify(hc_context *context, int64_t n, int64_t c, int64_t r, int64_t s, int64_t p, int order, const void *patches,
                  int patches_type, void *out_image, int out_type);

/* Compute the mean over each of `rows` rows of (x - y)^2 in float64; and the gradient of x: out_dx = 2 (x - y)
 * dout[row] / columns. */
int hc_mse_forward(hc_context *context, int64_t rows, int64_t columns, const void *x, int x_type, const void *y, int y_type,
                   float *out);
int hc_mse_backward(hc_context *context, int64_t rows, int64_t columns, const float *dout, const void *x, int x_type,
                    const void *y, int y_type, void *out_dx, int dx_type);

/* -------------------------------------------------------------------------------------------------------- optimizer */

/* Compute the sum of the squares of all elements of `tensors` arrays of fp32, in float64 and a fixed order. */
int hc_sum_of_squares(hc_context *context, int64_t tensors, const int64_t *counts, const float *const *x, double *out_sum);

typedef struct {
    double lr, beta1, beta2, eps, weight_decay; /* fp64, because 1 - beta2 of an fp32 beta2 is wrong in the fifth digit */
    double gradient_scale; /* factor of each gradient: clip factor times loss scale */
    int64_t step;          /* 1 for the first update: the bias corrections are 1 - beta^step */
    double ema_decay;      /* ema = ema_decay * ema + (1 - ema_decay) * weight, after the update */
} hc_adamw_settings;

/* One pass over `tensors` arrays: AdamW with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), then
 * the moving average and the bf16 copy of the new weights. out_ema, out_shadow, or single entries of them, may be
 * NULL. */
int hc_adamw(hc_context *context, const hc_adamw_settings *settings, int64_t tensors, const int64_t *counts,
             float *const *out_weight, const float *const *gradient, float *const *out_first, float *const *out_second,
             float *const *out_ema, uint16_t *const *out_shadow);

/* --------------------------------------------------------------------------------------------------------- sequence */

/* Operators of a sequence. Each has as many words as its function has arguments after the context, in their order:
 * integers and addresses unchanged, a float as the bits of its value as double. hc_gemm and
 * hc_attention_heads_forward have the address of their arguments; hc_exchange_barrier has all of its arguments. */
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
} hc_step;

/* Run operators in order: for each its hc_step, then its words. Stop at the first failure and return its status;
 * results of earlier operators stay. *out_at is the index in `words` of the last started operator. */
int hc_sequence(hc_context *context, const int64_t *words, int64_t num_words, int64_t *out_at);

/* --------------------------------------------------------------------------------------------------------- exchange */

/* Reductions and gathers over the processes of one node, through a segment of memory that all processes have mapped
 * (filled with zeros before the first attach). Chunks are numbered 0, 1, 2, ... over the life of the segment,
 * equally in all processes. A chunk is a sum (put, combine, publish, get), a sum of which every process keeps only
 * its own piece (put, combine without out_piece), or a distribution (offer, get). The first step may run ahead by
 * the number of slots. Values are combined in fp32, in the order of the ranks. Each value is rounded to `type`
 * before, and the result once after. HC_PROCESS_GONE and HC_TIMED_OUT return the process in *out_rank. */
typedef struct hc_exchange hc_exchange;
typedef enum { HC_SUM = 0, HC_PRODUCT = 1, HC_LARGEST = 2, HC_SMALLEST = 3 } hc_combination;
#define HC_MAX_PROCESSES 256

int hc_exchange_bytes(int ranks, int slots, int64_t slot_bytes, int64_t *out_bytes);
int hc_exchange_attach(void *segment, const hc_context *context, int rank, int ranks, int slots, int64_t slot_bytes,
                       hc_exchange **out_exchange);
void hc_exchange_detach(hc_exchange *exchange);

/* Piece r of a chunk, for process r: elements offsets[r] .. + length of an array; elements from `limit` on do not
 * exist. All pieces together, each in complete cache lines of 64 bytes, fit a slot. */
typedef struct {
    const int64_t *offsets;
    int64_t length, limit;
} hc_pieces;

/* Copy the pieces of the other processes from x, as `type`, into this process's slot. Waits until all processes have
 * read the slot. */
int hc_exchange_put(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                    int64_t timeout_nanoseconds, int *out_rank);

/* Copy this process's piece, which is all of x here, into its slot, and publish it. */
int hc_exchange_offer(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                      int64_t timeout_nanoseconds, int *out_rank);

/* Combine this process's piece of the chunk over all processes, with its own values from x. The result, times scale,
 * goes to `out`, which may be the piece's place in x, and to this process's slot; *out_piece is its address there.
 * Before hc_exchange_publish the result may be changed, for instance by processes of other nodes. Either may be
 * NULL; without out_piece the chunk ends here. out_type is x_type, or without out_piece also `type`. */
int hc_exchange_combine(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, const void *x, int x_type, int type,
                        int op, float scale, void *out, int out_type, void **out_piece, int64_t timeout_nanoseconds,
                        int *out_rank);
int hc_exchange_publish(hc_exchange *exchange, uint32_t number);

/* Copy the pieces of the other processes, and this process's piece if `with_own`, to their places in `out`. */
int hc_exchange_get(hc_exchange *exchange, uint32_t number, const hc_pieces *pieces, int type, int with_own, void *out,
                    int out_type, int64_t timeout_nanoseconds, int *out_rank);

/* Complete operation in one call, on arrays of x_type that pass the segment as `type`. `count` is the length of x
 * for a sum (x and out are the same), else of the part of one process. A reduce-scatter combines the parts of x and
 * writes this process's part to `out`. An all-gather collects x of every process in `out`; x may already be this
 * process's part of `out` (if the types differ, it is rounded like the others). The operation uses one chunk number,
 * from `first` on, for each chunk of `chunk` elements (of x, or of a part). done[HC_WHOLE_STEPS], initially zeros,
 * counts the finished chunks of each step. */
typedef enum { HC_ALL_REDUCE = 0, HC_REDUCE_SCATTER = 1, HC_ALL_GATHER = 2 } hc_collective_kind;
#define HC_WHOLE_STEPS 3
typedef struct {
    const void *x;
    void *out;
    int64_t *done;
    int64_t count, chunk;
    uint32_t first;
    int kind, x_type, type, op;
    float scale;
} hc_collective;

/* Make at most `rounds` rounds over the steps, waiting up to the timeout if no step can proceed. HC_TIMED_OUT: call
 * it again. */
int hc_exchange_collective(hc_exchange *exchange, const hc_collective *whole, int64_t rounds, int64_t timeout_nanoseconds, int *out_rank);

/* Barrier: return when all processes have called it as often as this process. Data that they wrote before is then
 * readable. For a segment without other operations (no slot is used). It polls for half a millisecond, then sleeps.
 * HC_PROCESS_STOPPED: a signal has stopped a process for ten seconds. */
int hc_exchange_barrier(hc_exchange *exchange, int64_t timeout_nanoseconds, int *out_rank);

/* Compute out[i] = op over r of x[r][i], r = 0, 1, ... in this order, in fp32. All arrays have `type`. out may be one
 * of the x. */
int hc_exchange_fold(hc_exchange *exchange, int num_arrays, int64_t count, const void *const *x, int type, int op, void *out);

/* --------------------------------------------------------------------------------------------------------- ceilings */

/* Run `rounds` rounds of independent multiply-adds in registers on every thread of the context, with the widest unit
 * that serves products of `compute`. *out_flop is the number of floating-point operations. The caller measures the
 * time. */
int hc_multiply_add_ceiling(hc_context *context, int compute, int64_t rounds, double *out_flop);

/* Run `count` barriers of all threads of the context, back to back. */
int hc_barrier_ceiling(hc_context *context, int64_t count);

/* Copy `bytes` with every thread of the context. */
int hc_copy(hc_context *context, int64_t bytes, const void *source, void *out_target);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
