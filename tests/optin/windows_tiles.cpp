// Computes random products and attention with Tessera's own kernels and with ggml's, both as Windows libraries, and
// tells how far each is from the sums in 64 bits.
//   windows_tiles.exe TILES CPU TYPE...      libraries, numbers of ggml's types; `12+` also rewritten by ggml
// Prints lines of JSON. Runs beside ggml.dll and ggml-base.dll.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <windows.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

// A panel, a chunk and a tile that are not full; superblocks have 256 values, a rewritten copy takes rows by eight.
constexpr int64_t ROWS = 72, LENGTH = 2560, COLUMNS = 45, EXPERTS = 6, USED = 3;

using Values = std::vector<float>;
using SetThreads = void (*)(ggml_backend_t, int);
using ExtraBuffers = ggml_backend_buffer_type_t * (*)(ggml_backend_dev_t);

[[noreturn]] void fail(const char * what) {
    std::printf("{\"failed\": \"%s\", \"error\": %lu}\n", what, GetLastError());
    std::exit(2);
}

struct Kernels {
    ggml_backend_reg_t registry;
    ggml_backend_dev_t device;
    ggml_backend_t backend;

    explicit Kernels(const char * path) : registry(ggml_backend_load(path)) {
        if (!registry || !ggml_backend_reg_dev_count(registry)) {
            fail(path);
        }
        device = ggml_backend_reg_dev_get(registry, 0);
        backend = ggml_backend_dev_init(device, nullptr);
    }

    void threads(int count) const {
        reinterpret_cast<SetThreads>(ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"))(backend, count);
    }
};

Values random_values(size_t count, float size) {
    static uint64_t state = 88172645463325252ull;
    Values found(count);
    for (float & value : found) {
        float sum = -6.0f;  // of twelve numbers between 0 and 1: nearly normal
        for (int i = 0; i < 12; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            sum += float(state >> 40) / float(1 << 24);
        }
        value = sum * size;
    }
    return found;
}

// One operation with all it reads; computed by whichever kernels.
struct Graph {
    ggml_context * context = ggml_init({1 << 20, nullptr, true});
    ggml_context * weights = ggml_init({1 << 20, nullptr, true});
    ggml_tensor * out = nullptr;

    void place(ggml_backend_buffer_type_t of_weights) {
        ggml_backend_alloc_ctx_tensors_from_buft(context, ggml_backend_cpu_buffer_type());
        if (ggml_get_first_tensor(weights)) {
            ggml_backend_alloc_ctx_tensors_from_buft(weights, of_weights);
        }
    }

    Values by(const Kernels & kernels, int threads) const {
        ggml_cgraph * graph = ggml_new_graph(ggml_init({1 << 22, nullptr, true}));
        ggml_build_forward_expand(graph, out);
        kernels.threads(threads);
        Values found(ggml_nelements(out), NAN);
        ggml_backend_tensor_set(out, found.data(), 0, ggml_nbytes(out));
        if (ggml_backend_graph_compute(kernels.backend, graph) != GGML_STATUS_SUCCESS) {
            fail("compute");
        }
        ggml_backend_tensor_get(out, found.data(), 0, ggml_nbytes(out));
        return found;
    }
};

double apart(const Values & found, const std::vector<double> & exact) {
    double most = 0, size = 0;
    for (size_t i = 0; i < exact.size(); i++) {
        most = std::isfinite(found[i]) ? std::max(most, std::fabs(found[i] - exact[i])) : INFINITY;
        size = std::max(size, std::fabs(exact[i]));
    }
    return most / size;
}

void tell(const std::string & what, const Graph & graph, const Kernels & ours, const Kernels & theirs,
          const std::vector<double> & exact) {
    const bool taken = ggml_backend_dev_supports_op(ours.device, graph.out);
    std::printf("{\"case\": \"%s\", \"taken\": %s", what.c_str(), taken ? "true" : "false");
    if (taken) {
        const Values found = graph.by(ours, 1), others = graph.by(theirs, 1);
        bool same = true;
        for (int threads : {2, 3, 7}) {
            const Values again = graph.by(ours, threads);
            same = same && std::memcmp(again.data(), found.data(), found.size() * sizeof(float)) == 0;
        }
        std::printf(", \"ours\": %.3g, \"ggml\": %.3g, \"same_by_threads\": %s", apart(found, exact), apart(others, exact),
                    same ? "true" : "false");
    }
    std::printf("}\n");
    std::fflush(stdout);
}

ggml_backend_buffer_type_t rewriting(const Kernels & cpu) {
    const auto listed = reinterpret_cast<ExtraBuffers>(
        ggml_backend_reg_get_proc_address(cpu.registry, "ggml_backend_dev_get_extra_bufts"))(cpu.device);
    for (ggml_backend_buffer_type_t * each = listed; *each; each++) {
        if (std::strcmp(ggml_backend_buft_name(*each), "CPU_REPACK") == 0) {
            return *each;
        }
    }
    fail("no CPU_REPACK");
}

Values floats_of(ggml_type type, const std::vector<uint8_t> & data, int64_t count) {
    Values found(count);
    ggml_get_type_traits(type)->to_float(data.data(), found.data(), count);
    return found;
}

// A product of one matrix; or of a mixture, whose tokens choose USED of EXPERTS each.
void products(ggml_type type, bool copy, bool mixture, const Kernels & ours, const Kernels & theirs) {
    Graph graph;
    const int64_t experts = mixture ? EXPERTS : 1, used = mixture ? USED : 1, rows = experts * ROWS;
    ggml_tensor * left = ggml_new_tensor_3d(graph.weights, type, LENGTH, ROWS, experts);
    ggml_tensor * right = ggml_new_tensor_3d(graph.context, GGML_TYPE_F32, LENGTH, mixture ? 1 : COLUMNS, mixture ? COLUMNS : 1);
    ggml_tensor * chosen = ggml_new_tensor_2d(graph.context, GGML_TYPE_I32, used, COLUMNS);
    graph.out = mixture ? ggml_mul_mat_id(graph.context, left, right, chosen) : ggml_mul_mat(graph.context, left, right);
    graph.place(copy ? rewriting(theirs) : ggml_backend_cpu_buffer_type());
    const Values floats = random_values(rows * LENGTH, 0.05f), values = random_values(COLUMNS * LENGTH, 1.0f);
    std::vector<uint8_t> blocks(ggml_nbytes(left));
    ggml_quantize_chunk(type, floats.data(), blocks.data(), 0, rows, LENGTH, nullptr);
    ggml_backend_tensor_set(left, blocks.data(), 0, blocks.size());
    ggml_backend_tensor_set(right, values.data(), 0, values.size() * sizeof(float));
    std::vector<int32_t> ids(used * COLUMNS);
    for (int64_t i = 0; i < used * COLUMNS; i++) {
        const int64_t token = i / used;
        ids[i] = int32_t((i % used * 2 + token * token) % experts);  // those of a token differ
    }
    ggml_backend_tensor_set(chosen, ids.data(), 0, ids.size() * sizeof(int32_t));
    const Values weights = floats_of(type, blocks, rows * LENGTH);
    std::vector<double> exact(ROWS * used * COLUMNS);
    for (size_t at = 0; at < exact.size(); at++) {
        const float * row = &weights[(ids[at / ROWS] * ROWS + at % ROWS) * LENGTH];
        const float * column = &values[at / ROWS / used * LENGTH];
        for (int64_t i = 0; i < LENGTH; i++) {
            exact[at] += double(row[i]) * column[i];
        }
    }
    tell(std::string(ggml_type_name(type)) + (copy ? " rewritten" : "") + (mixture ? " of experts" : ""), graph, ours, theirs, exact);
}

struct Case {
    const char * name;
    int64_t positions, cells, heads, key_heads, width;
    ggml_type type;
    int window;  // cells that a position sees; 0: all before it
    float softcap, bias;
    bool sinks;
};

const Case CASES[] = {
    {"one row", 1, 1301, 6, 2, 64, GGML_TYPE_F16, 0, 0, 0, false},
    {"one text", 45, 300, 6, 2, 64, GGML_TYPE_F16, 0, 0, 0, false},
    {"a long text", 150, 1301, 16, 2, 128, GGML_TYPE_F16, 0, 0, 0, false},
    {"a group of heads that is no strip", 33, 200, 7, 1, 80, GGML_TYPE_F16, 0, 0, 0, false},
    {"a window", 70, 900, 6, 2, 64, GGML_TYPE_F16, 20, 0, 0, false},
    {"bounded scores", 20, 130, 8, 8, 64, GGML_TYPE_F16, 0, 5, 0, false},
    {"a bias by distance", 20, 130, 8, 2, 64, GGML_TYPE_F16, 0, 0, 8, false},
    {"sinks", 20, 130, 6, 2, 64, GGML_TYPE_F16, 0, 0, 0, true},
    {"8 bits", 70, 513, 6, 2, 128, GGML_TYPE_Q8_0, 0, 0, 0, false},
    {"4 bits", 70, 513, 6, 2, 128, GGML_TYPE_Q4_0, 0, 0, 0, false},
    {"one row of 8 bits", 1, 600, 6, 2, 64, GGML_TYPE_Q8_0, 0, 0, 0, false},
    {"bfloat16", 30, 90, 6, 2, 64, GGML_TYPE_BF16, 0, 0, 0, false},
};

Values filled(ggml_tensor * tensor, float size) {
    const Values values = random_values(ggml_nelements(tensor), size);
    std::vector<uint8_t> data(ggml_nbytes(tensor));
    ggml_quantize_chunk(tensor->type, values.data(), data.data(), 0, ggml_nrows(tensor), tensor->ne[0], nullptr);
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size());
    return tensor->type == GGML_TYPE_F32 ? values : floats_of(tensor->type, data, ggml_nelements(tensor));
}

void attention(const Case & one, const Kernels & ours, const Kernels & theirs) {
    Graph graph;
    ggml_context * of = graph.context;
    ggml_tensor * q = ggml_new_tensor_4d(of, GGML_TYPE_F32, one.width, one.positions, one.heads, 1);
    ggml_tensor * k = ggml_new_tensor_4d(of, one.type, one.width, one.cells, one.key_heads, 1);
    ggml_tensor * v = ggml_new_tensor_4d(of, one.type, one.width, one.cells, one.key_heads, 1);
    ggml_tensor * mask = ggml_new_tensor_4d(of, GGML_TYPE_F16, one.cells, one.positions, 1, 1);
    ggml_tensor * sinks = ggml_new_tensor_1d(of, GGML_TYPE_F32, one.heads);
    const float scale = 1.0f / std::sqrt(float(one.width));
    graph.out = ggml_flash_attn_ext(of, q, k, v, mask, scale, one.bias, one.softcap);
    if (one.sinks) {
        ggml_flash_attn_ext_add_sinks(graph.out, sinks);
    }
    graph.place(nullptr);
    const Values queries = filled(q, 2.0f), keys = filled(k, 1.0f), values = filled(v, 1.0f), extra = random_values(one.heads, 1.0f);
    ggml_backend_tensor_set(sinks, extra.data(), 0, extra.size() * sizeof(float));
    std::vector<ggml_fp16_t> seen(one.positions * one.cells);
    std::vector<double> exact(one.positions * one.heads * one.width);
    for (int64_t p = 0; p < one.positions; p++) {
        for (int64_t c = 0; c < one.cells; c++) {
            const int64_t distance = p + one.cells - one.positions - c;
            const bool sees = distance >= 0 && (!one.window || distance < one.window);
            seen[p * one.cells + c] = ggml_fp32_to_fp16(!sees ? -INFINITY : one.bias ? -float(distance) : 0.0f);
        }
    }
    ggml_backend_tensor_set(mask, seen.data(), 0, seen.size() * sizeof(ggml_fp16_t));
    for (int64_t h = 0; h < one.heads; h++) {
        const int64_t from = h / (one.heads / one.key_heads);
        const double slope = one.bias ? std::pow(2.0, -one.bias / one.heads * double(h + 1)) : 1.0;
        for (int64_t p = 0; p < one.positions; p++) {
            std::vector<double> scores(one.cells, -INFINITY);
            double most = one.sinks ? extra[h] : -INFINITY, total = 0;
            for (int64_t c = 0; c < one.cells; c++) {
                const float added = ggml_fp16_to_fp32(seen[p * one.cells + c]);
                if (std::isinf(added)) {
                    continue;
                }
                double score = 0;
                for (int64_t i = 0; i < one.width; i++) {
                    score += double(queries[(h * one.positions + p) * one.width + i]) * keys[(from * one.cells + c) * one.width + i];
                }
                score *= scale;
                score = one.softcap ? one.softcap * std::tanh(score / one.softcap) : score;
                scores[c] = score + slope * added;
                most = std::max(most, scores[c]);
            }
            for (double & score : scores) {
                score = std::exp(score - most), total += score;
            }
            total += one.sinks ? std::exp(extra[h] - most) : 0.0;
            for (int64_t c = 0; c < one.cells; c++) {
                for (int64_t i = 0; scores[c] > 0 && i < one.width; i++) {
                    exact[(p * one.heads + h) * one.width + i] += scores[c] / total * values[(from * one.cells + c) * one.width + i];
                }
            }
        }
    }
    tell(std::string("attention: ") + one.name, graph, ours, theirs, exact);
}

}  // namespace

int main(int count, char ** arguments) {
    if (count < 4) {
        return 1;
    }
    const Kernels ours(arguments[1]), theirs(arguments[2]);
    // As Python's ctypes opens it: the library that ggml has loaded already.
    const HMODULE library = LoadLibraryExA(arguments[1], nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS | LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR);
    if (!library) {
        fail("a second load");
    }
    const auto take = reinterpret_cast<uint64_t (*)(uint64_t)>(reinterpret_cast<void *>(GetProcAddress(library, "ggml_tiles_take")));
    const auto attend = reinterpret_cast<bool (*)(bool)>(reinterpret_cast<void *>(GetProcAddress(library, "ggml_tiles_attend")));
    std::printf("{\"kernels\": \"%s\", \"ggml\": \"%s\"}\n", ggml_backend_dev_description(ours.device), ggml_version());
    take(~uint64_t(0));
    attend(true);
    for (int i = 3; i < count; i++) {
        const ggml_type type = ggml_type(std::atoi(arguments[i]));
        for (const bool mixture : {false, true}) {
            products(type, false, mixture, ours, theirs);
            if (std::strchr(arguments[i], '+')) {
                products(type, true, mixture, ours, theirs);
            }
        }
    }
    for (const Case & one : CASES) {
        attention(one, ours, theirs);
    }
    return 0;
}
