/* Threads that wait for a job: one counter starts a run, another ends it; who waits long sleeps in the system. */
#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hcops.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

/* Reading the clock costs about 25 ns, so a waiting thread looks at it only after this many looks at the counter. */
#define LOOKS_PER_CLOCK 64

#define CACHE_LINE 64

typedef struct {
    hc_team *team;
    int thread;
    pthread_t handle;
} member;

/* A number that threads wait for, on a cache line of its own: a store to one disturbs no other. */
typedef struct {
    _Alignas(CACHE_LINE) atomic_uint value;
    atomic_uint sleepers; /* who may have to be woken; a system call is spared while there is none */
} signal;

struct hc_team {
    signal generation; /* raised to start a run */
    signal working;    /* members that have not finished the run */
    signal phase;      /* of the barrier */
    _Alignas(CACHE_LINE) atomic_uint arrived; /* at the barrier */
    _Alignas(CACHE_LINE) hc_job *job;
    void *arguments;
    int num_running; /* threads of this run, the caller counted */
    int num_threads;
    int64_t spin_nanoseconds;
    atomic_int stop;
    pid_t owner; /* the process that has the threads; a forked child has not */
    int *cpus;   /* of each thread, or NULL: nobody is pinned */
    pthread_mutex_t one_run;
    member *members;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Sleeps while the value is `value`. Sleepers are counted before the kernel compares the value, and wake_all looks at the count
 * after the value was changed: one of the two sees the other. */
static void sleep_while(signal *awaited, unsigned value) {
    atomic_fetch_add(&awaited->sleepers, 1);
#ifdef __linux__
    syscall(SYS_futex, &awaited->value, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
    (void)value;
    sched_yield();
#endif
    atomic_fetch_sub(&awaited->sleepers, 1);
}

static void wake_all(signal *awaited) {
#ifdef __linux__
    if (atomic_load(&awaited->sleepers) > 0) {
        syscall(SYS_futex, &awaited->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
#else
    (void)awaited;
#endif
}

static unsigned value_of(signal *awaited) {
    return atomic_load_explicit(&awaited->value, memory_order_acquire);
}

/* Returns when the value is no longer `value`: looks for a while, then sleeps. */
static void wait_while(signal *awaited, unsigned value, int64_t spin_nanoseconds) {
    int64_t deadline = 0;
    for (;;) {
        for (int look = 0; look < LOOKS_PER_CLOCK; look++) {
            if (value_of(awaited) != value) {
                return;
            }
            relax();
        }
        const int64_t now = now_nanoseconds();
        if (deadline == 0) {
            deadline = now + spin_nanoseconds;
        } else if (now > deadline) {
            sleep_while(awaited, value);
        }
    }
}

static void *member_main(void *argument) {
    member *self = argument;
    hc_team *team = self->team;
    unsigned seen = 0;
    for (;;) {
        wait_while(&team->generation, seen, team->spin_nanoseconds);
        seen = value_of(&team->generation);
        if (atomic_load(&team->stop)) {
            return NULL;
        }
        if (self->thread < team->num_running) {
            team->job(team->arguments, self->thread, team->num_running);
        }
        if (atomic_fetch_sub(&team->working.value, 1) == 1) {
            wake_all(&team->working);
        }
    }
}

static int start_member(hc_team *team, int thread, const int *cpus) {
    member *self = &team->members[thread];
    self->team = team;
    self->thread = thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
#ifdef __linux__
    if (cpus != NULL && cpus[thread] < CPU_SETSIZE) {
        cpu_set_t place;
        CPU_ZERO(&place);
        CPU_SET((unsigned)cpus[thread], &place);
        pthread_attr_setaffinity_np(&attributes, sizeof(place), &place);
    }
#else
    (void)cpus;
#endif
    const int failed = pthread_create(&self->handle, &attributes, member_main, self);
    pthread_attr_destroy(&attributes);
    return failed ? HC_NO_THREAD : HC_OK;
}

static void end_members(hc_team *team, int count) {
    atomic_store(&team->stop, 1);
    atomic_fetch_add(&team->generation.value, 1);
    wake_all(&team->generation);
    for (int thread = 1; thread < count; thread++) {
        pthread_join(team->members[thread].handle, NULL);
    }
}

int hc_team_create(int num_threads, const int *cpus, int64_t spin_nanoseconds, hc_team **out_team) {
    hc_team *team = aligned_alloc(CACHE_LINE, sizeof(hc_team));
    member *members = calloc((size_t)num_threads, sizeof(member));
    if (team == NULL || members == NULL) {
        free(team);
        free(members);
        return HC_OUT_OF_MEMORY;
    }
    *team = (hc_team){.num_threads = num_threads, .spin_nanoseconds = spin_nanoseconds, .members = members, .owner = getpid()};
    if (cpus != NULL && (team->cpus = malloc((size_t)num_threads * sizeof(int))) != NULL) {
        memcpy(team->cpus, cpus, (size_t)num_threads * sizeof(int));
    }
    pthread_mutex_init(&team->one_run, NULL);
    for (int thread = 1; thread < num_threads; thread++) {
        if (start_member(team, thread, cpus) != HC_OK) {
            end_members(team, thread);
            free(team->cpus);
            free(members);
            free(team);
            return HC_NO_THREAD;
        }
    }
    *out_team = team;
    return HC_OK;
}

void hc_team_destroy(hc_team *team) {
    if (team->owner == getpid()) {
        end_members(team, team->num_threads);
    }
    pthread_mutex_destroy(&team->one_run);
    free(team->cpus);
    free(team->members);
    free(team);
}

int hc_team_size(const hc_team *team) {
    return team->num_threads;
}

/* The caller is not ours to pin. Where it happens to run on the CPU of a member, both would share that CPU for as long as the
 * scheduler takes to notice, milliseconds: so it is moved to the first CPU, and its mask put back, which lets it stay there. */
static void leave_members_alone(const hc_team *team) {
#ifdef __linux__
    const int here = sched_getcpu();
    for (int thread = 1; team->cpus != NULL && thread < team->num_running; thread++) {
        cpu_set_t mask, first;
        if (team->cpus[thread] != here || team->cpus[0] >= CPU_SETSIZE || sched_getaffinity(0, sizeof(mask), &mask) != 0 ||
            !CPU_ISSET((unsigned)team->cpus[0], &mask)) {
            continue;
        }
        CPU_ZERO(&first);
        CPU_SET((unsigned)team->cpus[0], &first);
        if (sched_setaffinity(0, sizeof(first), &first) == 0) {
            sched_setaffinity(0, sizeof(mask), &mask);
        }
        return;
    }
#else
    (void)team;
#endif
}

/* Starts the members on the job that stands in the team, works along, and waits for them. */
static void run_together(hc_team *team) {
    leave_members_alone(team);
    atomic_store(&team->arrived, 0);
    atomic_store(&team->working.value, (unsigned)team->num_threads - 1);
    atomic_fetch_add(&team->generation.value, 1);
    wake_all(&team->generation);
    team->job(team->arguments, 0, team->num_running);
    for (unsigned left; (left = value_of(&team->working)) != 0;) {
        wait_while(&team->working, left, team->spin_nanoseconds);
    }
}

void hc_team_run(hc_team *team, int num_threads, hc_job *job, void *arguments) {
    if (team->owner != getpid()) {
        job(arguments, 0, 1);
        return;
    }
    pthread_mutex_lock(&team->one_run);
    team->job = job;
    team->arguments = arguments;
    team->num_running = num_threads <= 0 || num_threads > team->num_threads ? team->num_threads : num_threads;
    if (team->num_running == 1) {
        job(arguments, 0, 1);
    } else {
        run_together(team);
    }
    pthread_mutex_unlock(&team->one_run);
}

void hc_team_barrier(hc_team *team) {
    if (team->owner != getpid() || team->num_running == 1) {
        return;
    }
    const unsigned phase = value_of(&team->phase);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == (unsigned)team->num_running) {
        atomic_store(&team->arrived, 0);
        atomic_fetch_add(&team->phase.value, 1);
        wake_all(&team->phase);
    } else {
        wait_while(&team->phase, phase, team->spin_nanoseconds);
    }
}

void hc_part(int64_t count, int64_t multiple, int thread, int num_threads, int64_t *out_start, int64_t *out_stop) {
    const int64_t units = (count + multiple - 1) / multiple, each = units / num_threads, extra = units % num_threads;
    const int64_t first = thread * each + (thread < extra ? thread : extra);
    const int64_t last = first + each + (thread < extra ? 1 : 0);
    *out_start = first * multiple < count ? first * multiple : count;
    *out_stop = last * multiple < count ? last * multiple : count;
}
