/* Memory with detection of overruns: accesses after the end fault, and writes before the start change a canary. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/cases.h"

#define CANARY_BYTES 128
#define CANARY 0xa5

static int64_t mapped_bytes(int64_t bytes, int64_t page) {
    return (bytes + CANARY_BYTES + page - 1) / page * page;
}

void *hc_guarded(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE), size = mapped_bytes(bytes, page);
    char *base = mmap(NULL, (size_t)(size + page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + size, (size_t)page, PROT_NONE) != 0) {
        return NULL;
    }
    char *data = base + size - bytes;
    memset(data - CANARY_BYTES, CANARY, CANARY_BYTES);
    return data;
}

int hc_guard_is_broken(const void *data) {
    const unsigned char *canary = (const unsigned char *)data - CANARY_BYTES;
    for (int i = 0; i < CANARY_BYTES; i++) {
        if (canary[i] != CANARY) {
            return 1;
        }
    }
    return 0;
}

void hc_unguard(void *data, int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE), size = mapped_bytes(bytes, page);
    munmap((char *)data + bytes - size, (size_t)(size + page));
}
