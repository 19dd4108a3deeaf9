/* torch's allocator of CPU memory, switched for each thread to a pool of the C kernels: `set MemType` of Algorithm 1.
 *
 * Built for one version of torch, whose headers it includes, and loaded by ctypes with this version only (allocator.py). The kernels
 * do not depend on torch: this file receives their function that creates DLPack tensors (hc_pool_tensor). The previous allocator
 * serves a request if the mode is off, the request is small, or the pool and all lower pools are full. */
#include <ATen/dlpack.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#define DOOR extern "C" __attribute__((visibility("default")))

namespace {

/* hc_pool_tensor: pool, context, type of the elements, number of dimensions, shape. */
using make_tensor = void *(*)(void *, void *, int, int, const int64_t *);

constexpr int FLOAT32 = 0; /* HC_F32 */

struct mode {
    void *pool; /* nullptr: off */
    void *context;
};

thread_local mode current = {nullptr, nullptr};

/* Blocks held by torch, by address. As in torch's allocator, torch's context of a block is its address, which raw_allocate and
 * copy-on-write require. The table and the allocator are never destroyed, because tensors may outlive static objects. */
struct block_table {
    std::mutex lock;
    std::unordered_map<void *, DLManagedTensor *> blocks;
};

block_table &table() {
    static auto *one = new block_table;
    return *one;
}

std::atomic<int64_t> num_served{0}, served_bytes{0}, num_refused{0}, refused_bytes{0}, live_bytes{0};

/* Removes a block from the table; returns nullptr for an address of another allocator. */
DLManagedTensor *forget(void *data) {
    std::lock_guard<std::mutex> held(table().lock);
    const auto found = table().blocks.find(data);
    if (found == table().blocks.end()) {
        return nullptr;
    }
    DLManagedTensor *tensor = found->second;
    table().blocks.erase(found);
    return tensor;
}

void give(void *data);

class pool_allocator final : public c10::Allocator {
public:
    c10::Allocator *before = nullptr;
    make_tensor make = nullptr;
    size_t floor_bytes = 0;

    c10::DataPtr allocate(size_t bytes) override {
        void *data = current.pool == nullptr || bytes < floor_bytes ? nullptr : take(bytes);
        return data == nullptr ? before->allocate(bytes) : c10::DataPtr(data, data, give, c10::Device(c10::kCPU));
    }

    c10::DeleterFnPtr raw_deleter() const override {
        return give;
    }

    void copy_data(void *target, const void *source, size_t bytes) const override {
        before->copy_data(target, source, bytes);
    }

    static pool_allocator &only() {
        static auto *one = new pool_allocator;
        return *one;
    }

private:
    void *take(size_t bytes) {
        const int64_t count = (int64_t)((bytes + sizeof(float) - 1) / sizeof(float));
        auto *tensor = (DLManagedTensor *)make(current.pool, current.context, FLOAT32, 1, &count);
        if (tensor == nullptr) {
            num_refused++, refused_bytes += (int64_t)bytes;
            return nullptr;
        }
        void *data = tensor->dl_tensor.data;
        try {
            std::lock_guard<std::mutex> held(table().lock);
            table().blocks[data] = tensor;
        } catch (const std::bad_alloc &) {
            tensor->deleter(tensor);
            return nullptr;
        }
        num_served++, served_bytes += (int64_t)bytes, live_bytes += count * (int64_t)sizeof(float);
        c10::profiledCPUMemoryReporter().New(data, bytes);
        return data;
    }
};

/* Returns memory to its origin: a bare address (raw_deallocate) may belong to the previous allocator. */
void give(void *data) {
    DLManagedTensor *tensor = forget(data);
    if (tensor == nullptr) {
        pool_allocator::only().before->raw_deallocate(data);
        return;
    }
    live_bytes -= tensor->dl_tensor.shape[0] * (int64_t)sizeof(float);
    c10::profiledCPUMemoryReporter().Delete(data);
    tensor->deleter(tensor);
}

/* Handlers of fork. The lock keeps the table consistent in the child. The child's thread starts with the mode off, because the team
 * of its context did not survive. */
void before_fork() {
    table().lock.lock();
}

void in_parent() {
    table().lock.unlock();
}

void in_child() {
    table().lock.unlock();
    current = {nullptr, nullptr};
}

} // namespace

/* Returns the version of torch at build time. */
DOOR const char *dithc_allocator_torch(void) {
    return TORCH_VERSION;
}

/* Installs the allocator before torch's, once. Returns 0, or 1 if torch has another allocator of higher priority. The previous
 * allocator serves requests below `floor_bytes`. */
DOOR int dithc_allocator_install(make_tensor make, int64_t floor_bytes) {
    pool_allocator &ours = pool_allocator::only();
    if (c10::GetCPUAllocator() == &ours) {
        return 0;
    }
    ours.before = c10::GetCPUAllocator();
    ours.make = make;
    ours.floor_bytes = (size_t)floor_bytes;
    c10::SetCPUAllocator(&ours);
    if (c10::GetCPUAllocator() != &ours) {
        return 1;
    }
    pthread_atfork(before_fork, in_parent, in_child);
    return 0;
}

/* Serves the calling thread's requests from a pool (hc_pool) whose pages a context (hc_context) touches first; from the previous
 * allocator if the pool is NULL. Both must outlive the mode. */
DOOR void dithc_allocator_mode(void *pool, void *context) {
    current = {pool, context};
}

DOOR void *dithc_allocator_pool(void) {
    return current.pool;
}

/* Returns requests served from pools and their bytes, requests rejected by a pool and all lower pools and their bytes, live bytes. */
DOOR void dithc_allocator_counters(int64_t out_counters[5]) {
    const int64_t values[] = {num_served, served_bytes, num_refused, refused_bytes, live_bytes};
    for (int i = 0; i < 5; i++) {
        out_counters[i] = values[i];
    }
}
