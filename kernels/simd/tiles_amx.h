/* Interface of the AMX kernels to the tile unit: its operations, and their common configuration. The test program
 * emulates the unit on CPUs without it (HC_EMULATED_TILES, CMakeLists.txt). Installed libraries never do. */
#ifndef HC_TILES_AMX_H
#define HC_TILES_AMX_H

#include <stdint.h>

#ifdef HC_EMULATED_TILES
#include "test/host/emulated_tiles.h"
#else
#include <immintrin.h>

/* Tile numbers are literals, because they are part of the instruction. hc_tile_load_once is a load with a non-temporal
 * hint. hc_tile_multiply_bf16 computes sum += a b for pairs of bf16. */
#define hc_tiles_load_configuration(configuration) _tile_loadconfig(configuration)
#define hc_tiles_release() _tile_release()
#define hc_tile_zero(tile) _tile_zero(tile)
#define hc_tile_load(tile, from, stride) _tile_loadd(tile, from, stride)
#define hc_tile_load_once(tile, from, stride) _tile_stream_loadd(tile, from, stride)
#define hc_tile_store(tile, to, stride) _tile_stored(tile, to, stride)
#define hc_tile_multiply_bf16(sum, a, b) _tile_dpbf16ps(sum, a, b)
#endif

/* Force preceding stores of this function to memory. The tile loads of gcc 12 do not declare that they read memory. */
#define HC_BEFORE_TILES_READ(memory) __asm__ volatile("" ::"r"(memory) : "memory")

/* Configure all tiles with 16 rows of 64 bytes. Panels are padded, so smaller tiles are never needed.
 * hc_tiles_release() ends the configuration. */
static inline void hc_configure_tiles(void) {
    _Alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } configuration = {.palette = 1};
    for (int tile = 0; tile < 8; ++tile) {
        configuration.rows[tile] = 16;
        configuration.row_bytes[tile] = 64;
    }
    HC_BEFORE_TILES_READ(&configuration);
    hc_tiles_load_configuration(&configuration);
}

#endif
