/* The operations of simd/tiles_amx.h on a tile unit in C: equal to Intel's AMX bit for bit. The program ends with a
 * message if the CPU would raise an exception. Each thread has a separate unit. */
#ifndef HC_EMULATED_TILES_H
#define HC_EMULATED_TILES_H

#include <stdint.h>

void hc_tiles_load_configuration(const void *configuration);
void hc_tiles_release(void);
void hc_tile_zero(int tile);
void hc_tile_load(int tile, const void *from, int64_t stride);
void hc_tile_load_once(int tile, const void *from, int64_t stride);
void hc_tile_store(int tile, void *to, int64_t stride);
void hc_tile_multiply_bf16(int sum, int a, int b);

/* Threads with a configured unit. */
int hc_tiles_in_use(void);

#endif
