/* Content of an hc_context, for operators. Internal. */
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
    int *nodes; /* memory node of each cluster, or NULL: there is one node, or they are not known */
    int64_t l1_bytes, l2_bytes, l3_bytes;
    const hc_kernels *kernels; /* the best kernels of `isa` */
    hc_team *team;
    /* Scratch memory: see hc_scratch. */
    void *scratch;
    int64_t scratch_bytes;
};

static inline int hc_is_context(const hc_context *context) {
    return hc_has_tag(context, HC_CONTEXT_TAG);
}

/* At least `bytes` of scratch memory, aligned to 4,096 bytes, on huge pages, content undefined; NULL: refused. To be
 * called by the operator before it starts its job; the block is valid until the next call. */
void *hc_scratch(hc_context *context, int64_t bytes);

/* An operator brackets its work with these, so that two Python threads cannot share scratch memory and team. Not
 * recursive. */
void hc_lock(hc_context *context);
void hc_unlock(hc_context *context);

#endif
