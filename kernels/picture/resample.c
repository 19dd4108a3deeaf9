/* A picture scaled along its rows, then along its columns, of which only a window is made. */
#include <stddef.h>

#include "array.h"
#include "kernels.h"

#define CHANNELS 3

/* Whether every output has its `taps` weights on pixels that are there. */
static int is_inside(int64_t count, int64_t taps, const int32_t *first, const int32_t *weights, int64_t pixels) {
    if (count <= 0 || taps <= 0 || taps > pixels || first == NULL || weights == NULL) {
        return 0;
    }
    for (int64_t i = 0; i < count; i++) {
        if (first[i] < 0 || first[i] > pixels - taps) {
            return 0;
        }
    }
    return 1;
}

/* Rows y.. of the image, `count` of them, into (CHANNELS, rows, columns): lanes are rows, so that weights are the same for all. */
static void scale_rows(const hc_kernels *kernels, int64_t y, int64_t count, int64_t rows, int64_t width, const uint8_t *image,
                       int64_t columns, int64_t taps, const int32_t *first, const int32_t *weights, uint8_t *block,
                       uint8_t *out) {
    uint8_t levels[HC_BYTES_AT_ONCE];
    for (int64_t x = 0; x < width * CHANNELS; x++) {
        for (int64_t i = 0; i < count; i++) {
            block[x * HC_BYTES_AT_ONCE + i] = image[(y + i) * width * CHANNELS + x];
        }
    }
    for (int64_t x = 0; x < columns; x++) {
        for (int64_t channel = 0; channel < CHANNELS; channel++) {
            kernels->weigh_bytes(count, taps, weights + x * taps,
                                 block + (first[x] * CHANNELS + channel) * HC_BYTES_AT_ONCE, CHANNELS * HC_BYTES_AT_ONCE,
                                 levels);
            for (int64_t i = 0; i < count; i++) {
                out[(channel * rows + y + i) * columns + x] = levels[i];
            }
        }
    }
}

int hc_resample(const char *isa, int64_t rows, int64_t width, const uint8_t *image, int64_t columns, int64_t taps_across,
                const int32_t *first_across, const int32_t *weights_across, int64_t out_rows, int64_t taps_down,
                const int32_t *first_down, const int32_t *weights_down, uint8_t *scratch, uint8_t *out) {
    int level;
    const int status = hc_isa_detect(isa, &level);
    if (status != HC_OK) {
        return status;
    }
    const hc_kernels *kernels = hc_kernels_of(level);
    if (hc_count(rows, width, CHANNELS) <= 0 || hc_count(rows, columns, CHANNELS) <= 0 || image == NULL || scratch == NULL ||
        out == NULL || !is_inside(columns, taps_across, first_across, weights_across, width) ||
        !is_inside(out_rows, taps_down, first_down, weights_down, rows)) {
        return HC_BAD_ARGUMENT;
    }
    uint8_t *block = scratch + CHANNELS * rows * columns;
    for (int64_t y = 0; y < rows; y += HC_BYTES_AT_ONCE) {
        scale_rows(kernels, y, rows - y < HC_BYTES_AT_ONCE ? rows - y : HC_BYTES_AT_ONCE, rows, width, image, columns,
                   taps_across, first_across, weights_across, block, scratch);
    }
    for (int64_t channel = 0; channel < CHANNELS; channel++) {
        for (int64_t y = 0; y < out_rows; y++) {
            kernels->weigh_bytes(columns, taps_down, weights_down + y * taps_down,
                                 scratch + (channel * rows + first_down[y]) * columns, columns,
                                 out + (channel * out_rows + y) * columns);
        }
    }
    return HC_OK;
}
