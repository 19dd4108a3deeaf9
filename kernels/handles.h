/* Type check of handles. Every handle begins with a word for its type, which each public function checks first.
 * Internal. */
#ifndef HC_HANDLES_H
#define HC_HANDLES_H

#include <stddef.h>
#include <stdint.h>

#define HC_CONTEXT_TAG UINT64_C(0xd17c0c0a7e87c001)
#define HC_POOL_TAG UINT64_C(0xd17c0c0a7e87c002)
#define HC_COPIES_TAG UINT64_C(0xd17c0c0a7e87c003)
#define HC_EXCHANGE_TAG UINT64_C(0xd17c0c0a7e87c004)
#define HC_PACKED_B_TAG UINT64_C(0xd17c0c0a7e87c005)

static inline int hc_has_tag(const void *handle, uint64_t tag) {
    return handle != NULL && (uintptr_t)handle % sizeof(tag) == 0 && *(const uint64_t *)handle == tag;
}

/* Clear the type word before a handle is freed, so that later calls with it are rejected until the memory is
 * re-used. */
static inline void hc_drop_tag(uint64_t *tag) {
    *(volatile uint64_t *)tag = 0;
}

#endif
