/* Team of threads that are parked between calls. The caller of hc_team_run is thread 0 of the run. The threads are
 * grouped by cluster: they synchronize within their cluster, and one thread of each cluster synchronizes with the other
 * clusters.
 *
 * The threads belong to the team, independent of OpenMP, or to an external OpenMP runtime. With a runtime, each run is
 * a region of that runtime, and no second set of threads competes for the cores. In a child made by fork() the other
 * threads do not exist, and a run uses only the caller. One run is active at a time; a second caller waits for the
 * first. */
#ifndef HC_TEAM_H
#define HC_TEAM_H

#include <stdint.h>

#include "hcops.h" /* hc_part */

typedef struct hc_team hc_team;

/* Callback of a run, called once per thread. num_threads is the number of threads of the run, at most the team's
 * size. */
typedef void hc_job(void *arguments, int thread, int num_threads);

/* Create a team. num_clusters, cpus and openmp: as in hc_machine. Return an hc_status. */
int hc_team_create(int num_threads, int num_clusters, const int *cpus, int64_t spin_nanoseconds, const hc_openmp *openmp,
                   hc_team **out_team);
void hc_team_destroy(hc_team *team);
int hc_team_size(const hc_team *team);

/* Run `job` on min(num_threads, size of the team) threads (0: all), and return when all have finished. Within a job of
 * the same team, which occupies its threads, only the calling thread runs the job. */
void hc_team_run(hc_team *team, int num_threads, hc_job *job, void *arguments);

/* Return the number of forks between the process that loaded the library and this process. */
unsigned hc_forks(void);

/* Barrier within a job: return when every thread of the run has called it. */
void hc_team_barrier(hc_team *team);

/* Barrier of the threads of the caller's cluster. Other clusters need not call it. Clusters are consecutive threads of
 * the complete team, cut by hc_part. A run of fewer threads uses the first threads. */
void hc_team_barrier_cluster(hc_team *team);

#endif
