// Products of quantized weights with the rows of a prompt.
#include "context.h"

#include "ggml-backend.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace tiles {
namespace {

// Columns of a part: each part decodes its rows again.
constexpr int64_t PART_COLUMNS = 64;

struct Work {
    Columns columns;
    uint8_t * panels;   // one of each thread; null: no memory
};

Work work_for(Context & context, int64_t count, int64_t length, int threads) {
    const int64_t blocks = length / BLOCK;
    const size_t q = lined_up(count * length), each = lined_up(count * blocks * sizeof(float));
    uint8_t * memory = context.at_least(q + 4 * each + threads * PANEL_BYTES);
    if (!memory) {
        return {};
    }
    return {{length, blocks, reinterpret_cast<int8_t *>(memory), reinterpret_cast<float *>(memory + q),
             reinterpret_cast<float *>(memory + q + each), reinterpret_cast<int32_t *>(memory + q + 2 * each)},
            memory + q + 4 * each};
}

Product product_of(const Kernels & use, const ggml_tensor * out, const Columns & columns) {
    const ggml_tensor * weights = out->src[0];
    Product product = {};
    product.format = use.format(weights->type, is_rewritten(weights));
    product.weights = static_cast<const uint8_t *>(weights->data);
    product.row_bytes = weights->nb[1];
    product.rows = weights->ne[1];
    product.columns = columns;
    product.columns.zero = product.format->zero;
    product.columns.halves = product.format->weight == Weight::HALVES;
    product.out = static_cast<float *>(out->data);
    return product;
}

void copy_column(const Columns & columns, int64_t from, int64_t to) {
    const int64_t blocks = columns.blocks;
    std::copy_n(columns.q + from * columns.values, columns.values, columns.q + to * columns.values);
    std::copy_n(columns.scale + from * blocks, blocks, columns.scale + to * blocks);
    std::copy_n(columns.scaled_sum + from * blocks, blocks, columns.scaled_sum + to * blocks);
    std::copy_n(columns.starts + 2 * from * blocks, 2 * blocks, columns.starts + 2 * to * blocks);
}

// The columns of a mixture's product, those of one expert next to each other. The columns of `out` are counted by
// token, then by the token's experts.
struct Gathered {
    std::vector<int64_t> first;    // column of each expert, and the count behind the last
    std::vector<int64_t> places;   // of each column in `out`
    std::vector<int64_t> columns;  // of each place

    Gathered(const ggml_tensor * chosen, int64_t experts)
        : first(experts + 1), places(ggml_nelements(chosen)), columns(places.size()) {
        const int64_t count = places.size(), used = chosen->ne[0];
        const auto expert = [&](int64_t place) {
            const char * at = static_cast<const char *>(chosen->data) + place / used * chosen->nb[1] + place % used * chosen->nb[0];
            const int32_t found = *reinterpret_cast<const int32_t *>(at);
            GGML_ASSERT(found >= 0 && found < experts);
            return found;
        };
        for (int64_t place = 0; place < count; place++) {
            first[expert(place) + 1]++;
        }
        for (int64_t i = 0; i < experts; i++) {
            first[i + 1] += first[i];
        }
        std::vector<int64_t> next = first;
        for (int64_t place = 0; place < count; place++) {
            columns[place] = next[expert(place)]++;
            places[columns[place]] = place;
        }
    }
};

}  // namespace

bool is_rewritten(const ggml_tensor * weights) {
    // Source: ggml-cpu/repack.cpp, ggml_backend_cpu_repack_buffer_type_get_name.
    return weights->buffer && std::strcmp(ggml_backend_buffer_name(weights->buffer), "CPU_REPACK") == 0;
}

bool multiply(Context & context, ggml_tensor * out) {
    const ggml_tensor * values = out->src[1];
    const Kernels & use = *kernels();
    const int64_t count = ggml_nrows(values), length = values->ne[0];
    const int threads = std::max(1, context.threads);
    const Work work = work_for(context, count, length, threads);
    if (!work.panels) {
        return false;
    }
    const Product product = product_of(use, out, work.columns);
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
        uint8_t * panel = work.panels + size_t(omp_get_thread_num()) * PANEL_BYTES;
        #pragma omp for schedule(dynamic, 1)
        for (int64_t index = 0; index < by_rows * by_columns; index++) {
            const int64_t part = index % by_columns;
            use.part(product, index / by_columns * use.panel_rows, count * part / by_columns,
                     count * (part + 1) / by_columns, panel);
        }
    }
    return true;
}

bool multiply_experts(Context & context, ggml_tensor * out) {
    const ggml_tensor * weights = out->src[0], * values = out->src[1], * chosen = out->src[2];
    const Kernels & use = *kernels();
    const int64_t length = values->ne[0], given = values->ne[1];  // columns of a token, which its experts take in turn
    const int64_t used = chosen->ne[0], tokens = chosen->ne[1], experts = weights->ne[2];
    const int threads = std::max(1, context.threads);
    const Work work = work_for(context, used * tokens, length, threads);
    if (!work.panels) {
        return false;
    }
    const Gathered gathered(chosen, experts);
    Product product = product_of(use, out, work.columns);
    product.places = gathered.places.data();
    const int64_t by_rows = (product.rows + use.panel_rows - 1) / use.panel_rows;
    const float * first = static_cast<const float *>(values->data);
    #pragma omp parallel num_threads(threads)
    {
        #pragma omp for schedule(static)
        for (int64_t token = 0; token < tokens; token++) {
            const int64_t * columns = gathered.columns.data() + token * used;
            for (int64_t i = 0; i < used; i++) {
                if (i < given) {
                    use.quantize(first + (token * given + i) * length, columns[i], product.columns);
                } else {
                    copy_column(product.columns, columns[i % given], columns[i]);
                }
            }
        }
        uint8_t * panel = work.panels + size_t(omp_get_thread_num()) * PANEL_BYTES;
        #pragma omp for schedule(dynamic, 1)
        for (int64_t index = 0; index < experts * by_rows; index++) {
            const int64_t expert = index / by_rows;
            const int64_t from = gathered.first[expert], to = gathered.first[expert + 1];
            if (from < to) {
                Product mine = product;
                mine.weights += expert * weights->nb[2];
                use.part(mine, index % by_rows * use.panel_rows, from, to, panel);
            }
        }
    }
    return true;
}

}  // namespace tiles
