/* Functions of a pool for tensors over its blocks. Internal. */
#ifndef HC_POOL_H
#define HC_POOL_H

#include "memory/arena.h"

/* A block of `bytes` or more, from `*pool` or, where that refuses, from those below it; `*pool` is then the one that
 * it belongs to. NULL: the last one refused. */
hc_block *hc_pool_take_block(hc_pool **pool, hc_context *context, int64_t bytes);

/* Gives it back to the pool that it belongs to; the last block of a pool that was released ends the pool. */
void hc_pool_give_block(hc_pool *pool, hc_block *block);

#endif
