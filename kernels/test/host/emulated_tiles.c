/* The tile unit AMX with bf16 in C, for tests on CPUs with AVX-512 and without visible tiles. It follows Intel's
 * software developer's manual (LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS): palette 1, eight tiles of at
 * most 16 rows of 64 bytes. */
#include "test/host/emulated_tiles.h"

#include <immintrin.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILES 8
#define MAX_ROWS 16
#define MAX_ROW_BYTES 64

/* Operand of LDTILECFG. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

typedef struct {
    int is_configured;
    int rows[TILES], row_bytes[TILES];
    _Alignas(64) uint8_t bytes[TILES][MAX_ROWS][MAX_ROW_BYTES];
} tile_unit;

static _Thread_local tile_unit unit;
static int in_use;

/* End the program where the CPU would raise an exception. */
__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("emulated tiles: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

static void count_use(int is_configured) {
    __atomic_fetch_add(&in_use, is_configured - unit.is_configured, __ATOMIC_RELAXED);
    unit.is_configured = is_configured;
}

static void check_configuration(const tile_configuration *requested) {
    if (requested->palette != 1 || requested->start_row != 0) {
        die("configured with palette %d and start row %d, expected 1 and 0", requested->palette, requested->start_row);
    }
    for (size_t i = 0; i < sizeof(requested->reserved); i++) {
        if (requested->reserved[i] != 0) {
            die("configured with reserved byte %zu not zero", i);
        }
    }
    for (int i = 0; i < 16; i++) {
        const int rows = requested->rows[i], row_bytes = requested->row_bytes[i];
        if (i >= TILES && (rows != 0 || row_bytes != 0)) {
            die("configured tile %d, but there are %d", i, TILES);
        }
        if (rows > MAX_ROWS || row_bytes > MAX_ROW_BYTES || row_bytes % 4 != 0 || (rows == 0) != (row_bytes == 0)) {
            die("configured tile %d with %d rows of %d bytes, expected at most %d of %d, a multiple of 4", i, rows, row_bytes,
                MAX_ROWS, MAX_ROW_BYTES);
        }
    }
}

void hc_tiles_load_configuration(const void *configuration) {
    tile_configuration requested;
    memcpy(&requested, configuration, sizeof(requested));
    check_configuration(&requested);
    count_use(1);
    for (int i = 0; i < TILES; i++) {
        unit.rows[i] = requested.rows[i];
        unit.row_bytes[i] = requested.row_bytes[i];
    }
    memset(unit.bytes, 0, sizeof(unit.bytes));
}

void hc_tiles_release(void) {
    count_use(0);
    memset(unit.bytes, 0, sizeof(unit.bytes));
}

static void check_tile(const char *operation, int tile) {
    if (!unit.is_configured) {
        die("%s of tile %d by a thread that has not configured its tiles, or released them", operation, tile);
    }
    if (tile < 0 || tile >= TILES || unit.rows[tile] == 0) {
        die("%s of tile %d, which is not configured", operation, tile);
    }
}

void hc_tile_zero(int tile) {
    check_tile("zeroing", tile);
    memset(unit.bytes[tile], 0, sizeof(unit.bytes[tile]));
}

void hc_tile_load(int tile, const void *from, int64_t stride) {
    check_tile("a load", tile);
    memset(unit.bytes[tile], 0, sizeof(unit.bytes[tile]));
    for (int row = 0; row < unit.rows[tile]; row++) {
        memcpy(unit.bytes[tile][row], (const char *)from + row * stride, (size_t)unit.row_bytes[tile]);
    }
}

void hc_tile_load_once(int tile, const void *from, int64_t stride) {
    hc_tile_load(tile, from, stride);
}

void hc_tile_store(int tile, void *to, int64_t stride) {
    check_tile("a store", tile);
    for (int row = 0; row < unit.rows[tile]; row++) {
        memcpy((char *)to + row * stride, unit.bytes[tile][row], (size_t)unit.row_bytes[tile]);
    }
}

static void check_product(int sum, int a, int b) {
    check_tile("a product", sum);
    check_tile("a product", a);
    check_tile("a product", b);
    if (sum == a || sum == b || a == b) {
        die("a product of tiles %d, %d and %d, which must differ", sum, a, b);
    }
    if (unit.rows[sum] != unit.rows[a] || unit.row_bytes[sum] != unit.row_bytes[b] || unit.row_bytes[a] != 4 * unit.rows[b]) {
        die("a product of %d rows of %d bytes and %d of %d into %d of %d", unit.rows[a], unit.row_bytes[a], unit.rows[b],
            unit.row_bytes[b], unit.rows[sum], unit.row_bytes[sum]);
    }
}

/* Set MXCSR. Arithmetic on data that is read from memory after a call, and written before the next, follows it. */
static void set_control(unsigned mxcsr) {
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(mxcsr);
    __asm__ volatile("" ::: "memory");
}

/* Products of the first elements of each pair are summed in one chain of FMAs, products of the second elements in
 * another. Both sums are added, and the result is added to the tile. Each step rounds to nearest, reads denormals as
 * zero and flushes them, independent of MXCSR, and raises no exception. Rows and lanes that are not configured
 * contain zeros. */
void hc_tile_multiply_bf16(int sum, int a, int b) {
    check_product(sum, a, b);
    const unsigned before = _mm_getcsr();
    const __m512i second = _mm512_set1_epi32((int)0xffff0000u);
    set_control(_MM_MASK_MASK | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON | _MM_ROUND_NEAREST);
    for (int row = 0; row < unit.rows[sum]; row++) {
        __m512 sums0 = _mm512_setzero_ps(), sums1 = sums0;
        for (int pair = 0; pair < unit.rows[b]; pair++) {
            uint32_t bits;
            memcpy(&bits, unit.bytes[a][row] + 4 * pair, sizeof(bits));
            const __m512i x = _mm512_set1_epi32((int)bits), y = _mm512_load_si512(unit.bytes[b][pair]);
            const __m512 x0 = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), y0 = _mm512_castsi512_ps(_mm512_slli_epi32(y, 16));
            const __m512 x1 = _mm512_castsi512_ps(_mm512_and_si512(x, second));
            const __m512 y1 = _mm512_castsi512_ps(_mm512_and_si512(y, second));
            sums0 = _mm512_fmadd_ps(x0, y0, sums0);
            sums1 = _mm512_fmadd_ps(x1, y1, sums1);
        }
        const __m512 old = _mm512_load_ps(unit.bytes[sum][row]);
        const __mmask16 lanes = (__mmask16)((1u << unit.row_bytes[sum] / 4) - 1u);
        _mm512_store_ps(unit.bytes[sum][row], _mm512_maskz_add_ps(lanes, old, _mm512_add_ps(sums0, sums1)));
    }
    set_control(before);
}

int hc_tiles_in_use(void) {
    return __atomic_load_n(&in_use, __ATOMIC_RELAXED);
}
