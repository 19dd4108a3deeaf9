/* Runs of a team: alternating sizes, with barriers of both types. Each barrier must make the earlier writes of the
 * other threads visible. The runs use the team's own threads, or threads of a small runtime that replaces OpenMP. */
#include "test/cases.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "team/team.h"

#define RUNS 300
#define ROUNDS 20
#define CALLERS 2

typedef struct {
    hc_team *team;
    int num_clusters, size; /* size of the complete team */
    int max_run; /* largest run; larger runs get one thread */
    int *done; /* rounds finished by each thread; plain ints, so that a sanitizer detects races */
    int wrong[256];
} work;

/* Test runtime. It creates the threads of a region. A nested region has one thread, and no region has more threads than
 * configured. */
typedef struct {
    void (*function)(void *);
    void *argument;
    int thread, num_threads;
} place;

static _Thread_local place of_thread;
static int max_threads;

static int thread_in_region(void) {
    return of_thread.thread;
}

static int threads_of_region(void) {
    return of_thread.num_threads;
}

static void *enter(void *argument) {
    const place before = of_thread;
    of_thread = *(const place *)argument;
    of_thread.function(of_thread.argument);
    of_thread = before;
    return NULL;
}

static void parallel(void (*function)(void *), void *argument, unsigned num_threads, unsigned flags) {
    place places[256];
    pthread_t handles[256];
    int given = of_thread.num_threads > 0 ? 1 : (int)num_threads < max_threads ? (int)num_threads : max_threads;
    (void)flags;
    for (int i = 0; i < given; i++) {
        places[i] = (place){function, argument, i, given};
        if (i > 0) {
            pthread_create(&handles[i], NULL, enter, &places[i]);
        }
    }
    enter(&places[0]);
    for (int i = 1; i < given; i++) {
        pthread_join(handles[i], NULL);
    }
}

static void look(work *w, int first, int stop, int round, int thread) {
    for (int other = first; other < stop; other++) {
        w->wrong[thread] += w->done[other] != round;
    }
}

static void inner(void *arguments, int thread, int num_threads) {
    const work *w = arguments;
    hc_team_barrier(w->team);
    w->done[0] += thread == 0 && num_threads == 1;
}

/* Start a nested run, which must use only the calling thread. */
static void look_within(work *w, int thread) {
    int runs = 0;
    work own = {.team = w->team, .done = &runs};
    hc_team_run(w->team, 0, inner, &own);
    w->wrong[thread] += runs != 1;
}

static void rounds(void *arguments, int thread, int num_threads) {
    work *w = arguments;
    int64_t first = 0, stop = 0;
    for (int cluster = 0; thread >= stop; cluster++) {
        hc_part(w->size, 1, cluster, w->num_clusters, &first, &stop);
    }
    const int last = stop < num_threads ? (int)stop : num_threads;
    for (int round = 1; round <= ROUNDS; round++) {
        w->done[thread] = 2 * round - 1;
        hc_team_barrier_cluster(w->team);
        look(w, (int)first, last, 2 * round - 1, thread);
        hc_team_barrier(w->team);
        w->done[thread] = 2 * round;
        look_within(w, thread);
        hc_team_barrier(w->team);
        look(w, 0, num_threads, 2 * round, thread);
        hc_team_barrier(w->team);
    }
}

static void *call(void *argument) {
    work *shared = argument;
    work own = *shared;
    long wrong = 0;
    own.done = calloc((size_t)own.size, sizeof(int));
    for (int run = 0; run < RUNS; run++) {
        const int threads = 1 + run % own.size;
        memset(own.done, 0, (size_t)own.size * sizeof(int));
        hc_team_run(own.team, threads, rounds, &own);
        for (int thread = 0; thread < own.size; thread++) {
            wrong += own.done[thread] != (thread < (threads > own.max_run ? 1 : threads) ? 2 * ROUNDS : 0);
        }
    }
    for (int thread = 0; thread < own.size; thread++) {
        wrong += own.wrong[thread];
    }
    free(own.done);
    return (void *)(intptr_t)wrong;
}

int hc_test_team(int num_threads, int num_clusters, int64_t spin_nanoseconds, int lent) {
    const hc_openmp openmp = {parallel, thread_in_region, threads_of_region};
    work shared = {.num_clusters = num_clusters, .size = num_threads, .max_run = lent > 0 ? lent : num_threads};
    pthread_t callers[CALLERS];
    long wrong = 0;
    max_threads = lent;
    if (num_threads > 256 || hc_team_create(num_threads, num_clusters, NULL, spin_nanoseconds, lent > 0 ? &openmp : NULL,
                                            &shared.team) != HC_OK) {
        return -1;
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_create(&callers[i], NULL, call, &shared);
    }
    for (int i = 0; i < CALLERS; i++) {
        void *found;
        pthread_join(callers[i], &found);
        wrong += (long)(intptr_t)found;
    }
    hc_team_destroy(shared.team);
    return wrong > 0;
}
