// Attention: rows that see the same cells in strips, the others one by one.
#include "context.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace tiles {
namespace {

// Cells of a row whose results are merged in their order: at fixed places, so that bits do not depend on threads.
constexpr int64_t CHUNK_CELLS = 512;
// Rows go in strips where their lanes would see at least one cell in so many. Measured: docs/log.md, "attention of our own".
constexpr int64_t LANES_PER_SEEN = 2, LANES_PER_SEEN_UNPACKED = 4;

FloatsOf floats_of(ggml_type type) {
    return type == GGML_TYPE_F16 ? nullptr : reinterpret_cast<FloatsOf>(ggml_get_type_traits(type)->to_float);
}

// Slopes of heads by a largest bias. Source: ggml.h, ggml_soft_max_ext; "Train Short, Test Long", Press et al., 2021.
std::vector<float> slopes_of(float largest, int64_t heads) {
    std::vector<float> slopes;
    if (largest > 0.0f) {
        const int64_t whole = int64_t(1) << int(std::floor(std::log2(double(heads))));
        const float one = std::pow(2.0f, -largest / whole), other = std::pow(2.0f, -largest / 2.0f / whole);
        for (int64_t h = 0; h < heads; h++) {
            slopes.push_back(h < whole ? std::pow(one, float(h + 1)) : std::pow(other, float(2 * (h - whole) + 1)));
        }
    }
    return slopes;
}

struct Numbers {
    float scale, largest_bias, softcap;
};

Numbers numbers_of(const ggml_tensor * out) {
    Numbers found;
    std::memcpy(&found, out->op_params, sizeof(found));
    return found;
}

Attention attention_of(const ggml_tensor * out, const std::vector<float> & slopes) {
    const ggml_tensor * queries = out->src[0], * keys = out->src[1], * values = out->src[2], * mask = out->src[3];
    Attention found = {};
    found.queries = static_cast<const uint8_t *>(queries->data);
    found.keys = static_cast<const uint8_t *>(keys->data);
    found.values = static_cast<const uint8_t *>(values->data);
    for (int i = 0; i < 3; i++) {
        found.query_bytes[i] = queries->nb[i + 1];
        found.key_bytes[i] = keys->nb[i + 1];
        found.value_bytes[i] = values->nb[i + 1];
    }
    if (mask) {
        found.mask = static_cast<const uint8_t *>(mask->data);
        found.mask_bytes[0] = mask->nb[1];
        found.mask_bytes[1] = mask->ne[3] > 1 ? mask->nb[3] : 0;
    }
    found.sinks = out->src[4] ? static_cast<const float *>(out->src[4]->data) : nullptr;
    found.slopes = slopes.empty() ? nullptr : slopes.data();
    found.out = static_cast<float *>(out->data);
    found.key_floats = floats_of(keys->type);
    found.value_floats = floats_of(values->type);
    found.key_width = keys->ne[0];
    found.value_width = values->ne[0];
    found.cells = keys->ne[1];
    found.positions = queries->ne[1];
    found.heads = queries->ne[2];
    found.key_heads = keys->ne[2];
    found.streams = queries->ne[3];
    const Numbers numbers = numbers_of(out);
    found.softcap = numbers.softcap;
    found.scale = numbers.softcap != 0.0f ? numbers.scale / numbers.softcap : numbers.scale;
    return found;
}

// Heads of one position that share keys, at most HEADS_AT_ONCE.
struct Unit {
    int64_t stream, position, head;
    int count;
};

class Rows {
  public:
    Rows(const Attention & attention, const Kernels & use)
        : a(attention), kernels(use), group(a.heads / a.key_heads), blocks((group + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE),
          chunks((a.cells + CHUNK_CELLS - 1) / CHUNK_CELLS), part(HEADS_AT_ONCE * (a.value_width + 2)) {}

    int64_t of_position() const { return a.key_heads * blocks; }

    int64_t floats() const { return kernels.row_floats(a) + 2 * part; }

    Unit unit(int64_t stream, int64_t position, int64_t index) const {
        const int64_t block = index % blocks, first = block * HEADS_AT_ONCE;
        return {stream, position, index / blocks * group + first, int(std::min<int64_t>(HEADS_AT_ONCE, group - first))};
    }

    void chunk(const Unit & unit, int64_t index, float * memory, float * out) const {
        kernels.row(a, unit.stream, unit.head, unit.count, unit.position, index * CHUNK_CELLS,
                    std::min(a.cells, (index + 1) * CHUNK_CELLS), memory, out);
    }

    // `parts` of all chunks, or null: they are computed here, and come out the same.
    void whole(const Unit & unit, float * memory, const float * parts) const {
        float * sums = memory + kernels.row_floats(a), * more = sums + part;
        const int64_t most_at = unit.count * a.value_width;
        std::fill(sums, sums + most_at, 0.0f);
        for (int h = 0; h < unit.count; h++) {
            sums[most_at + 2 * h] = FAR;
            sums[most_at + 2 * h + 1] = 0.0f;
        }
        for (int64_t index = 0; index < chunks; index++) {
            if (!parts) {
                chunk(unit, index, memory, more);
            }
            merge(unit, sums, parts ? parts + index * part : more);
        }
        for (int h = 0; h < unit.count; h++) {
            const float by = a.share(unit.head + h, sums[most_at + 2 * h], sums[most_at + 2 * h + 1]);
            float * out = a.out + ((unit.stream * a.positions + unit.position) * a.heads + unit.head + h) * a.value_width;
            for (int64_t d = 0; d < a.value_width; d++) {
                out[d] = sums[h * a.value_width + d] * by;
            }
        }
    }

    const Attention & a;
    const Kernels & kernels;
    const int64_t group, blocks, chunks, part;

  private:
    void merge(const Unit & unit, float * into, const float * other) const {
        for (int h = 0; h < unit.count; h++) {
            float * mine = into + unit.count * a.value_width + 2 * h;
            const float * theirs = other + unit.count * a.value_width + 2 * h;
            const float most = std::max(mine[0], theirs[0]);
            const float by = std::exp(mine[0] - most), add = std::exp(theirs[0] - most);
            for (int64_t d = 0; d < a.value_width; d++) {
                into[h * a.value_width + d] = into[h * a.value_width + d] * by + other[h * a.value_width + d] * add;
            }
            mine[0] = most;
            mine[1] = mine[1] * by + theirs[1] * add;
        }
    }
};

// Few rows: their chunks of cells are shared out too where there is not a row for each thread.
bool few(Context & context, const Rows & rows) {
    const Attention & a = rows.a;
    const int threads = std::max(1, context.threads);
    const int64_t units = a.streams * a.positions * rows.of_position();
    const bool apart = threads > 1 && units < PARTS * threads;
    const size_t each = lined_up(rows.floats() * sizeof(float));
    uint8_t * memory = context.at_least(each * threads + (apart ? units * rows.chunks * rows.part * sizeof(float) : 0));
    if (!memory) {
        return false;
    }
    float * parts = reinterpret_cast<float *>(memory + each * threads);
    const auto unit_at = [&](int64_t index) {
        const int64_t row = index / rows.of_position();
        return rows.unit(row / a.positions, row % a.positions, index % rows.of_position());
    };
    #pragma omp parallel num_threads(threads)
    {
        float * mine = reinterpret_cast<float *>(memory + each * omp_get_thread_num());
        if (apart) {
            #pragma omp for schedule(dynamic, 1)
            for (int64_t index = 0; index < units * rows.chunks; index++) {
                rows.chunk(unit_at(index / rows.chunks), index % rows.chunks, mine, parts + index * rows.part);
            }
        }
        #pragma omp for schedule(dynamic, 1)
        for (int64_t index = 0; index < units; index++) {
            rows.whole(unit_at(index), mine, apart ? parts + index * rows.chunks * rows.part : nullptr);
        }
    }
    return true;
}

// Lanes would mostly be idle, or see what their neighbours see not.
bool is_sparse(const Attention & a, const Kernels & use, int64_t stream, int64_t from, int64_t to) {
    const Seen seen = use.seen(a, stream, from, to);
    const int64_t group = a.heads / a.key_heads, strips = ((to - from) * group + use.strip - 1) / use.strip;
    const int64_t lanes = seen.tiles * ATTEND_CELLS * strips * use.strip;
    return seen.cells * group * (a.key_floats || a.value_floats ? LANES_PER_SEEN_UNPACKED : LANES_PER_SEEN) < lanes;
}

// Many rows, a strip's positions at a time: as many strips that see the same cells as there are share each tile.
bool many(Context & context, const Rows & rows) {
    const Attention & a = rows.a;
    const Kernels & use = rows.kernels;
    const int threads = std::max(1, context.threads);
    const size_t each = lined_up(std::max(use.strip_floats(a), rows.floats()) * sizeof(float));
    uint8_t * memory = context.at_least(each * threads);
    if (!memory) {
        return false;
    }
    const int64_t of_strip = std::max<int64_t>(1, use.strip / rows.group), columns = a.key_heads * a.streams;
    int64_t at_once = of_strip * std::max<int64_t>(1, ATTEND_STRIPS * use.strip / rows.group / of_strip);
    while (threads > 1 && at_once > of_strip && (a.positions + at_once - 1) / at_once * columns < PARTS * threads) {
        at_once = at_once / of_strip / 2 * of_strip;
    }
    const int64_t blocks = (a.positions + at_once - 1) / at_once;
    #pragma omp parallel num_threads(threads)
    {
        float * mine = reinterpret_cast<float *>(memory + each * omp_get_thread_num());
        #pragma omp for schedule(dynamic, 1)
        for (int64_t index = 0; index < blocks * columns; index++) {
            // The last positions mostly see the most cells, so they begin.
            const int64_t from = (blocks - 1 - index / columns) * at_once, to = std::min(a.positions, from + at_once);
            const int64_t stream = index % columns / a.key_heads, head = index % a.key_heads;
            int64_t dense = from;  // what is not done yet begins here
            for (int64_t strip = from; strip < to; strip += of_strip) {
                const int64_t end = std::min(to, strip + of_strip);
                if (!is_sparse(a, use, stream, strip, end)) {
                    continue;
                }
                if (dense < strip) {
                    use.strips(a, stream, head, dense, strip, mine);
                }
                for (int64_t position = strip; position < end; position++) {
                    for (int64_t block = 0; block < rows.blocks; block++) {
                        rows.whole(rows.unit(stream, position, head * rows.blocks + block), mine, nullptr);
                    }
                }
                dense = end;
            }
            if (dense < to) {
                use.strips(a, stream, head, dense, to, mine);
            }
        }
    }
    return true;
}

bool is_read(const ggml_tensor * cells) {
    return (cells->type == GGML_TYPE_F16 || ggml_get_type_traits(cells->type)->to_float) && cells->ne[0] % 16 == 0 &&
           cells->nb[0] == ggml_type_size(cells->type);
}

}  // namespace

bool attend(Context & context, const ggml_tensor * out) {
    const std::vector<float> slopes = slopes_of(numbers_of(out).largest_bias, out->src[0]->ne[2]);
    const Attention attention = attention_of(out, slopes);
    const Rows rows(attention, *kernels());
    // Lanes of one strip are not half full, whoever sees what.
    const bool are_few = 2 * attention.positions * rows.group < rows.kernels.strip;
    return are_few ? few(context, rows) : many(context, rows);
}

bool can_attend(const ggml_tensor * out) {
    const ggml_tensor * queries = out->src[0], * keys = out->src[1], * values = out->src[2], * mask = out->src[3];
    const int64_t group = queries->ne[2] / keys->ne[2];
    return queries->type == GGML_TYPE_F32 && queries->nb[0] == sizeof(float) && is_read(keys) && is_read(values) &&
           ggml_is_contiguous(out) && keys->ne[1] == values->ne[1] && keys->ne[2] == values->ne[2] &&
           group * keys->ne[2] == queries->ne[2] && group <= ATTEND_STRIPS * kernels()->strip &&
           queries->ne[3] == keys->ne[3] && queries->ne[3] == values->ne[3] &&
           (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t) && mask->ne[2] == 1 &&
                      (mask->ne[3] == 1 || mask->ne[3] == queries->ne[3]))) &&
           (!out->src[4] || out->src[4]->type == GGML_TYPE_F32);
}

}  // namespace tiles
