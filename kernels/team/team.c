/* Threads that wait for a job, grouped by cluster. Variables with many writers or readers are separate lines per
 * cluster, joined by the lines of the die. Threads that wait long sleep in the system. */
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

/* Also for A64FX, which has the longest lines. */
#if defined(__aarch64__)
#define CACHE_LINE 256
#else
#define CACHE_LINE 64
#endif

/* Counted in the child, so that asking costs no system call: an operator asks several times. */
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

/* The low half of a start word is the number of a run, the high half its number of threads. A member outside a run
 * may miss it, and cannot mistake the next run for it. Waiting in the system compares the low half only. */
#define START_WORD(run, threads) ((uint64_t)(uint32_t)(run) | (uint64_t)(threads) << 32)
#define THREADS_OF(word) ((int)((word) >> 32))

typedef struct {
    hc_team *team;
    int thread, cluster;
    pthread_t handle;
} member;

/* Barrier of the threads of a cluster, or of the clusters of a die. All write to the first line. The last to arrive
 * writes to the second line, which the other threads poll. */
typedef struct {
    _Alignas(CACHE_LINE) atomic_uint arrived; /* at the barrier */
    awaited working;                          /* threads that have not finished the run */
    _Alignas(CACHE_LINE) awaited phase;       /* of the barrier */
    _Atomic uint64_t start;                   /* START_WORD of the last run; of a cluster only */
    atomic_uint parked;                       /* threads that sleep until the next run */
    int first, size;                          /* threads first ... first + size - 1 of the team */
    unsigned in_run;                          /* of them in this run; clusters in this run, of a die */
} meeting;

struct hc_team {
    meeting die;
    _Alignas(CACHE_LINE) hc_job *job;
    void *arguments;
    int num_running; /* threads of this run, the caller counted */
    int num_threads, num_clusters;
    int64_t spin_nanoseconds;
    uint32_t run;
    atomic_int stop;
    unsigned owner; /* hc_forks of the process that has the threads; a forked child has not */
    int *cpus;   /* CPU of each thread; NULL: not pinned */
    hc_openmp openmp; /* runtime that owns the threads; without functions: the members */
    pthread_mutex_t one_run;
    member *members;
    meeting clusters[];
};

/* Run of this thread, which the barrier does not receive as argument: a team's run, its cluster there (a caller is
 * in the first), and whether it is alone: in a nested run, for which no other thread is free, or in a forked child. */
static _Thread_local struct {
    const hc_team *team;
    int cluster, alone;
} here;

/* The half of a start word that the system compares. */
static void *run_half(_Atomic uint64_t *word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (char *)word + sizeof(uint32_t);
#else
    return word;
#endif
}

/* The next start word after `seen` of a member's cluster, waited for as in wait_while. */
static uint64_t wait_for_start(meeting *cluster, uint64_t seen, int64_t spin_nanoseconds) {
    int64_t deadline = 0;
    for (;;) {
        for (int look = 0; look < LOOKS_PER_CLOCK; look++) {
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

static void start_cluster(meeting *cluster, uint64_t word) {
    atomic_store(&cluster->start, word);
    if (atomic_load(&cluster->parked) > 0) {
        wake_in_system(run_half(&cluster->start));
    }
}

/* One thread of the run has finished. The last thread of each cluster notifies the die. The caller is counted in
 * neither. */
static void finish(hc_team *team, meeting *cluster) {
    if (atomic_fetch_sub(&cluster->working.value, 1) == 1 && atomic_fetch_sub(&team->die.working.value, 1) == 1) {
        wake_all(&team->die.working);
    }
}

static int is_lent(const hc_team *team) {
    return team->openmp.parallel != NULL;
}

static void *member_main(void *argument) {
    const member *self = argument;
    hc_team *team = self->team;
    meeting *cluster = &team->clusters[self->cluster];
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

static void give_back(hc_team *team) {
    pthread_mutex_destroy(&team->one_run);
    free(team->cpus);
    free(team->members);
    free(team);
}

int hc_team_create(int num_threads, int num_clusters, const int *cpus, int64_t spin_nanoseconds, const hc_openmp *openmp,
                   hc_team **out_team) {
    const size_t bytes = sizeof(hc_team) + (size_t)num_clusters * sizeof(meeting);
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
        give_back(team);
        return HC_OUT_OF_MEMORY;
    }
    for (int cluster = 0; cluster < num_clusters; cluster++) {
        int64_t start, stop;
        hc_part(num_threads, 1, cluster, num_clusters, &start, &stop);
        team->clusters[cluster].first = (int)start;
        team->clusters[cluster].size = (int)(stop - start);
    }
    int started;
    if (!is_lent(team) && start_members(team, cpus, &started) != HC_OK) {
        end_members(team, started);
        give_back(team);
        return HC_NO_THREAD;
    }
    *out_team = team;
    return HC_OK;
}

void hc_team_destroy(hc_team *team) {
    if (!is_lent(team) && team->owner == hc_forks()) {
        end_members(team, team->num_threads);
    }
    give_back(team);
}

int hc_team_size(const hc_team *team) {
    return team->num_threads;
}

/* The caller is not ours to pin. Where it happens to run elsewhere than on its own CPU, the first, it may share a core
 * with a member or with a thread that moves data, and be far from its memory, for as long as the scheduler takes to
 * notice, milliseconds: so it is moved there, and its mask put back, which lets it stay. */
static void take_first_cpu(const hc_team *team) {
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
static int share_out(hc_team *team) {
    int clusters = 0;
    for (; clusters < team->num_clusters && team->clusters[clusters].first < team->num_running; clusters++) {
        meeting *cluster = &team->clusters[clusters];
        const int left = team->num_running - cluster->first;
        cluster->in_run = (unsigned)(left < cluster->size ? left : cluster->size);
    }
    team->die.in_run = (unsigned)clusters;
    return clusters;
}

/* Start the members on the team's job, work on it too, and wait for them. */
static void run_together(hc_team *team) {
    take_first_cpu(team);
    team->run++;
    const int clusters = share_out(team);
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

/* A thread of OpenMP in the team's job. Within a nested region, or because of its limits, OpenMP may provide fewer
 * threads than requested. The caller, its first thread, then works alone. */
static void lent_main(void *argument) {
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

/* All threads each time: a region of fewer would have the runtime end the others. */
static void run_lent(hc_team *team) {
    share_out(team);
    team->openmp.parallel(lent_main, team, (unsigned)team->num_threads, 0);
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
    } else if (is_lent(team)) {
        run_lent(team);
    } else {
        run_together(team);
    }
    here.team = outer_team;
    here.cluster = outer_cluster;
    here.alone = outer_alone;
    pthread_mutex_unlock(&team->one_run);
}

/* The last to arrive continues with 1. All other threads wait for the phase that it must raise. */
static int arrive(meeting *place, int64_t spin_nanoseconds) {
    const unsigned phase = value_of(&place->phase);
    if (atomic_fetch_add(&place->arrived, 1) + 1 == place->in_run) {
        atomic_store_explicit(&place->arrived, 0, memory_order_relaxed);
        return 1;
    }
    wait_while(&place->phase, phase, spin_nanoseconds);
    return 0;
}

static void release(meeting *place) {
    atomic_fetch_add(&place->phase.value, 1);
    wake_all(&place->phase);
}

void hc_team_barrier(hc_team *team) {
    if (here.alone || team->num_running == 1) {
        return;
    }
    meeting *cluster = &team->clusters[here.cluster];
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
    meeting *cluster = &team->clusters[here.cluster];
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
