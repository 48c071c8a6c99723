// A backend of ggml for products of quantized weights with the rows of a prompt, some types of which llama.cpp's own
// kernels multiply row by row, and for attention. It computes on the processor in its memory: no weight is copied or
// moved.
//
// What it takes is told with `ggml_tiles_take` and `ggml_tiles_attend` before a context is made: at first nothing.
#include "context.h"

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

// Attention of fewer positions is taken only from this many cells on: each of it is a step of its own, at whose ends
// threads meet. Measured: docs/log.md, "attention of our own".
constexpr int64_t FEW_POSITIONS = 8, MANY_CELLS = 512;

// Columns that a mixture's experts must have on average. Measured: adr/0025.
constexpr int64_t LEAST_OF_EXPERT = 1;

std::atomic<uint64_t> taken{0};
std::atomic<bool> attending{false};

}  // namespace

namespace tiles {

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

}  // namespace tiles

namespace {

using tiles::Context;
using tiles::kernels;

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
        const bool ours = node->flags & GGML_TENSOR_FLAG_COMPUTE;
        if (ours && ((node->op == GGML_OP_MUL_MAT && !tiles::multiply(context, node)) ||
                     (node->op == GGML_OP_MUL_MAT_ID && !tiles::multiply_experts(context, node)) ||
                     (node->op == GGML_OP_FLASH_ATTN_EXT && !tiles::attend(context, node)))) {
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

bool can_multiply(const ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0], * values = op->src[1], * chosen = op->src[2];
    if (!(taken.load() >> weights->type & 1)) {
        return false;
    }
    const tiles::Format * format = kernels()->format(weights->type, tiles::is_rewritten(weights));
    if (!format || weights->ne[0] % (format->group * tiles::BLOCK) || values->type != GGML_TYPE_F32 ||
        !ggml_is_contiguous(weights) || !ggml_is_contiguous(values) || !ggml_is_contiguous(op)) {
        return false;
    }
    if (op->op == GGML_OP_MUL_MAT) {
        return ggml_is_matrix(weights) && ggml_nrows(values) >= format->least_columns;
    }
    return weights->ne[3] == 1 && values->ne[3] == 1 && chosen->type == GGML_TYPE_I32 && ggml_is_matrix(chosen) &&
           chosen->ne[1] >= format->least_columns && ggml_nelements(chosen) >= LEAST_OF_EXPERT * weights->ne[2];
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
        case GGML_OP_MUL_MAT_ID:
            return can_multiply(op);
        case GGML_OP_FLASH_ATTN_EXT:
            return attending.load() && tiles::can_attend(op) &&
                   (op->src[0]->ne[1] >= FEW_POSITIONS || op->src[1]->ne[1] >= MANY_CELLS);
        default:
            return false;
    }
}

bool device_reads(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_is_host(type) || std::strcmp(ggml_backend_buft_name(type), "CPU_REPACK") == 0;
}

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
        if (types >> type & 1 && (kernels()->format(type, false) || kernels()->format(type, true))) {
            known |= uint64_t(1) << type;
        }
    }
    taken = known;
    return known;
}

// Whether to compute attention; returns whether this processor has kernels for it.
extern "C" __attribute__((visibility("default"))) bool ggml_tiles_attend(bool wanted) {
    attending = wanted && kernels();
    return kernels();
}

GGML_BACKEND_DL_IMPL(registry)
