/* DLPack tensors in blocks of a pool. */
#include <stdlib.h>

#include "array.h"
#include "hcops.h"
#include "memory/pool.h"

/* Structures of the DLPack exchange format (dlpack.h, version 0), in the layout of its specification. */
typedef struct {
    int32_t device_type, device_id;
} dl_device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_data_type;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_data_type dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed_tensor {
    dl_tensor tensor;
    void *manager_context;
    void (*deleter)(struct dl_managed_tensor *self);
} dl_managed_tensor;

#define MAX_DIMENSIONS 64 /* limit of PyTorch tensors */

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

typedef struct {
    dl_managed_tensor managed;
    hc_pool *pool;
    hc_block *memory;
    int64_t shape[];
} pool_tensor;

static void delete_tensor(dl_managed_tensor *self) {
    pool_tensor *tensor = self->manager_context;
    hc_pool_give_block(tensor->pool, tensor->memory);
    free(tensor);
}

void *hc_pool_tensor(hc_pool *pool, hc_context *context, int dtype, int num_dimensions, const int64_t *shape) {
    const int bits = dtype == HC_F64 ? 64 : dtype == HC_BF16 ? 16 : 32;
    if (!hc_has_tag(pool, HC_POOL_TAG) || !hc_is_context(context) || dtype < HC_F32 || dtype > HC_F64 || num_dimensions < 0 ||
        num_dimensions > MAX_DIMENSIONS || shape == NULL) {
        return NULL;
    }
    pool_tensor *tensor = malloc(sizeof(pool_tensor) + (size_t)num_dimensions * sizeof(int64_t));
    if (tensor == NULL) {
        return NULL;
    }
    int64_t count = 1;
    for (int i = 0; i < num_dimensions; i++) {
        tensor->shape[i] = shape[i];
        count = count < 0 ? count : hc_count(count, shape[i], 1);
    }
    tensor->pool = pool;
    tensor->memory = count < 0 ? NULL : hc_pool_take_block(&tensor->pool, context, count * bits / 8);
    if (tensor->memory == NULL) {
        free(tensor);
        return NULL;
    }
    tensor->managed = (dl_managed_tensor){
        .tensor = {.data = tensor->memory->pages,
                   .device = {DL_CPU, 0},
                   .ndim = num_dimensions,
                   .dtype = {dtype == HC_BF16 ? DL_BFLOAT : DL_FLOAT, (uint8_t)bits, 1},
                   .shape = tensor->shape},
        .manager_context = tensor,
        .deleter = delete_tensor,
    };
    return &tensor->managed;
}
