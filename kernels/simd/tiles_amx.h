/* The configuration of the tile unit that every AMX kernel uses. */
#ifndef HC_TILES_AMX_H
#define HC_TILES_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* All tiles 16 rows of 64 bytes: panels are padded, so smaller ones are never needed. _tile_release() ends it. */
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
    /* _tile_loadconfig of gcc 12 does not say that it reads memory. */
    __asm__ volatile("" ::"r"(&configuration) : "memory");
    _tile_loadconfig(&configuration);
}

#endif
