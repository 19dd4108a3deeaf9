/* Functions of a pool for tensors in its blocks. Internal. */
#ifndef HC_POOL_H
#define HC_POOL_H

#include "memory/arena.h"

/* Return a block of at least `bytes` from `*pool` or, if that refuses, from the next pools. `*pool` is then the pool
 * that owns the block. NULL if all pools refused. */
hc_block *hc_pool_take_block(hc_pool **pool, hc_context *context, int64_t bytes);

/* Return a block to the pool that owns it. The last block of a released pool ends the pool. */
void hc_pool_give_block(hc_pool *pool, hc_block *block);

#endif
