/* Tile products in registers: the peak bf16 rate of the AMX unit of a core. */
#if !defined(__AMX_BF16__) || !defined(__AMX_TILE__)
#error "to be compiled with -mamx-tile -mamx-bf16"
#endif

#include "ceiling/ceiling.h"
#include "simd/tiles_amx.h"

#define ROWS 16
#define ROW_BYTES 64
/* A tile product adds 32 products to each of 16 x 16 sums. */
#define FLOP_PER_TILE_PRODUCT (2.0 * 16 * 16 * 32)
/* Tile products per round. Four sums from two tiles of A and two tiles of B use all eight tiles, as a matrix product
 * does. A product of 16 rows occupies the unit for 16 cycles and has a latency of 52 cycles, so four products are
 * needed to fill the unit. */
#define PRODUCTS 4

double hc_ceiling_bf16_amx(int64_t rounds, const hc_ceiling_operands *operands, float *out_sink) {
    _Alignas(64) uint16_t operand[ROWS * ROW_BYTES / 2];
    union {
        float number;
        uint32_t bits;
    } multiplier = {.number = operands->multiplier};
    for (int i = 0; i < ROWS * ROW_BYTES / 2; i++) {
        operand[i] = (uint16_t)(multiplier.bits >> 16);
    }
    HC_BEFORE_TILES_READ(operand);
    hc_configure_tiles();
    hc_tile_load(4, operand, ROW_BYTES);
    hc_tile_load(5, operand, ROW_BYTES);
    hc_tile_load(6, operand, ROW_BYTES);
    hc_tile_load(7, operand, ROW_BYTES);
    hc_tile_zero(0);
    hc_tile_zero(1);
    hc_tile_zero(2);
    hc_tile_zero(3);
    for (int64_t round = 0; round < rounds; round++) {
        hc_tile_multiply_bf16(0, 4, 6);
        hc_tile_multiply_bf16(1, 4, 7);
        hc_tile_multiply_bf16(2, 5, 6);
        hc_tile_multiply_bf16(3, 5, 7);
    }
    _Alignas(64) float sums[ROWS * ROW_BYTES / 4];
    float total = 0;
#define GATHER(tile) \
    hc_tile_store(tile, sums, ROW_BYTES); \
    __asm__ volatile("" ::"r"(sums) : "memory"); \
    total += sums[0];
    GATHER(0)
    GATHER(1)
    GATHER(2)
    GATHER(3)
    hc_tiles_release();
    *out_sink = total;
    return PRODUCTS * FLOP_PER_TILE_PRODUCT * (double)rounds;
}
