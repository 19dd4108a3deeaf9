/* Memory straight from the system, on huge pages where it grants them. Not part of the door. */
#ifndef HC_PAGES_H
#define HC_PAGES_H

#include <stdint.h>

#include "context.h"

/* `bytes` rounded up to whole huge pages. */
int64_t hc_pages_round(int64_t bytes);

/* Pages aligned to a huge page, content zero, not yet touched; bytes from hc_pages_round. NULL: refused. */
void *hc_pages_take(int64_t bytes);
void hc_pages_give(void *pages, int64_t bytes);

/* Touches every page with the team, so that no operator pays for page faults. */
void hc_pages_touch(void *pages, int64_t bytes, hc_context *context);

#endif
