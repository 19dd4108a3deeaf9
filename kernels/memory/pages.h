/* Memory directly from the system, on huge pages if granted. Internal. */
#ifndef HC_PAGES_H
#define HC_PAGES_H

#include <stdint.h>

#include "context.h"

/* Huge page size of x86-64, and of Arm with 4 KB base pages. With larger huge pages, the alignment only loses its
 * benefit. */
#define HUGE_PAGE_BYTES ((int64_t)2 << 20)
#define PAGE_BYTES 4096

/* Return `bytes` rounded up to complete huge pages. */
int64_t hc_pages_round(int64_t bytes);

/* Return untouched pages of zeros, aligned to a huge page, or NULL if refused. `bytes` is a result of
 * hc_pages_round. */
void *hc_pages_take(int64_t bytes);
void hc_pages_give(void *pages, int64_t bytes);

/* Return the bytes of addresses that a pool with a budget (negative: none) should reserve, in complete huge pages. */
int64_t hc_pages_worth_reserving(int64_t budget_bytes);

/* Reserve addresses aligned to a huge page, without memory. NULL if refused. Release them with hc_pages_give. */
void *hc_pages_reserve(int64_t bytes);

/* Map `bytes` of a file from its start, shared, aligned to a huge page. NULL if refused. Release them with
 * hc_pages_give. */
void *hc_pages_of_file(int file, int64_t bytes);

/* Map huge pages that the administrator reserved: all `bytes`, or NULL. Release them with hc_pages_give. */
void *hc_pages_reserved(int64_t bytes);

/* Make a part of reserved addresses, in complete huge pages, usable without touching it: HC_OK, or HC_OUT_OF_MEMORY.
 * hc_pages_close removes its memory. */
int hc_pages_open(void *pages, int64_t bytes);
void hc_pages_close(void *pages, int64_t bytes);

/* Memory nodes, one per equal run of threads. Without nodes, pages are not bound. */
typedef struct {
    int count;
    const int *numbers;
} hc_nodes;

/* Bind the pages of each run of threads to its node. */
void hc_pages_bind(void *pages, int64_t bytes, int num_threads, hc_nodes nodes);

/* Touch every page with the team, so that operators do not cause page faults. Each part is touched by a thread of
 * the run on its memory node: of `nodes`, or of the context's clusters without nodes. Only `own_bytes` from `own`
 * on, which belong to the caller, are written; the rest of a huge page may belong to another block. */
void hc_pages_touch(void *pages, int64_t bytes, const void *own, int64_t own_bytes, hc_context *context, hc_nodes nodes);

#endif
