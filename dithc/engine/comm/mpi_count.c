/* Counter of a process's MPI calls and sent bytes: a profiling layer (MPI standard, chapter "Tool support").
 *
 * Preloaded (LD_PRELOAD), it precedes the MPI library: each function below counts and calls its PMPI_ twin. The two numbers,
 * uint64_t calls and uint64_t bytes, are stored in the file "<DITHC_MPI_TRAFFIC_PREFIX>.<process>", which other processes can read.
 * The package's library does not contain this file: build it with the mpicc of the MPI in use (see traffic.py).
 * Functions that start, end or query MPI are not counted; functions that wait and test are.
 */
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t nowhere[2];
static uint64_t *counters = nowhere;

static void open_counters(void)
{
    const char *prefix = getenv("DITHC_MPI_TRAFFIC_PREFIX");
    char path[4096];
    if (prefix == NULL || snprintf(path, sizeof path, "%s.%ld", prefix, (long)getpid()) >= (int)sizeof path)
        return;
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0)
        return;
    if (ftruncate(file, sizeof nowhere) == 0) {
        void *mapped = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED)
            counters = mapped;
    }
    close(file);
}

/* A forked rank (its parent is the watchdog) counts in a separate file. */
__attribute__((constructor)) static void start(void)
{
    open_counters();
    pthread_atfork(NULL, NULL, open_counters);
}

static void add(uint64_t bytes)
{
    __atomic_fetch_add(&counters[0], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counters[1], bytes, __ATOMIC_RELAXED);
}

static uint64_t bytes_of(int64_t count, MPI_Datatype type)
{
    int size = 0;
    if (count <= 0 || type == MPI_DATATYPE_NULL || PMPI_Type_size(type, &size) != MPI_SUCCESS)
        return 0;
    return (uint64_t)count * (uint64_t)size;
}

static int size_of(MPI_Comm comm)
{
    int size = 0;
    return PMPI_Comm_size(comm, &size) == MPI_SUCCESS ? size : 0;
}

/* In place, a rank's contribution is at the position of the result. */
#define GIVEN(send, count, type, other_count, other_type) \
    ((send) == MPI_IN_PLACE ? bytes_of(other_count, other_type) : bytes_of(count, type))

#define COUNTED(name, bytes, parameters, arguments) \
    int MPI_##name parameters                       \
    {                                               \
        add(bytes);                                 \
        return PMPI_##name arguments;               \
    }

/* Each line expands twice: with int, and with MPI_Count (MPI 4's `_c` functions, which mpi4py prefers). */
#if MPI_VERSION >= 4
#define BOTH(name, bytes, parameters, arguments) \
    COUNTED(name, bytes, parameters(int), arguments) COUNTED(name##_c, bytes, parameters(MPI_Count), arguments)
#else
#define BOTH(name, bytes, parameters, arguments) COUNTED(name, bytes, parameters(int), arguments)
#endif

#define SEND(N) (const void *b, N n, MPI_Datatype t, int to, int tag, MPI_Comm c)
#define ISEND(N) (const void *b, N n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r)
BOTH(Send, bytes_of(n, t), SEND, (b, n, t, to, tag, c))
BOTH(Ssend, bytes_of(n, t), SEND, (b, n, t, to, tag, c))
BOTH(Bsend, bytes_of(n, t), SEND, (b, n, t, to, tag, c))
BOTH(Rsend, bytes_of(n, t), SEND, (b, n, t, to, tag, c))
BOTH(Isend, bytes_of(n, t), ISEND, (b, n, t, to, tag, c, r))
BOTH(Issend, bytes_of(n, t), ISEND, (b, n, t, to, tag, c, r))

#define RECV(N) (void *b, N n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s)
#define IRECV(N) (void *b, N n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r)
BOTH(Recv, 0, RECV, (b, n, t, from, tag, c, s))
BOTH(Irecv, 0, IRECV, (b, n, t, from, tag, c, r))

#define SENDRECV(N) \
    (const void *b, N n, MPI_Datatype t, int to, int tag, void *rb, N rn, MPI_Datatype rt, int from, int rtag, MPI_Comm c, \
     MPI_Status *s)
BOTH(Sendrecv, bytes_of(n, t), SENDRECV, (b, n, t, to, tag, rb, rn, rt, from, rtag, c, s))

static uint64_t from_root(int64_t count, MPI_Datatype type, int root, MPI_Comm comm)
{
    int rank = -1;
    return PMPI_Comm_rank(comm, &rank) == MPI_SUCCESS && rank == root ? bytes_of(count, type) : 0;
}

#define BCAST(N) (void *b, N n, MPI_Datatype t, int root, MPI_Comm c)
#define IBCAST(N) (void *b, N n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r)
BOTH(Bcast, from_root(n, t, root, c), BCAST, (b, n, t, root, c))
BOTH(Ibcast, from_root(n, t, root, c), IBCAST, (b, n, t, root, c, r))

#define REDUCE(N) (const void *b, void *rb, N n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c)
#define IREDUCE(N) (const void *b, void *rb, N n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c, MPI_Request *r)
#define ALLREDUCE(N) (const void *b, void *rb, N n, MPI_Datatype t, MPI_Op o, MPI_Comm c)
#define IALLREDUCE(N) (const void *b, void *rb, N n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *r)
BOTH(Reduce, bytes_of(n, t), REDUCE, (b, rb, n, t, o, root, c))
BOTH(Ireduce, bytes_of(n, t), IREDUCE, (b, rb, n, t, o, root, c, r))
BOTH(Allreduce, bytes_of(n, t), ALLREDUCE, (b, rb, n, t, o, c))
BOTH(Iallreduce, bytes_of(n, t), IALLREDUCE, (b, rb, n, t, o, c, r))
BOTH(Reduce_scatter_block, bytes_of((int64_t)n * size_of(c), t), ALLREDUCE, (b, rb, n, t, o, c))
BOTH(Ireduce_scatter_block, bytes_of((int64_t)n * size_of(c), t), IALLREDUCE, (b, rb, n, t, o, c, r))

#define GATHER(N) (const void *b, N n, MPI_Datatype t, void *rb, N rn, MPI_Datatype rt, int root, MPI_Comm c)
#define ALLGATHER(N) (const void *b, N n, MPI_Datatype t, void *rb, N rn, MPI_Datatype rt, MPI_Comm c)
#define IALLGATHER(N) (const void *b, N n, MPI_Datatype t, void *rb, N rn, MPI_Datatype rt, MPI_Comm c, MPI_Request *r)
BOTH(Gather, GIVEN(b, n, t, rn, rt), GATHER, (b, n, t, rb, rn, rt, root, c))
BOTH(Scatter, from_root((int64_t)n * size_of(c), t, root, c), GATHER, (b, n, t, rb, rn, rt, root, c))
BOTH(Allgather, GIVEN(b, n, t, rn, rt), ALLGATHER, (b, n, t, rb, rn, rt, c))
BOTH(Iallgather, GIVEN(b, n, t, rn, rt), IALLGATHER, (b, n, t, rb, rn, rt, c, r))
BOTH(Alltoall, GIVEN(b, (int64_t)n * size_of(c), t, (int64_t)rn * size_of(c), rt), ALLGATHER, (b, n, t, rb, rn, rt, c))

COUNTED(Allgatherv, bytes_of(n, t),
        (const void *b, int n, MPI_Datatype t, void *rb, const int *rn, const int *at, MPI_Datatype rt, MPI_Comm c),
        (b, n, t, rb, rn, at, rt, c))
COUNTED(Gatherv, bytes_of(n, t),
        (const void *b, int n, MPI_Datatype t, void *rb, const int *rn, const int *at, MPI_Datatype rt, int root, MPI_Comm c),
        (b, n, t, rb, rn, at, rt, root, c))
#if MPI_VERSION >= 4
COUNTED(Allgatherv_c, bytes_of(n, t),
        (const void *b, MPI_Count n, MPI_Datatype t, void *rb, const MPI_Count *rn, const MPI_Aint *at, MPI_Datatype rt,
         MPI_Comm c),
        (b, n, t, rb, rn, at, rt, c))
COUNTED(Gatherv_c, bytes_of(n, t),
        (const void *b, MPI_Count n, MPI_Datatype t, void *rb, const MPI_Count *rn, const MPI_Aint *at, MPI_Datatype rt,
         int root, MPI_Comm c),
        (b, n, t, rb, rn, at, rt, root, c))
#endif

#define PUT(N) (const void *b, N n, MPI_Datatype t, int to, MPI_Aint at, N rn, MPI_Datatype rt, MPI_Win w)
#define GET(N) (void *b, N n, MPI_Datatype t, int to, MPI_Aint at, N rn, MPI_Datatype rt, MPI_Win w)
#define ACCUMULATE(N) (const void *b, N n, MPI_Datatype t, int to, MPI_Aint at, N rn, MPI_Datatype rt, MPI_Op o, MPI_Win w)
BOTH(Put, bytes_of(n, t), PUT, (b, n, t, to, at, rn, rt, w))
BOTH(Get, 0, GET, (b, n, t, to, at, rn, rt, w))
BOTH(Accumulate, bytes_of(n, t), ACCUMULATE, (b, n, t, to, at, rn, rt, o, w))

COUNTED(Barrier, 0, (MPI_Comm c), (c))
COUNTED(Ibarrier, 0, (MPI_Comm c, MPI_Request *r), (c, r))
COUNTED(Wait, 0, (MPI_Request * r, MPI_Status *s), (r, s))
COUNTED(Waitall, 0, (int n, MPI_Request r[], MPI_Status *s), (n, r, s))
COUNTED(Waitany, 0, (int n, MPI_Request r[], int *i, MPI_Status *s), (n, r, i, s))
COUNTED(Test, 0, (MPI_Request * r, int *done, MPI_Status *s), (r, done, s))
COUNTED(Testall, 0, (int n, MPI_Request r[], int *done, MPI_Status *s), (n, r, done, s))
COUNTED(Iprobe, 0, (int from, int tag, MPI_Comm c, int *found, MPI_Status *s), (from, tag, c, found, s))
