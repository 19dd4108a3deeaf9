/* A team of threads that are parked while nobody calls them. The caller of hc_team_run is thread 0 of the run.
 *
 * A team has no connection to OpenMP, so torch's pool stays as it is. In a child made by fork() the other threads do not exist:
 * there a run uses the caller alone. One run at a time; a second caller waits for the first. */
#ifndef HC_TEAM_H
#define HC_TEAM_H

#include <stdint.h>

typedef struct hc_team hc_team;

/* Called once on every thread of a run; num_threads is that of the run, which may be less than the team's. */
typedef void hc_job(void *arguments, int thread, int num_threads);

/* cpus: as in hc_machine. Returns an hc_status. */
int hc_team_create(int num_threads, const int *cpus, int64_t spin_nanoseconds, hc_team **out_team);
void hc_team_destroy(hc_team *team);
int hc_team_size(const hc_team *team);

/* Runs `job` on min(num_threads, size of the team) threads (0: all) and returns when all of them are done. */
void hc_team_run(hc_team *team, int num_threads, hc_job *job, void *arguments);

/* For use inside a job: returns when every thread of the run has called it. */
void hc_team_barrier(hc_team *team);

/* Consecutive part `thread` of `num_threads` of range(count), cut at multiples of `multiple`, the same rule as dithc.cftp.partition. */
void hc_part(int64_t count, int64_t multiple, int thread, int num_threads, int64_t *out_start, int64_t *out_stop);

#endif
