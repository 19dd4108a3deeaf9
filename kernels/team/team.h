/* A team of threads that are parked while nobody calls them. The caller of hc_team_run is thread 0 of the run. The threads are
 * grouped by cluster: they meet within their cluster, and one of each meets the other clusters.
 *
 * The threads are the team's own, without connection to OpenMP, or those of an OpenMP runtime that somebody else brought: each run
 * is then a region of it, and there is no second set of threads that waits for the cores of the first. In a child made by fork()
 * the other threads do not exist: there a run uses the caller alone. One run at a time; a second caller waits for the first. */
#ifndef HC_TEAM_H
#define HC_TEAM_H

#include <stdint.h>

#include "hcops.h" /* hc_part */

typedef struct hc_team hc_team;

/* Called once on every thread of a run; num_threads is that of the run, which may be less than the team's. */
typedef void hc_job(void *arguments, int thread, int num_threads);

/* num_clusters, cpus, openmp: as in hc_machine. Returns an hc_status. */
int hc_team_create(int num_threads, int num_clusters, const int *cpus, int64_t spin_nanoseconds, const hc_openmp *openmp,
                   hc_team **out_team);
void hc_team_destroy(hc_team *team);
int hc_team_size(const hc_team *team);

/* Runs `job` on min(num_threads, size of the team) threads (0: all) and returns when all of them are done. From inside a job of
 * the same team, whose threads are busy: on the calling thread alone. */
void hc_team_run(hc_team *team, int num_threads, hc_job *job, void *arguments);

/* How many forks lie between the process that loaded the library and this one. */
unsigned hc_forks(void);

/* For use inside a job: returns when every thread of the run has called it. */
void hc_team_barrier(hc_team *team);

/* The same for the threads of the caller's cluster alone, of which others need not call it. Clusters are consecutive threads of
 * the whole team, cut by hc_part; a run of fewer threads uses the first ones. */
void hc_team_barrier_cluster(hc_team *team);

#endif
