/* Memory directly from the system, on huge pages if granted. Internal. */
#ifndef HC_PAGES_H
#define HC_PAGES_H

#include <stdint.h>

#include "context.h"

/* Of x86-64, and of Arm with 4 KB base pages; where huge pages are larger the alignment is only a hint less. */
#define HUGE_PAGE_BYTES ((int64_t)2 << 20)
#define PAGE_BYTES 4096

/* `bytes` rounded up to complete huge pages. */
int64_t hc_pages_round(int64_t bytes);

/* Pages aligned to a huge page, content zero, not yet touched; bytes from hc_pages_round. NULL: refused. */
void *hc_pages_take(int64_t bytes);
void hc_pages_give(void *pages, int64_t bytes);

/* Bytes of addresses that a pool with a budget (negative: none) may reserve, in complete huge pages. */
int64_t hc_pages_worth_reserving(int64_t budget_bytes);

/* Addresses aligned to a huge page, without memory; given back by hc_pages_give. NULL: refused. */
void *hc_pages_reserve(int64_t bytes);

/* `bytes` of a file from its start, shared, aligned to a huge page; given back by hc_pages_give. NULL: refused. */
void *hc_pages_of_file(int file, int64_t bytes);

/* Huge pages that the administrator reserved, all `bytes` or NULL; given back by hc_pages_give. */
void *hc_pages_reserved(int64_t bytes);

/* Make a part of them, in complete huge pages, usable without touching it: HC_OK, or HC_OUT_OF_MEMORY; or remove its
 * memory. */
int hc_pages_open(void *pages, int64_t bytes);
void hc_pages_close(void *pages, int64_t bytes);

/* Memory nodes, one for each of equal runs of threads; none where nothing is to be bound. */
typedef struct {
    int count;
    const int *numbers;
} hc_nodes;

/* Binds pages to them, each run of threads' part to its node. */
void hc_pages_bind(void *pages, int64_t bytes, int num_threads, hc_nodes nodes);

/* Touch every page with the team, so that operators do not cause page faults. Each part is touched by a thread of
 * the run on its memory node: of `nodes`, or of the context's clusters without nodes. Only `own_bytes` from `own`
 * on, which belong to the caller, are written; the rest of a huge page may belong to another block. */
void hc_pages_touch(void *pages, int64_t bytes, const void *own, int64_t own_bytes, hc_context *context, hc_nodes nodes);

#endif
