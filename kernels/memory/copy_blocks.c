/* Copy rows between arrays with different strides. */
#include <string.h>

#include "array.h"

typedef struct {
    int64_t rows, bytes, source_block, source_row, target_block, target_row, count;
    const char *source;
    char *target;
} blocks_job;

static void run(void *arguments, int thread, int num_threads) {
    const blocks_job *job = arguments;
    int64_t start, stop;
    hc_part(job->count, 1, thread, num_threads, &start, &stop);
    for (int64_t i = start; i < stop; i++) {
        const int64_t block = i / job->rows, row = i % job->rows;
        memcpy(job->target + block * job->target_block + row * job->target_row,
               job->source + block * job->source_block + row * job->source_row, (size_t)job->bytes);
    }
}

int hc_copy_blocks(hc_context *context, int64_t blocks, int64_t rows, int64_t bytes, const void *source, int64_t source_block,
                   int64_t source_row, void *out_target, int64_t target_block, int64_t target_row) {
    const int64_t all = hc_count(blocks, rows, bytes);
    const int are_apart = hc_count(blocks, source_block, 1) >= 0 && hc_count(rows, source_row, 1) >= 0 &&
                          hc_count(blocks, target_block, 1) >= 0 && hc_count(rows, target_row, 1) >= 0;
    if (!hc_is_context(context) || all < 0 || !are_apart || (all > 0 && (source == NULL || out_target == NULL))) {
        return HC_BAD_ARGUMENT;
    }
    if (all > 0) {
        blocks_job job = {rows, bytes, source_block, source_row, target_block, target_row, blocks * rows, source, out_target};
        hc_lock(context);
        hc_team_run(context->team, hc_threads_for(context, all / 4), run, &job);
        hc_unlock(context);
    }
    return HC_OK;
}
