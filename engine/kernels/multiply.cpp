// Products of quantized weights with the rows of a prompt.
#include "context.h"

#include "ggml-backend.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

namespace tiles {
namespace {

// Columns of a part: each part decodes its rows again.
constexpr int64_t PART_COLUMNS = 64;

}  // namespace

bool is_rewritten(const ggml_tensor * weights) {
    // Source: ggml-cpu/repack.cpp, ggml_backend_cpu_repack_buffer_type_get_name.
    return weights->buffer && std::strcmp(ggml_backend_buffer_name(weights->buffer), "CPU_REPACK") == 0;
}

bool multiply(Context & context, ggml_tensor * out) {
    const ggml_tensor * weights = out->src[0];
    const ggml_tensor * values = out->src[1];
    const Kernels & use = *kernels();
    Product product = {};
    product.format = use.format(weights->type, is_rewritten(weights));
    product.weights = static_cast<const uint8_t *>(weights->data);
    product.row_bytes = weights->nb[1];
    product.rows = weights->ne[1];
    product.out = static_cast<float *>(out->data);
    const int64_t count = ggml_nrows(values), length = values->ne[0], blocks = length / BLOCK;
    const size_t q = lined_up(count * length), each = lined_up(count * blocks * sizeof(float));
    const int threads = std::max(1, context.threads);
    uint8_t * memory = context.at_least(q + 4 * each + threads * PANEL_BYTES);
    if (!memory) {
        return false;
    }
    product.columns = {length, blocks, reinterpret_cast<int8_t *>(memory), reinterpret_cast<float *>(memory + q),
                       reinterpret_cast<float *>(memory + q + each), reinterpret_cast<int32_t *>(memory + q + 2 * each)};
    uint8_t * panels = memory + q + 4 * each;
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
        uint8_t * panel = panels + size_t(omp_get_thread_num()) * PANEL_BYTES;
        #pragma omp for schedule(dynamic, 1)
        for (int64_t index = 0; index < by_rows * by_columns; index++) {
            const int64_t part = index % by_columns;
            use.part(product, index / by_columns * use.panel_rows, count * part / by_columns,
                     count * (part + 1) / by_columns, panel);
        }
    }
    return true;
}

}  // namespace tiles
