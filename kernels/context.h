/* Contents of hc_context, for operators. Internal. */
#ifndef HC_CONTEXT_H
#define HC_CONTEXT_H

#include <stdint.h>

#include "handles.h"
#include "hcops.h"
#include "kernels.h"
#include "team/team.h"

struct hc_context {
    uint64_t tag; /* HC_CONTEXT_TAG */
    int isa;
    int num_threads, num_clusters;
    int *nodes; /* memory node per cluster; NULL: one node, or unknown nodes */
    int64_t l1_bytes, l2_bytes, l3_bytes;
    const hc_kernels *kernels; /* best kernels for `isa` */
    hc_team *team;
    /* Scratch memory: see hc_scratch. */
    void *scratch;
    int64_t scratch_bytes;
};

static inline int hc_is_context(const hc_context *context) {
    return hc_has_tag(context, HC_CONTEXT_TAG);
}

/* Return at least `bytes` of scratch memory on huge pages, aligned to 4,096 bytes, with undefined content, or NULL if
 * refused. The operator must call it before it starts its job. The block is valid until the next call. */
void *hc_scratch(hc_context *context, int64_t bytes);

/* Lock and unlock the context. Every operator locks it while it works, so that two Python threads cannot share scratch
 * memory and team. Not recursive. */
void hc_lock(hc_context *context);
void hc_unlock(hc_context *context);

#endif
