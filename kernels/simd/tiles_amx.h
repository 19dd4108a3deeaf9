/* The tile unit as every AMX kernel uses it: its operations, and the one configuration. The program of tests emulates them where
 * the CPU has no such unit (HC_EMULATED_TILES, CMakeLists.txt); no library that is installed does. */
#ifndef HC_TILES_AMX_H
#define HC_TILES_AMX_H

#include <stdint.h>

#ifdef HC_EMULATED_TILES
#include "test/host/emulated_tiles.h"
#else
#include <immintrin.h>

/* Numbers of tiles are literals: they are part of the instruction. Of the loads, the second asks the caches not to keep the
 * lines. sum += a b, of pairs of bf16. */
#define hc_tiles_load_configuration(configuration) _tile_loadconfig(configuration)
#define hc_tiles_release() _tile_release()
#define hc_tile_zero(tile) _tile_zero(tile)
#define hc_tile_load(tile, from, stride) _tile_loadd(tile, from, stride)
#define hc_tile_load_once(tile, from, stride) _tile_stream_loadd(tile, from, stride)
#define hc_tile_store(tile, to, stride) _tile_stored(tile, to, stride)
#define hc_tile_multiply_bf16(sum, a, b) _tile_dpbf16ps(sum, a, b)
#endif

/* The loads of gcc 12 do not say that they read memory: what this function has just written is made sure of here. */
#define HC_BEFORE_TILES_READ(memory) __asm__ volatile("" ::"r"(memory) : "memory")

/* All tiles 16 rows of 64 bytes: panels are padded, so smaller ones are never needed. hc_tiles_release() ends it. */
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
