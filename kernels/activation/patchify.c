/* Convert images to patches and back: a permutation of the elements, with a conversion of the type. */
#include <stddef.h>
#include <string.h>

#include "array.h"
#include "context.h"

typedef struct {
    int64_t n, c, r, s, p;
    int order, from_image;
    const void *source;
    void *target;
    int source_type, target_type;
} patches_job;

static float load(const void *p, int64_t i, int type) {
    if (type == HC_F32) {
        float value;
        memcpy(&value, (const float *)p + i, sizeof value);
        return value;
    }
    const uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void store(void *p, int64_t i, int type, float value) {
    if (type == HC_F32) {
        ((float *)p)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* Adding just under half of the last place, plus the last bit, rounds to nearest even. A nan could overflow into
     * the sign, so it is kept. */
    ((uint16_t *)p)[i] = (uint16_t)(value != value ? (bits >> 16 | 0x40u) : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void move(const patches_job *job, int64_t image_at, int64_t patch_at) {
    const int64_t from = job->from_image ? image_at : patch_at, to = job->from_image ? patch_at : image_at;
    if (job->source_type != job->target_type) {
        store(job->target, to, job->target_type, load(job->source, from, job->source_type));
    } else if (job->source_type == HC_F32) {
        ((float *)job->target)[to] = ((const float *)job->source)[from];
    } else {
        ((uint16_t *)job->target)[to] = ((const uint16_t *)job->source)[from];
    }
}

/* Move one patch. image_at and patch_at are the indices of its first element in the image and in the patches. */
static void patch(const patches_job *job, int64_t image_at, int64_t patch_at) {
    const int64_t p = job->p, c = job->c, width = job->s * p, plane = job->r * p * width;
    const int64_t channel_step = job->order == 0 ? p * p : 1, column_step = job->order == 0 ? 1 : c;
    for (int64_t channel = 0; channel < c; channel++) {
        for (int64_t row = 0; row < p; row++) {
            for (int64_t column = 0; column < p; column++) {
                move(job, image_at + channel * plane + row * width + column,
                     patch_at + channel * channel_step + (row * p + column) * column_step);
            }
        }
    }
}

/* Move the patches of one thread. The unit of work is a row of patches of an image. */
static void patches(void *arguments, int thread, int num_threads) {
    const patches_job *job = arguments;
    const int64_t p = job->p, elements = job->c * p * p, image = job->r * job->s * elements;
    int64_t start, stop;
    hc_part(job->n * job->r, 1, thread, num_threads, &start, &stop);
    for (int64_t unit = start; unit < stop; unit++) {
        const int64_t row_of_patches = unit % job->r;
        const int64_t image_at = unit / job->r * image + row_of_patches * p * job->s * p;
        for (int64_t i = 0; i < job->s; i++) {
            patch(job, image_at + i * p, (unit * job->s + i) * elements);
        }
    }
}

static int run(hc_context *context, patches_job *job) {
    const int64_t patches_of_all = hc_count(job->n, job->r, job->s), elements = hc_count(job->c, job->p, job->p);
    const int64_t count = patches_of_all < 0 || elements < 0 ? -1 : hc_count(patches_of_all, elements, 1);
    if (!hc_is_context(context) || count < 0 || (job->order != 0 && job->order != 1) ||
        !hc_is_array(job->source, count, job->source_type) || !hc_is_array(job->target, count, job->target_type)) {
        return HC_BAD_ARGUMENT;
    }
    if (count > 0) {
        hc_lock(context);
        hc_team_run(context->team, hc_threads_for(context, count), patches, job);
        hc_unlock(context);
    }
    return HC_OK;
}

int hc_patchify(hc_context *context, int64_t n, int64_t c, int64_t r, int64_t s, int64_t p, int order, const void *image,
                int image_type, void *out_patches, int out_type) {
    return run(context, &(patches_job){.n = n, .c = c, .r = r, .s = s, .p = p, .order = order, .from_image = 1,
                                       .source = image, .source_type = image_type, .target = out_patches,
                                       .target_type = out_type});
}

int hc_unpatchify(hc_context *context, int64_t n, int64_t c, int64_t r, int64_t s, int64_t p, int order, const void *patches,
                  int patches_type, void *out_image, int out_type) {
    return run(context, &(patches_job){.n = n, .c = c, .r = r, .s = s, .p = p, .order = order, .from_image = 0,
                                       .source = patches, .source_type = patches_type, .target = out_image,
                                       .target_type = out_type});
}
