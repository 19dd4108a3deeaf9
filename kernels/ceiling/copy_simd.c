/* Copy at memory bandwidth, with non-temporal stores to several pages alternately. */
#include <stdint.h>
#include <string.h>

#include "ceiling/ceiling.h"
#include "simd/simd.h"

#if defined(HC_TARGET_AVX512)
#include <immintrin.h>
#define VECTOR_BYTES 64
#define STREAM(target, source) _mm512_stream_si512((void *)(target), _mm512_loadu_si512((const void *)(source)))
#elif defined(HC_TARGET_AVX2)
#include <immintrin.h>
#define VECTOR_BYTES 32
#define STREAM(target, source) _mm256_stream_si256((__m256i *)(target), _mm256_loadu_si256((const __m256i *)(source)))
#elif defined(__SSE2__)
#include <emmintrin.h>
#define VECTOR_BYTES 16
#define STREAM(target, source) _mm_stream_si128((__m128i *)(target), _mm_loadu_si128((const __m128i *)(source)))
#endif

#ifdef STREAM
/* Number of address streams that are written alternately, because one stream leaves memory banks idle. Bandwidth (read
 * and written) of two cores of an Intel server with AMX, copying 256 MB to 256 MB: memcpy 45 GB/s, ordinary stores 27
 * GB/s, one non-temporal stream 38 GB/s, four streams alternating every 256 bytes 50 GB/s. Eight streams, intervals of
 * 512 bytes and distances of 16 KB to 1 MB are not faster. */
#define STREAMS 4
#define TURN_BYTES 256
#define DISTANCE_BYTES (64 << 10)
#define LINE_BYTES 64

void HC_NAME(copy)(int64_t bytes, const void *source, void *out_target) {
    const char *from = source;
    char *to = out_target;
    const int64_t before = (int64_t)(-(uintptr_t)to % LINE_BYTES);
    const int64_t head = before < bytes ? before : bytes;
    memcpy(to, from, (size_t)head);
    int64_t done = head;
    for (; done + STREAMS * DISTANCE_BYTES <= bytes; done += STREAMS * DISTANCE_BYTES) {
        for (int64_t turn = 0; turn < DISTANCE_BYTES; turn += TURN_BYTES) {
            for (int64_t stream = 0; stream < STREAMS; stream++) {
                const int64_t start = done + stream * DISTANCE_BYTES + turn;
                for (int64_t i = start; i < start + TURN_BYTES; i += VECTOR_BYTES) {
                    STREAM(to + i, from + i);
                }
            }
        }
    }
    for (; done + LINE_BYTES <= bytes; done += LINE_BYTES) {
        for (int64_t i = done; i < done + LINE_BYTES; i += VECTOR_BYTES) {
            STREAM(to + i, from + i);
        }
    }
    memcpy(to + done, from + done, (size_t)(bytes - done));
    _mm_sfence(); /* the stores must be in memory before another thread reads */
}
#else
/* On other targets the C library has the fastest copy. */
void HC_NAME(copy)(int64_t bytes, const void *source, void *out_target) {
    memcpy(out_target, source, (size_t)bytes);
}
#endif
