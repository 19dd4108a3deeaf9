/* mmap and madvise: blocks aligned to huge pages. */
#define _GNU_SOURCE
#include "pages.h"

#include <stddef.h>
#include <sys/mman.h>

/* Of x86-64, and of Arm with 4 KB base pages; where huge pages are larger the alignment is only a hint less. */
#define HUGE_PAGE_BYTES ((int64_t)2 << 20)
#define PAGE_BYTES 4096

int64_t hc_pages_round(int64_t bytes) {
    return (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

void *hc_pages_take(int64_t bytes) {
    /* One huge page more than asked for, so that an aligned part lies inside; what surrounds it is returned. */
    const size_t whole = (size_t)(bytes + HUGE_PAGE_BYTES);
    char *start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
    madvise(aligned, (size_t)bytes, MADV_HUGEPAGE); /* refused where huge pages are off: then ordinary pages serve */
#endif
    return aligned;
}

void hc_pages_give(void *pages, int64_t bytes) {
    if (pages != NULL) {
        munmap(pages, (size_t)bytes);
    }
}

typedef struct {
    volatile char *pages;
    int64_t bytes;
} touch_arguments;

static void touch_part(void *arguments, int thread, int num_threads) {
    const touch_arguments *range = arguments;
    int64_t start, stop;
    hc_part(range->bytes, HUGE_PAGE_BYTES, thread, num_threads, &start, &stop);
    for (int64_t i = start; i < stop; i += PAGE_BYTES) {
        range->pages[i] = 0;
    }
}

void hc_pages_touch(void *pages, int64_t bytes, hc_context *context) {
    touch_arguments range = {pages, bytes};
    hc_team_run(context->team, 0, touch_part, &range);
}
