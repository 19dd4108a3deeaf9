/* Memory from mmap, madvise and mbind: blocks aligned to huge pages, on the memory nodes of their users. */
#define _GNU_SOURCE
#include "pages.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#endif

int64_t hc_pages_round(int64_t bytes) {
    return (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

static void *map(int64_t bytes, int protection) {
    /* Map one huge page more than requested, so that it contains an aligned part, and return the rest. */
    const size_t mapped = (size_t)(bytes + HUGE_PAGE_BYTES);
    char *start = mmap(NULL, mapped, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    const size_t before = (size_t)(-(intptr_t)start & (HUGE_PAGE_BYTES - 1));
    char *aligned = start + before;
    if (before > 0) {
        munmap(start, before);
    }
    if ((int64_t)before < HUGE_PAGE_BYTES) {
        munmap(aligned + bytes, (size_t)(HUGE_PAGE_BYTES - (int64_t)before));
    }
#ifdef MADV_HUGEPAGE
    madvise(aligned, (size_t)bytes, MADV_HUGEPAGE); /* fails if huge pages are disabled; ordinary pages are used then */
#endif
    return aligned;
}

void *hc_pages_take(int64_t bytes) {
    return map(bytes, PROT_READ | PROT_WRITE);
}

int64_t hc_pages_worth_reserving(int64_t budget_bytes) {
    /* Reserve twice the memory, so that gaps between blocks fit. A budget is smaller, and its gaps are relatively
     * larger. Weights and libraries need most of an address space limit (ulimit -v). The pool requests blocks outside
     * its range from the system. */
    int64_t bytes = 2 * (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (budget_bytes >= 0 && budget_bytes < bytes / 4) {
        bytes = 4 * budget_bytes;
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > (int64_t)(limit.rlim_cur / 4)) {
        bytes = (int64_t)(limit.rlim_cur / 4);
    }
    return hc_pages_round(bytes);
}

/* Inaccessible pages use no memory and are not charged by any overcommit policy or RLIMIT_DATA. Opening them is
 * charged, so a too large request fails there and the process is not killed later. MAP_NORESERVE is therefore not
 * used. */
void *hc_pages_reserve(int64_t bytes) {
    return map(bytes, PROT_NONE);
}

int hc_pages_open(void *pages, int64_t bytes) {
    return mprotect(pages, (size_t)bytes, PROT_READ | PROT_WRITE) == 0 ? HC_OK : HC_OUT_OF_MEMORY;
}

void hc_pages_close(void *pages, int64_t bytes) {
    madvise(pages, (size_t)bytes, MADV_DONTNEED);
    mprotect(pages, (size_t)bytes, PROT_NONE); /* fails if no mappings are left; empty pages then count as data */
}

void hc_pages_give(void *pages, int64_t bytes) {
    if (pages != NULL) {
        munmap(pages, (size_t)bytes);
    }
}

void *hc_pages_of_file(int file, int64_t bytes) {
    char *pages = hc_pages_reserve(bytes);
    if (pages == NULL) {
        return NULL;
    }
    if (mmap(pages, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        munmap(pages, (size_t)bytes);
        return NULL;
    }
    return pages;
}

void *hc_pages_reserved(int64_t bytes) {
#ifdef MAP_HUGETLB
    /* 21 << MAP_HUGE_SHIFT. The system reserves the pages here, not at the first touch. */
    const int of_2_mib = 21 << 26;
    void *pages = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | of_2_mib, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
#else
    (void)bytes;
    return NULL;
#endif
}

#define BITS_OF_MASK 1024 /* maximum number of nodes in any build of Linux */
#define BITS_OF_WORD (8 * (int)sizeof(unsigned long))

/* Use MPOL_PREFERRED, not MPOL_BIND, because with MPOL_BIND a full node ends the process, even if other nodes have free
 * memory. */
int hc_bind(void *out_pages, int64_t bytes, int node) {
    if (out_pages == NULL || bytes < 0 || bytes % PAGE_BYTES != 0 || (intptr_t)out_pages % PAGE_BYTES != 0 || node < 0 ||
        node >= BITS_OF_MASK) {
        return HC_BAD_ARGUMENT;
    }
#ifdef SYS_mbind
    unsigned long mask[BITS_OF_MASK / BITS_OF_WORD] = {0};
    mask[node / BITS_OF_WORD] = 1ul << node % BITS_OF_WORD;
    /* The system call reads one bit less than the given number. */
    return syscall(SYS_mbind, out_pages, bytes, MPOL_PREFERRED, mask, BITS_OF_MASK + 1, MPOL_MF_MOVE) == 0 ? HC_OK : HC_NOT_BOUND;
#else
    return HC_NOT_BOUND;
#endif
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

int hc_use_huge_pages(void *out_start, int64_t bytes) {
    if (out_start == NULL || bytes < 0 || bytes > INTPTR_MAX - (intptr_t)out_start - HUGE_PAGE_BYTES) {
        return HC_BAD_ARGUMENT;
    }
    const intptr_t first = ((intptr_t)out_start + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    const intptr_t last = ((intptr_t)out_start + bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
#ifdef MADV_HUGEPAGE
    if (first < last && madvise((void *)first, (size_t)(last - first), MADV_HUGEPAGE) == 0) {
        madvise((void *)first, (size_t)(last - first), MADV_COLLAPSE); /* older systems collapse the pages over time */
    }
#else
    (void)first, (void)last;
#endif
    return HC_OK;
}

/* Bind the parts of the threads, cut as in touch_part, to their nodes. If the system refuses, the first touch by a
 * thread of the run determines the node. If a node is full, its neighbors are used. dithc.engine.memory reads the
 * actual nodes of pages from the system. */
void hc_pages_bind(void *pages, int64_t bytes, int num_threads, hc_nodes nodes) {
    for (int i = 0; i < nodes.count; i++) {
        int64_t first, last, start, stop, ignored;
        hc_part(num_threads, 1, i, nodes.count, &first, &last);
        if (first == last) {
            continue;
        }
        hc_part(bytes, HUGE_PAGE_BYTES, (int)first, num_threads, &start, &ignored);
        hc_part(bytes, HUGE_PAGE_BYTES, (int)last - 1, num_threads, &ignored, &stop);
        if (start < stop) {
            hc_bind((char *)pages + start, stop - start, nodes.numbers[i]);
        }
    }
}

typedef struct {
    volatile char *pages;
    int64_t bytes, first, stop; /* only bytes `first` to `stop` may be written */
} touch_arguments;

static void touch_part(void *arguments, int thread, int num_threads) {
    const touch_arguments *range = arguments;
    int64_t start, stop;
    hc_part(range->bytes, HUGE_PAGE_BYTES, thread, num_threads, &start, &stop);
    start = start > range->first ? start : range->first;
    stop = stop < range->stop ? stop : range->stop;
    for (int64_t i = start; i < stop; i += PAGE_BYTES) {
        range->pages[i] = 0;
    }
}

void hc_pages_touch(void *pages, int64_t bytes, const void *own, int64_t own_bytes, hc_context *context, hc_nodes nodes) {
    if (nodes.count == 0 && context->nodes != NULL) {
        nodes = (hc_nodes){context->num_clusters, context->nodes};
    }
    hc_pages_bind(pages, bytes, context->num_threads, nodes);
    const int64_t first = (const char *)own - (char *)pages;
    touch_arguments range = {pages, bytes, first, first + own_bytes};
    hc_team_run(context->team, 0, touch_part, &range);
}
