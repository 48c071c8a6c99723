// A backend of ggml for one operation: products of quantized weights with the rows of a prompt. llama.cpp's own
// kernels multiply some types row by row. It computes on the processor in its memory: no weight is copied or moved.
//
// Which types it takes is told with `ggml_tiles_take` before a context is made: at first it takes none.
#include "tiles.h"

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

// Parts of a product for each thread, so that none waits long for the last one.
constexpr int64_t PARTS = 4;
// Columns of a part: each part decodes its rows again.
constexpr int64_t PART_COLUMNS = 64;

std::atomic<uint64_t> taken{0};

const tiles::Kernels * kernels() {
    static const tiles::Kernels * const best = [] () -> const tiles::Kernels * {
        const char * most = std::getenv("TESSERA_TILES");  // for measuring: a processor's older kernels
        const bool older = most && std::strcmp(most, "avx2") == 0;
        __builtin_cpu_init();
        if (!older && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vnni")) {
            return &tiles::avx512();
        }
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
            return &tiles::avx2();
        }
        return nullptr;
    }();
    return best;
}

struct Free {
    void operator()(void * p) const { std::free(p); }
};

struct Context {
    int threads = 1;
    std::unique_ptr<uint8_t, Free> memory;
    size_t size = 0;

    uint8_t * at_least(size_t bytes) {
        if (size < bytes) {
            memory.reset();
            const size_t whole = (bytes + 4095) / 4096 * 4096;
            memory.reset(static_cast<uint8_t *>(std::aligned_alloc(64, whole)));
            size = memory ? whole : 0;
        }
        return memory.get();
    }
};

size_t lined_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

bool multiply(Context & context, ggml_tensor * out) {
    const ggml_tensor * weights = out->src[0];
    const ggml_tensor * values = out->src[1];
    const tiles::Kernels & use = *kernels();
    tiles::Product product = {};
    product.format = use.format(weights->type);
    product.weights = static_cast<const uint8_t *>(weights->data);
    product.row_bytes = weights->nb[1];
    product.rows = weights->ne[1];
    product.out = static_cast<float *>(out->data);
    const int64_t count = ggml_nrows(values), length = values->ne[0], blocks = length / tiles::BLOCK;
    const size_t q = lined_up(count * length), each = lined_up(count * blocks * sizeof(float));
    const int threads = std::max(1, context.threads);
    uint8_t * memory = context.at_least(q + 3 * each + threads * tiles::PANEL_BYTES);
    if (!memory) {
        return false;
    }
    product.columns = {length, blocks, reinterpret_cast<int8_t *>(memory), reinterpret_cast<float *>(memory + q),
                       reinterpret_cast<float *>(memory + q + each), reinterpret_cast<int32_t *>(memory + q + 2 * each)};
    uint8_t * panels = memory + q + 3 * each;
    const int64_t by_rows = (product.rows + use.panel_rows - 1) / use.panel_rows;
    const int64_t wanted = threads > 1 ? (PARTS * threads + by_rows - 1) / by_rows : 1;
    const int64_t by_columns = std::max<int64_t>(1, std::min(wanted, count / PART_COLUMNS));
    const float * first = static_cast<const float *>(values->data);
    #pragma omp parallel num_threads(threads)
    {
        #pragma omp for schedule(static)
        for (int64_t column = 0; column < count; column++) {
            use.quantize(first + column * length, column, product.columns);
        }
        uint8_t * panel = panels + size_t(omp_get_thread_num()) * tiles::PANEL_BYTES;
        #pragma omp for schedule(dynamic, 1)
        for (int64_t index = 0; index < by_rows * by_columns; index++) {
            const int64_t part = index % by_columns;
            use.part(product, index / by_columns * use.panel_rows, count * part / by_columns,
                     count * (part + 1) / by_columns, panel);
        }
    }
    return true;
}

// Of a backend

const char * name_of(ggml_backend_t) { return "Tiles"; }

void end(ggml_backend_t backend) {
    delete static_cast<Context *>(backend->context);
    delete backend;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    Context & context = *static_cast<Context *>(backend->context);
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_MUL_MAT && (node->flags & GGML_TENSOR_FLAG_COMPUTE) && !multiply(context, node)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

ggml_guid_t guid() {
    static ggml_guid id = {0x5e, 0x1f, 0x0b, 0xd2, 0x73, 0x9a, 0x4c, 0x61, 0xb8, 0x27, 0xe4, 0x90, 0x3d, 0x16, 0xaf, 0x58};
    return &id;
}

void set_threads(ggml_backend_t backend, int count) { static_cast<Context *>(backend->context)->threads = count; }

// Of its device

const char * device_name(ggml_backend_dev_t) { return "Tiles"; }

const char * device_description(ggml_backend_dev_t) { return kernels() ? kernels()->name : "none"; }

void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    props->name = device_name(device);
    props->description = device_description(device);
    props->type = device_type(device);
    device_memory(device, &props->memory_free, &props->memory_total);
    props->caps = {};
    props->caps.buffer_from_host_ptr = true;
}

ggml_backend_t device_start(ggml_backend_dev_t device, const char *) {
    ggml_backend_i functions = {};
    functions.get_name = name_of;
    functions.free = end;
    functions.graph_compute = compute;
    return new ggml_backend{guid(), functions, device, new Context};
}

ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); }

ggml_backend_buffer_t device_buffer_at(ggml_backend_dev_t, void * memory, size_t size, size_t) {
    return ggml_backend_cpu_buffer_from_ptr(memory, size);
}

bool device_computes(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        case GGML_OP_MUL_MAT:
            break;
        default:
            return false;
    }
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * values = op->src[1];
    if (!(taken.load() >> weights->type & 1)) {
        return false;
    }
    const tiles::Format * format = kernels()->format(weights->type);
    return format && values->type == GGML_TYPE_F32 && ggml_is_matrix(weights) && ggml_is_contiguous(weights) &&
           ggml_is_contiguous(values) && ggml_is_contiguous(op) && ggml_nrows(values) >= format->least_columns;
}

bool device_reads(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(type); }

// Of the registry

const char * registry_name(ggml_backend_reg_t) { return "Tiles"; }

size_t device_count(ggml_backend_reg_t) { return kernels() ? 1 : 0; }

ggml_backend_dev_t device_at(ggml_backend_reg_t registry, size_t) {
    static ggml_backend_device device = [&] {
        ggml_backend_device made = {};
        made.iface.get_name = device_name;
        made.iface.get_description = device_description;
        made.iface.get_memory = device_memory;
        made.iface.get_type = device_type;
        made.iface.get_props = device_props;
        made.iface.init_backend = device_start;
        made.iface.get_buffer_type = device_buffers;
        made.iface.buffer_from_host_ptr = device_buffer_at;
        made.iface.supports_op = device_computes;
        made.iface.supports_buft = device_reads;
        made.reg = registry;
        return made;
    }();
    return &device;
}

void * function_of(ggml_backend_reg_t, const char * name) {
    return std::strcmp(name, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void *>(set_threads) : nullptr;
}

ggml_backend_reg_t registry() {
    static ggml_backend_reg made = [] {
        ggml_backend_reg found = {};
        found.api_version = GGML_BACKEND_API_VERSION;
        found.iface.get_name = registry_name;
        found.iface.get_device_count = device_count;
        found.iface.get_device = device_at;
        found.iface.get_proc_address = function_of;
        return found;
    }();
    return &made;
}

}  // namespace

// Types to compute, a bit for each by its id; returns those of them that this processor has kernels for.
extern "C" __attribute__((visibility("default"))) uint64_t ggml_tiles_take(uint64_t types) {
    uint64_t known = 0;
    for (int type = 0; kernels() && type < 64; type++) {
        if (types >> type & 1 && kernels()->format(type)) {
            known |= uint64_t(1) << type;
        }
    }
    taken = known;
    return known;
}

GGML_BACKEND_DL_IMPL(registry)
