/* Runs of the emulated tile unit: a product of tiles of any size, and misuse that must end the program. */
#include "test/cases.h"

#ifdef HC_EMULATED_TILES
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/host/emulated_tiles.h"

#define TILE_BYTES 1024
#define ROW_BYTES 64

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

/* Tile 0 has rows x columns sums, tile 1 has rows x pairs, tile 2 has pairs x columns. */
static tile_configuration configuration_of(int rows, int pairs, int columns) {
    return (tile_configuration){.palette = 1,
                                .rows = {(uint8_t)rows, (uint8_t)rows, (uint8_t)pairs},
                                .row_bytes = {(uint16_t)(4 * columns), (uint16_t)(4 * pairs), (uint16_t)(4 * columns)}};
}

static void configure(int rows, int pairs, int columns) {
    const tile_configuration configuration = configuration_of(rows, pairs, columns);
    hc_tiles_load_configuration(&configuration);
}

/* Read sums, A and B from standard input, 16 rows of 64 bytes each, and write the sums after the product to standard
 * output. Return 0, or 1 if rounding control or exceptions have changed, or the unit is still in use. */
static int multiply(int rows, int pairs, int columns) {
    char tiles[3][TILE_BYTES];
    if (fread(tiles, TILE_BYTES, 3, stdin) != 3) {
        return 1;
    }
    configure(rows, pairs, columns);
    hc_tile_load(0, tiles[0], ROW_BYTES);
    hc_tile_load(1, tiles[1], ROW_BYTES);
    hc_tile_load_once(2, tiles[2], ROW_BYTES);
    const unsigned before = _MM_MASK_MASK | _MM_ROUND_UP, at_first = _mm_getcsr();
    _mm_setcsr(before);
    hc_tile_multiply_bf16(0, 1, 2);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(at_first);
    const int in_use = hc_tiles_in_use();
    hc_tile_store(0, tiles[0], ROW_BYTES);
    hc_tiles_release();
    fwrite(tiles[0], TILE_BYTES, 1, stdout);
    return after != before || in_use != 1 || hc_tiles_in_use() != 0;
}

static void *zero_a_tile(void *nothing) {
    hc_tile_zero(0);
    return nothing;
}

static void use_in_another_thread(void) {
    pthread_t thread;
    configure(16, 16, 16);
    if (pthread_create(&thread, NULL, zero_a_tile, NULL) == 0) {
        pthread_join(thread, NULL);
    }
}

static void configure_tile(int palette, int start_row, int tile, int rows, int row_bytes) {
    tile_configuration configuration = configuration_of(16, 16, 16);
    configuration.palette = (uint8_t)palette;
    configuration.start_row = (uint8_t)start_row;
    configuration.rows[tile] = (uint8_t)rows;
    configuration.row_bytes[tile] = (uint16_t)row_bytes;
    hc_tiles_load_configuration(&configuration);
}

/* Multiply into sums of the given rows and bytes per row, with complete operands. */
static void multiply_into(int rows, int row_bytes) {
    configure_tile(1, 0, 0, rows, row_bytes);
    hc_tile_multiply_bf16(0, 1, 2);
}

static int misuse(const char *what) {
    char memory[TILE_BYTES] = {0};
    const int is_configured = strcmp(what, "unconfigured") != 0;
    if (is_configured) {
        configure(16, 16, 16);
    }
    if (strcmp(what, "unconfigured") == 0) {
        hc_tile_load(0, memory, ROW_BYTES);
    } else if (strcmp(what, "released") == 0) {
        hc_tiles_release();
        hc_tile_store(0, memory, ROW_BYTES);
    } else if (strcmp(what, "another thread") == 0) {
        use_in_another_thread();
    } else if (strcmp(what, "no such tile") == 0) {
        hc_tile_load(8, memory, ROW_BYTES);
    } else if (strcmp(what, "tile left out") == 0) {
        hc_tile_store(3, memory, ROW_BYTES);
    } else if (strcmp(what, "same tiles") == 0) {
        hc_tile_multiply_bf16(0, 1, 1);
    } else if (strcmp(what, "rows differ") == 0) {
        multiply_into(15, 64);
    } else if (strcmp(what, "columns differ") == 0) {
        multiply_into(16, 60);
    } else if (strcmp(what, "depths differ") == 0) {
        configure_tile(1, 0, 1, 16, 60);
        hc_tile_multiply_bf16(0, 1, 2);
    } else if (strcmp(what, "palette") == 0) {
        configure_tile(2, 0, 0, 16, 64);
    } else if (strcmp(what, "start row") == 0) {
        configure_tile(1, 1, 0, 16, 64);
    } else if (strcmp(what, "ninth tile") == 0) {
        configure_tile(1, 0, 8, 16, 64);
    } else if (strcmp(what, "tall") == 0) {
        configure_tile(1, 0, 3, 17, 64);
    } else if (strcmp(what, "wide") == 0) {
        configure_tile(1, 0, 3, 16, 68);
    } else if (strcmp(what, "half a number") == 0) {
        configure_tile(1, 0, 3, 16, 62);
    } else if (strcmp(what, "no rows") == 0) {
        configure_tile(1, 0, 3, 0, 64);
    }
    return 1; /* no misuse was detected */
}

int hc_test_tiles(int num_words, char **words) {
    if (num_words == 3) {
        return multiply(atoi(words[0]), atoi(words[1]), atoi(words[2]));
    }
    return num_words == 1 ? misuse(words[0]) : -1;
}

#else
int hc_test_tiles(int num_words, char **words) {
    (void)num_words;
    (void)words;
    return -1;
}
#endif
