/* Conversions between the vector kernels and the matrix kernels of attention: panels of B, and the transpose of blocks
 * to rows of a tensor. */
#include <math.h>
#include <string.h>

#include "attention/attention_work.h"

#define LINE_BYTES 64

void hc_prefetch_add(const hc_attention *work, hc_attention_prefetch *prefetch, const void *first_row, int type,
                     int64_t rows, int64_t stride) {
    const int64_t offset = (int64_t)((uintptr_t)first_row % LINE_BYTES);
    const int64_t lines = hc_blocks(offset + work->k * hc_type_bytes(type), LINE_BYTES);
    prefetch->runs[prefetch->num_runs++] = (hc_gemm_prefetch){.next = (const char *)first_row - offset,
                                                              .left = lines,
                                                              .lines = lines,
                                                              .jump = stride * hc_type_bytes(type) - lines * LINE_BYTES,
                                                              .remaining = rows * lines};
    prefetch->lines += rows * lines;
}

/* Prefetch `lines` lines in one loop, for kernels that cannot prefetch during a product. The loop may stall on earlier
 * prefetches. */
static void prefetch_lines(hc_gemm_prefetch *run, int64_t lines) {
    for (int64_t i = 0; i < lines; i++) {
        __builtin_prefetch(run->next, 0, 2);
        run->next += LINE_BYTES;
        if (--run->left == 0) {
            run->left = run->lines;
            run->next += run->jump;
        }
    }
    run->remaining -= lines;
}

/* Return the run to prefetch next, with the number of lines due for a product of `steps` multiply-adds, or NULL if no
 * line is due. */
static hc_gemm_prefetch *next_run(hc_attention_prefetch *prefetch, double steps) {
    prefetch->due += prefetch->lines_per_step * steps;
    while (prefetch->current < prefetch->num_runs && prefetch->runs[prefetch->current].remaining == 0) {
        prefetch->current++;
    }
    if (prefetch->current == prefetch->num_runs || prefetch->due < 1.0) {
        return NULL;
    }
    hc_gemm_prefetch *run = &prefetch->runs[prefetch->current];
    run->share = hc_min_i64((int64_t)prefetch->due, run->remaining);
    prefetch->due -= (double)run->share;
    return run;
}

void hc_multiply(const hc_attention *work, hc_attention_prefetch *prefetch, int64_t m, int64_t n, int64_t k,
                 const void *a_panels, const void *b_panels, float *c, int64_t ldc, int add) {
    const hc_gemm_kernel *gemm = work->gemm;
    if (gemm->near_block != NULL) {
        const hc_near_block block = {.m = m, .n = n, .k = k, .a_panels = a_panels, .b_panels = b_panels,
                                     .a_panel_bytes = hc_panels_a_bytes(gemm, gemm->mr(), k),
                                     .b_panel_bytes = hc_panels_b_bytes(gemm, k, gemm->nr()), .c = c, .ldc = ldc, .add = add};
        hc_multiply_part(work, prefetch, &block);
        return;
    }
    hc_gemm_prefetch *run = next_run(prefetch, (double)(m * n * k));
    if (run != NULL && gemm->block_prefetch != NULL) {
        gemm->block_prefetch(m, n, k, a_panels, b_panels, c, ldc, NULL, add, run);
        prefetch_lines(run, run->share); /* lines that exceed the length of a small block */
        return;
    }
    if (run != NULL) {
        prefetch_lines(run, run->share);
    }
    gemm->block(m, n, k, a_panels, b_panels, c, ldc, NULL, add);
}

void hc_multiply_heads(const hc_attention *work, hc_attention_prefetch *prefetch, int64_t m, int64_t n,
                       const void *a_panels, const void *b_panels, float *c, int64_t ldc) {
    const hc_gemm_kernel *gemm = work->gemm;
    if (!work->tail) {
        hc_multiply(work, prefetch, m, n, work->k, a_panels, b_panels, c, ldc, 0);
        return;
    }
    const hc_near_block block = {.m = m, .n = n, .k = work->k, .a_panels = a_panels, .b_panels = b_panels,
                                 .a_panel_bytes = hc_panels_a_bytes(gemm, gemm->mr(), work->k),
                                 .b_panel_bytes = hc_panels_b_bytes(gemm, work->k, gemm->nr()), .c = c, .ldc = ldc,
                                 .tail = 1};
    hc_multiply_part(work, prefetch, &block);
}

void hc_multiply_part(const hc_attention *work, hc_attention_prefetch *prefetch, const hc_near_block *block) {
    hc_near_block request = *block;
    request.prefetch = next_run(prefetch, (double)(block->m * block->n * block->k));
    work->gemm->near_block(&request);
    if (request.prefetch != NULL) {
        prefetch_lines(request.prefetch, request.prefetch->share);
    }
}

int64_t hc_scores_bytes(const hc_attention *work) {
    return hc_round_up(work->chunk, work->gemm->kr) * work->width * 4;
}

int64_t hc_packed_bytes(const hc_attention *work) {
    return hc_panels_b_bytes(work->gemm, work->chunk, work->nr);
}

int64_t hc_transposed_bytes(const hc_attention *work) {
    return hc_panels_b_bytes(work->kernels->gemm_f32, work->nr, work->k);
}

int64_t hc_panel_bytes(const hc_attention *work, int64_t rows) {
    return hc_panels_b_bytes(work->gemm, rows, work->gemm->nr());
}

int64_t hc_written_bytes(const hc_attention *work) {
    return work->panel == HC_PANEL_PARTS ? hc_panels_b_bytes(work->gemm, work->part, work->nr) : hc_scores_bytes(work);
}

int64_t hc_row_offset(const hc_attention *work, int64_t row) {
    if (work->panel == HC_PANEL_PARTS) {
        return 0; /* panels contain only the rows of one part */
    }
    /* Pairs of rows halve the number of rows. Their length in bytes is the same. */
    return (work->panel == HC_PANEL_PAIRS ? row / 2 : row) * work->width * 4;
}

/* Fill the rows after the last row with zeros, up to the padded depth of a panel. */
static void pad_parts(const hc_attention *work, int64_t rows, char *block) {
    const int64_t kr = work->gemm->kr, nr = work->gemm->nr(), parts = work->gemm->element_bytes / 2;
    const int64_t pair_bytes = nr * 4, part_bytes = kr / 2 * pair_bytes, panel_bytes = hc_panel_bytes(work, rows);
    const int64_t pairs = (rows % kr + 1) / 2;
    for (int64_t panel = 0; panel < work->nr / nr && pairs > 0; panel++) {
        char *step = block + panel * panel_bytes + rows / kr * parts * part_bytes;
        for (int64_t part = 0; part < parts; part++) {
            memset(step + part * part_bytes + pairs * pair_bytes, 0, (size_t)(part_bytes - pairs * pair_bytes));
        }
    }
}

const void *hc_finish_panel(const hc_attention *work, int64_t rows, void *block, void *packed) {
    const hc_gemm_kernel *gemm = work->gemm;
    if (work->packs) {
        const hc_matrix view = {block, work->width, 1, HC_F32};
        gemm->pack_b(rows, work->nr, &view, packed);
        return packed;
    }
    if (work->panel == HC_PANEL_PARTS) {
        pad_parts(work, rows, block);
        return block;
    }
    /* Fill the padded depth with zeros. The vector kernels padded the last group. */
    const int64_t group_bytes = gemm->b_group * gemm->nr() * gemm->element_bytes;
    const int64_t written = hc_blocks(rows, gemm->b_group), padded = hc_round_up(rows, gemm->kr) / gemm->b_group;
    memset((char *)block + written * group_bytes, 0, (size_t)((padded - written) * group_bytes));
    return block;
}

void hc_store_transposed(const hc_attention *work, int64_t rows, float factor, float *block, float *buffer, hc_matrix out) {
    const hc_gemm_kernel *f32 = work->kernels->gemm_f32;
    const int64_t columns = work->k, out_stride = out.row_stride;
    if (f32->b_group != 1) {
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < columns; j++) {
                buffer[i * columns + j] = block[j * work->width + i];
            }
        }
        work->kernels->attention_store(rows, columns, factor, buffer, columns, out.data, out.dtype, out_stride);
        return;
    }
    /* Packing fp32 panels of B of depth `rows` is an optimized transpose: a panel consists of rows of nr elements. */
    const hc_matrix view = {block, 1, work->width, HC_F32};
    const int64_t nr = f32->nr(), panel = nr * hc_round_up(rows, f32->kr);
    f32->pack_b(rows, columns, &view, buffer);
    for (int64_t j = 0; j < columns; j += nr) {
        work->kernels->attention_store(rows, hc_min_i64(nr, columns - j), factor, buffer + j / nr * panel, nr,
                                       (char *)out.data + j * hc_type_bytes(out.dtype), out.dtype, out_stride);
    }
}

void hc_hide_later_keys(const hc_attention *work, int64_t rows, int64_t columns, int64_t first_query, int64_t first_key,
                        float *scores) {
    for (int64_t i = 0; i < rows; i++) {
        /* Forward: queries before first_key + i do not attend to this key. Backward: query first_query + i does not
         * attend to later keys. */
        const int64_t from = work->is_forward ? 0 : first_query + i + 1 - first_key;
        const int64_t to = work->is_forward ? hc_min_i64(columns, first_key + i - first_query) : columns;
        for (int64_t j = from < 0 ? 0 : from; j < to; j++) {
            scores[i * work->width + j] = -INFINITY;
        }
    }
}
