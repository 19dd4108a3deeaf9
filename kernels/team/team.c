/* Thread team, grouped by cluster. Variables with many writers or readers are separate lines per cluster, joined by the
 * lines of the die. Threads that wait long sleep in the system. */
#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hcops.h"
#include "team/threads.h"
#include "team/waiting.h"

/* A64FX has the longest cache lines. */
#if defined(__aarch64__)
#define CACHE_LINE 256
#else
#define CACHE_LINE 64
#endif

/* Counted in the child, so that hc_forks needs no system call. An operator calls it several times. */
static atomic_uint forks;

static void count_fork(void) {
    atomic_fetch_add(&forks, 1);
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, count_fork);
}

unsigned hc_forks(void) {
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

/* Start word: the low half is the number of a run, the high half its number of threads. A member outside a run may miss
 * the run, but cannot confuse it with the next run. The system compares only the low half. */
#define START_WORD(run, threads) ((uint64_t)(uint32_t)(run) | (uint64_t)(threads) << 32)
#define THREADS_OF(word) ((int)((word) >> 32))

typedef struct {
    hc_team *team;
    int thread, cluster;
    pthread_t handle;
} member;

/* Barrier of the threads of a cluster, or of the clusters of a die. All threads write to the first line. The last
 * thread to arrive writes to the second line, which the other threads poll. */
typedef struct {
    _Alignas(CACHE_LINE) atomic_uint arrived; /* threads at the barrier */
    wait_word working;                        /* threads that have not finished the run */
    _Alignas(CACHE_LINE) wait_word phase;     /* phase of the barrier */
    _Atomic uint64_t start;                   /* START_WORD of the last run; only for a cluster */
    atomic_uint parked;                       /* threads that sleep until the next run */
    int first, size;                          /* threads first ... first + size - 1 of the team */
    unsigned in_run;                          /* threads of the cluster in this run; for the die, clusters */
} sync_point;

struct hc_team {
    sync_point die;
    _Alignas(CACHE_LINE) hc_job *job;
    void *arguments;
    int num_running; /* threads of this run, including the caller */
    int num_threads, num_clusters;
    int64_t spin_nanoseconds;
    uint32_t run;
    atomic_int stop;
    unsigned owner; /* hc_forks of the process that owns the threads; a forked child has none */
    int *cpus;   /* CPU per thread; NULL: not pinned */
    hc_openmp openmp; /* runtime that owns the threads; without functions: the members */
    pthread_mutex_t one_run;
    member *members;
    sync_point clusters[];
};

/* State of this thread, which the barrier does not receive as argument: the team and cluster of its run (a caller is in
 * the first cluster). alone: 1 in a nested run, which has no free threads, and in a forked child. */
static _Thread_local struct {
    const hc_team *team;
    int cluster, alone;
} here;

/* Return the half of a start word that the system compares. */
static void *run_half(_Atomic uint64_t *word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (char *)word + sizeof(uint32_t);
#else
    return word;
#endif
}

/* Wait for the next start word after `seen` of a member's cluster, as in wait_while. */
static uint64_t wait_for_start(sync_point *cluster, uint64_t seen, int64_t spin_nanoseconds) {
    int64_t deadline = 0;
    for (;;) {
        for (int poll = 0; poll < LOOKS_PER_CLOCK; poll++) {
            const uint64_t word = atomic_load_explicit(&cluster->start, memory_order_acquire);
            if (word != seen) {
                return word;
            }
            relax();
        }
        if (is_late(&deadline, spin_nanoseconds)) {
            atomic_fetch_add(&cluster->parked, 1);
            wait_in_system(run_half(&cluster->start), (uint32_t)seen);
            atomic_fetch_sub(&cluster->parked, 1);
        }
    }
}

static void start_cluster(sync_point *cluster, uint64_t word) {
    atomic_store(&cluster->start, word);
    if (atomic_load(&cluster->parked) > 0) {
        wake_in_system(run_half(&cluster->start));
    }
}

/* Count a thread of the run as finished. The last thread of each cluster notifies the die. Neither count includes the
 * caller. */
static void finish(hc_team *team, sync_point *cluster) {
    if (atomic_fetch_sub(&cluster->working.value, 1) == 1 && atomic_fetch_sub(&team->die.working.value, 1) == 1) {
        wake_all(&team->die.working);
    }
}

static int uses_openmp(const hc_team *team) {
    return team->openmp.parallel != NULL;
}

static void *member_main(void *argument) {
    const member *self = argument;
    hc_team *team = self->team;
    sync_point *cluster = &team->clusters[self->cluster];
    here.team = team;
    here.cluster = self->cluster;
    for (uint64_t seen = 0;;) {
        seen = wait_for_start(cluster, seen, team->spin_nanoseconds);
        if (atomic_load(&team->stop)) {
            return NULL;
        }
        if (self->thread < THREADS_OF(seen)) {
            team->job(team->arguments, self->thread, THREADS_OF(seen));
            finish(team, cluster);
        }
    }
}

static int start_member(hc_team *team, int thread, const int *cpus) {
    member *self = &team->members[thread];
    *self = (member){.team = team, .thread = thread};
    while (thread >= team->clusters[self->cluster].first + team->clusters[self->cluster].size) {
        self->cluster++;
    }
    return start_thread(&self->handle, cpus == NULL ? NULL : &cpus[thread], member_main, self);
}

static int start_members(hc_team *team, const int *cpus, int *out_started) {
    sigset_t before;
    int status = HC_OK;
    block_signals(&before);
    for (*out_started = 1; *out_started < team->num_threads && status == HC_OK; *out_started += status == HC_OK) {
        status = start_member(team, *out_started, cpus);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void end_members(hc_team *team, int count) {
    atomic_store(&team->stop, 1);
    for (int cluster = 0; cluster < team->num_clusters; cluster++) {
        start_cluster(&team->clusters[cluster], START_WORD(team->run + 1, 0));
    }
    for (int thread = 1; thread < count; thread++) {
        pthread_join(team->members[thread].handle, NULL);
    }
}

static void free_team(hc_team *team) {
    pthread_mutex_destroy(&team->one_run);
    free(team->cpus);
    free(team->members);
    free(team);
}

int hc_team_create(int num_threads, int num_clusters, const int *cpus, int64_t spin_nanoseconds, const hc_openmp *openmp,
                   hc_team **out_team) {
    const size_t bytes = sizeof(hc_team) + (size_t)num_clusters * sizeof(sync_point);
    hc_team *team = aligned_alloc(CACHE_LINE, bytes);
    if (team == NULL) {
        return HC_OUT_OF_MEMORY;
    }
    memset(team, 0, bytes);
    team->num_threads = num_threads;
    team->num_clusters = num_clusters;
    team->spin_nanoseconds = spin_nanoseconds;
    team->owner = hc_forks();
    team->openmp = openmp == NULL ? (hc_openmp){0} : *openmp;
    team->members = calloc((size_t)num_threads, sizeof(member));
    pthread_mutex_init(&team->one_run, NULL);
    if (cpus != NULL && (team->cpus = malloc((size_t)num_threads * sizeof(int))) != NULL) {
        memcpy(team->cpus, cpus, (size_t)num_threads * sizeof(int));
    }
    if (team->members == NULL) {
        free_team(team);
        return HC_OUT_OF_MEMORY;
    }
    for (int cluster = 0; cluster < num_clusters; cluster++) {
        int64_t start, stop;
        hc_part(num_threads, 1, cluster, num_clusters, &start, &stop);
        team->clusters[cluster].first = (int)start;
        team->clusters[cluster].size = (int)(stop - start);
    }
    int started;
    if (!uses_openmp(team) && start_members(team, cpus, &started) != HC_OK) {
        end_members(team, started);
        free_team(team);
        return HC_NO_THREAD;
    }
    *out_team = team;
    return HC_OK;
}

void hc_team_destroy(hc_team *team) {
    if (!uses_openmp(team) && team->owner == hc_forks()) {
        end_members(team, team->num_threads);
    }
    free_team(team);
}

int hc_team_size(const hc_team *team) {
    return team->num_threads;
}

/* Move the caller to its CPU, the first, without pinning it. On another CPU, it may share a core with a member or with
 * a copy thread, far from its memory, until the scheduler reacts after milliseconds. Its affinity mask is restored
 * afterwards, and the scheduler leaves it there. */
static void move_to_first_cpu(const hc_team *team) {
#ifdef __linux__
    cpu_mask mask;
    if (team->cpus == NULL || sched_getcpu() == team->cpus[0] || sched_getaffinity(0, sizeof(mask), mask.sets) != 0 ||
        !CPU_ISSET_S((size_t)team->cpus[0], sizeof(mask), mask.sets)) {
        return;
    }
    const cpu_mask first = mask_of_one(team->cpus[0]);
    if (sched_setaffinity(0, sizeof(first), first.sets) == 0) {
        sched_setaffinity(0, sizeof(mask), mask.sets);
    }
#else
    (void)team;
#endif
}

/* Set the number of participating threads of each cluster, and return their sum. Clusters without threads are
 * unchanged. */
static int count_participants(hc_team *team) {
    int clusters = 0;
    for (; clusters < team->num_clusters && team->clusters[clusters].first < team->num_running; clusters++) {
        sync_point *cluster = &team->clusters[clusters];
        const int left = team->num_running - cluster->first;
        cluster->in_run = (unsigned)(left < cluster->size ? left : cluster->size);
    }
    team->die.in_run = (unsigned)clusters;
    return clusters;
}

/* Start the members on the team's job, take part as thread 0, and wait for the members. */
static void run_together(hc_team *team) {
    move_to_first_cpu(team);
    team->run++;
    const int clusters = count_participants(team);
    int with_members = 0;
    for (int cluster = 0; cluster < clusters; cluster++) {
        const unsigned members = team->clusters[cluster].in_run - (cluster == 0);
        atomic_store_explicit(&team->clusters[cluster].working.value, members, memory_order_relaxed);
        with_members += members > 0;
    }
    atomic_store_explicit(&team->die.working.value, (unsigned)with_members, memory_order_relaxed);
    for (int cluster = 0; cluster < clusters; cluster++) {
        start_cluster(&team->clusters[cluster], START_WORD(team->run, team->num_running));
    }
    team->job(team->arguments, 0, team->num_running);
    for (unsigned left; (left = value_of(&team->die.working)) != 0;) {
        wait_while(&team->die.working, left, team->spin_nanoseconds);
    }
}

static void run_alone(hc_job *job, void *arguments) {
    const int before = here.alone;
    here.alone = 1;
    job(arguments, 0, 1);
    here.alone = before;
}

/* Main function of an OpenMP thread in the team's job. Within a nested region, or because of its limits, OpenMP may
 * provide fewer threads than requested. The caller, its first thread, then works alone. */
static void openmp_main(void *argument) {
    hc_team *team = argument;
    const int thread = team->openmp.thread();
    if (team->openmp.num_threads() < team->num_running) {
        if (thread == 0) {
            run_alone(team->job, team->arguments);
        }
    } else if (thread == 0) {
        team->job(team->arguments, 0, team->num_running);
    } else if (thread < team->num_running) {
        here.team = team;
        here.cluster = here.alone = 0;
        while (thread >= team->clusters[here.cluster].first + team->clusters[here.cluster].size) {
            here.cluster++;
        }
        team->job(team->arguments, thread, team->num_running);
        here.team = NULL; /* the thread returns to its owner */
    }
}

/* Always use all threads, because the runtime would end the other threads of a smaller region. */
static void run_openmp(hc_team *team) {
    count_participants(team);
    team->openmp.parallel(openmp_main, team, (unsigned)team->num_threads, 0);
}

void hc_team_run(hc_team *team, int num_threads, hc_job *job, void *arguments) {
    if (here.team == team || team->owner != hc_forks()) {
        run_alone(job, arguments);
        return;
    }
    pthread_mutex_lock(&team->one_run);
    team->job = job;
    team->arguments = arguments;
    team->num_running = num_threads <= 0 || num_threads > team->num_threads ? team->num_threads : num_threads;
    const hc_team *outer_team = here.team; /* the caller may be a thread of another team's run */
    const int outer_cluster = here.cluster, outer_alone = here.alone;
    here.team = team;
    here.cluster = here.alone = 0;
    if (team->num_running == 1) {
        job(arguments, 0, 1);
    } else if (uses_openmp(team)) {
        run_openmp(team);
    } else {
        run_together(team);
    }
    here.team = outer_team;
    here.cluster = outer_cluster;
    here.alone = outer_alone;
    pthread_mutex_unlock(&team->one_run);
}

/* Return 1 to the last thread to arrive. All other threads wait for the phase that it must raise. */
static int arrive(sync_point *place, int64_t spin_nanoseconds) {
    const unsigned phase = value_of(&place->phase);
    if (atomic_fetch_add(&place->arrived, 1) + 1 == place->in_run) {
        atomic_store_explicit(&place->arrived, 0, memory_order_relaxed);
        return 1;
    }
    wait_while(&place->phase, phase, spin_nanoseconds);
    return 0;
}

static void release(sync_point *place) {
    atomic_fetch_add(&place->phase.value, 1);
    wake_all(&place->phase);
}

void hc_team_barrier(hc_team *team) {
    if (here.alone || team->num_running == 1) {
        return;
    }
    sync_point *cluster = &team->clusters[here.cluster];
    if (arrive(cluster, team->spin_nanoseconds)) {
        if (team->die.in_run > 1 && arrive(&team->die, team->spin_nanoseconds)) {
            release(&team->die);
        }
        release(cluster);
    }
}

void hc_team_barrier_cluster(hc_team *team) {
    if (here.alone || team->num_running == 1) {
        return;
    }
    sync_point *cluster = &team->clusters[here.cluster];
    if (arrive(cluster, team->spin_nanoseconds)) {
        release(cluster);
    }
}

int hc_part(int64_t count, int64_t multiple, int thread, int num_threads, int64_t *out_start, int64_t *out_stop) {
    if (count < 0 || multiple < 1 || count > INT64_MAX - multiple || thread < 0 || thread >= num_threads || out_start == NULL ||
        out_stop == NULL) {
        return HC_BAD_ARGUMENT;
    }
    const int64_t units = (count + multiple - 1) / multiple, each = units / num_threads, extra = units % num_threads;
    const int64_t first = thread * each + (thread < extra ? thread : extra);
    const int64_t last = first + each + (thread < extra ? 1 : 0);
    *out_start = first * multiple < count ? first * multiple : count;
    *out_stop = last * multiple < count ? last * multiple : count;
    return HC_OK;
}
