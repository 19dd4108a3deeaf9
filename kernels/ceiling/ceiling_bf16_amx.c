/* Tile products in registers: what the AMX unit of a core does at most with bf16. */
#include <immintrin.h>

#include "ceiling/ceiling.h"

#if !defined(__AMX_BF16__) || !defined(__AMX_TILE__)
#error "to be compiled with -mamx-tile -mamx-bf16"
#endif

#define ROWS 16
#define ROW_BYTES 64
/* 16 x 16 sums of 32 products. */
#define FLOP_PER_TILE_PRODUCT (2.0 * 16 * 16 * 32)
/* Four sums from two tiles of A and two of B: all eight tiles, the shape of a matrix product. A round has four products; a
 * product of 16 rows takes the unit 16 cycles, and its sum is ready after 52, so four are needed to fill it. */
#define PRODUCTS 4

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

double hc_ceiling_bf16_amx(int64_t rounds, const hc_ceiling_operands *operands, float *out_sink) {
    _Alignas(64) tile_configuration configuration = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        configuration.row_bytes[tile] = ROW_BYTES;
        configuration.rows[tile] = ROWS;
    }
    _Alignas(64) uint16_t operand[ROWS * ROW_BYTES / 2];
    union {
        float number;
        uint32_t bits;
    } multiplier = {.number = operands->multiplier};
    for (int i = 0; i < ROWS * ROW_BYTES / 2; i++) {
        operand[i] = (uint16_t)(multiplier.bits >> 16);
    }
    /* gcc 12 does not see that these instructions read memory. */
    __asm__ volatile("" ::"r"(&configuration), "r"(operand) : "memory");
    _tile_loadconfig(&configuration);
    _tile_loadd(4, operand, ROW_BYTES);
    _tile_loadd(5, operand, ROW_BYTES);
    _tile_loadd(6, operand, ROW_BYTES);
    _tile_loadd(7, operand, ROW_BYTES);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t round = 0; round < rounds; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _Alignas(64) float sums[ROWS * ROW_BYTES / 4];
    float total = 0;
#define GATHER(tile)                          \
    _tile_stored(tile, sums, ROW_BYTES);      \
    __asm__ volatile("" ::"r"(sums) : "memory"); \
    total += sums[0];
    GATHER(0)
    GATHER(1)
    GATHER(2)
    GATHER(3)
    _tile_release();
    *out_sink = total;
    return PRODUCTS * FLOP_PER_TILE_PRODUCT * (double)rounds;
}
