// A ggml backend for tests: a CPU device that poses as a GPU with memory of its own, and computes wrongly on demand.
//
// GGML_FAULT_DEVICE (environment) or fault_device_set() give the fault, fields behind semicolons:
//   mode=scale|negate|zero|nan|lane|rotate|noise|fail|hang|abort|slow   what happens (without it: nothing)
//   op=MUL_MAT        the operation, by ggml's name (without it: every one)
//   type=q4_K         type of the first source
//   rows=one|many     only results of one column (decode) or of several (prefill)
//   after=N           the first N eligible results are right
//   every=N           then only each Nth is wrong
//   amount=F          factor of scale, relative deviation of noise, number of the lane, milliseconds of slow
//   limit=BYTES       allocations beyond it fail, as on a GPU that is full
//   history=NUMBER    instead: replays a fault by its number in llama.cpp's tracker, see replay()
//   ubatch=N          rows of a full piece of a prompt, for faults that begin behind it or have this size
//   depth=N           tokens of a sequence from which on 26239 is wrong
//   size=N            the number of rows of a piece for which `variant` is wrong, behind it with size=+N
//   sequences=N       the same for the number of sequences; outputs=all: only if each row is an output
//   number=nan        `variant` gives no numbers instead of random ones

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t ALIGNMENT = 64;
constexpr size_t TOTAL = size_t(8) << 30;

struct Fault {
    std::string mode, op, type, rows, history, size, sequences, outputs, number;
    long        after = 0, every = 1, ubatch = 0, depth = 0;
    double      amount = 0;
    size_t      limit  = 0;
};

std::mutex guard;
Fault      fault;
long       seen  = 0;
long       made  = 0;
size_t     taken = 0;

Fault parsed(const char * text) {
    Fault       found;
    std::string rest = text ? text : "";
    while (!rest.empty()) {
        const size_t      end   = rest.find(';');
        const std::string field = rest.substr(0, end);
        rest                    = end == std::string::npos ? "" : rest.substr(end + 1);
        const size_t equals     = field.find('=');
        if (equals == std::string::npos) {
            continue;
        }
        const std::string key = field.substr(0, equals), value = field.substr(equals + 1);
        if (key == "mode") { found.mode = value; }
        if (key == "op") { found.op = value; }
        if (key == "type") { found.type = value; }
        if (key == "rows") { found.rows = value; }
        if (key == "history") { found.history = value; }
        if (key == "size") { found.size = value; }
        if (key == "sequences") { found.sequences = value; }
        if (key == "outputs") { found.outputs = value; }
        if (key == "number") { found.number = value; }
        if (key == "ubatch") { found.ubatch = std::atol(value.c_str()); }
        if (key == "depth") { found.depth = std::atol(value.c_str()); }
        if (key == "after") { found.after = std::atol(value.c_str()); }
        if (key == "every") { found.every = std::max(1L, std::atol(value.c_str())); }
        if (key == "amount") { found.amount = std::atof(value.c_str()); }
        if (key == "limit") { found.limit = std::strtoull(value.c_str(), nullptr, 10); }
    }
    return found;
}

bool eligible(const ggml_tensor * node) {
    if (fault.mode.empty() || node->type != GGML_TYPE_F32 || ggml_is_empty(node) || !ggml_is_contiguous(node)) {
        return false;
    }
    if (ggml_op_is_empty(node->op)) {
        return false;
    }
    if (!fault.op.empty() && fault.op != ggml_op_name(node->op)) {
        return false;
    }
    if (!fault.type.empty() && (!node->src[0] || fault.type != ggml_type_name(node->src[0]->type))) {
        return false;
    }
    const bool one = node->ne[1] == 1;
    return fault.rows.empty() || (fault.rows == "one") == one;
}

// Makes one result wrong. `seed` decides the noise. False: the computation itself has failed.
bool spoil(ggml_tensor * node, uint32_t seed) {
    float *       data = static_cast<float *>(node->data);
    const int64_t n = ggml_nelements(node), width = node->ne[0];
    if (fault.mode == "fail") {
        return false;
    }
    if (fault.mode == "hang") {
        for (;;) {
            std::this_thread::sleep_for(std::chrono::seconds(1));
        }
    }
    if (fault.mode == "abort") {
        std::abort();
    }
    if (fault.mode == "slow") {
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(fault.amount));
        return true;
    }
    double squares = 0;
    for (int64_t i = 0; i < n; i++) {
        squares += double(data[i]) * data[i];
    }
    const float    spread = float(std::sqrt(squares / double(n)));
    const int64_t  lane   = int64_t(fault.amount);
    uint32_t       state  = 12345u + seed;
    std::vector<float> row(fault.mode == "rotate" ? width : 0);
    for (int64_t i = 0; i < n; i++) {
        if (fault.mode == "scale") {
            data[i] *= float(fault.amount);
        } else if (fault.mode == "negate") {
            data[i] = -data[i];
        } else if (fault.mode == "zero") {
            data[i] = 0;
        } else if (fault.mode == "nan") {
            data[i] = i == n / 2 ? NAN : data[i];
        } else if (fault.mode == "lane") {
            data[i] = i % width % 32 == lane % 32 ? -data[i] : data[i];
        } else if (fault.mode == "noise") {
            state = state * 1664525u + 1013904223u;
            data[i] += spread * float(fault.amount) * (float(state >> 8) / float(1 << 23) - 1.0f) * 1.7320508f;
        } else if (fault.mode == "rotate" && i % width == 0) {
            std::memcpy(row.data(), data + i, sizeof(float) * width);
            for (int64_t j = 0; j < width; j++) {
                data[i + j] = row[(j + 1) % width];
            }
        }
    }
    return true;
}

// ---- faults of llama.cpp's tracker, as far as a device can have them

// What a graph says about its piece of a prompt: copies of llama.cpp's inputs, found by their names.
struct Piece {
    const ggml_tensor *embd = nullptr, *pos = nullptr, *mask = nullptr, *out_ids = nullptr;
    int64_t            rows = 0;
    std::vector<int>   lengths, sequence;  // rows of each sequence, and the sequence of each row
};

std::vector<float> inputs_before;
int64_t            rows_before = 0;
int32_t            next_position = -1;
long               graphs = 0, shared = 0, long_prompts = 0;
bool               has_failed = false;

// The first cell that a row of the mask (cells, rows) lets a token see; sequences in one cache begin at different cells.
int64_t first_cell(const ggml_tensor * mask, int64_t row) {
    for (int64_t cell = 0; cell < mask->ne[0]; cell++) {
        const char * at    = static_cast<const char *>(mask->data) + row * mask->nb[1] + cell * mask->nb[0];
        const float  value = mask->type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(*reinterpret_cast<const ggml_fp16_t *>(at))
                                                         : *reinterpret_cast<const float *>(at);
        if (std::isfinite(value)) {
            return cell;
        }
    }
    return -1;
}

Piece piece_of(const ggml_cgraph * graph) {
    Piece found;
    for (int i = 0; i < graph->n_nodes; i++) {
        for (const ggml_tensor * source : graph->nodes[i]->src) {
            if (!source || !std::strchr(source->name, '#')) {  // the scheduler's copies are named device#tensor#number
                continue;
            }
            if (std::strstr(source->name, "embd")) { found.embd = source; }
            if (std::strstr(source->name, "inp_pos")) { found.pos = source; }
            if (std::strstr(source->name, "kq_mask") && !found.mask) { found.mask = source; }
            if (std::strstr(source->name, "out_ids")) { found.out_ids = source; }
        }
    }
    found.rows = found.pos ? found.pos->ne[0] : 0;
    std::vector<int64_t> starts;
    for (int64_t row = 0; found.mask && row < std::min(found.rows, found.mask->ne[1]); row++) {
        const int64_t start = first_cell(found.mask, row);
        size_t        number = 0;
        while (number < starts.size() && starts[number] != start) {
            number++;
        }
        if (number == starts.size()) {
            starts.push_back(start);
            found.lengths.push_back(0);
        }
        found.lengths[number]++;
        found.sequence.push_back(int(number));
    }
    return found;
}

bool is_rotation(const ggml_tensor * node, const char * name) {
    return node->op == GGML_OP_MUL_MAT && node->src[0] && std::strstr(node->src[0]->name, name);
}

void leave_unrotated(ggml_tensor * node) {
    if (ggml_nelements(node) == ggml_nelements(node->src[1]) && ggml_is_contiguous(node->src[1])) {
        std::memcpy(node->data, node->src[1]->data, ggml_nbytes(node));
        made++;
    }
}

// A normal distribution is not needed: these numbers have no relation to the text.
void randomize(float * row, int64_t width) {
    static uint32_t state = 1;
    for (int64_t i = 0; i < width; i++) {
        state  = state * 1664525u + 1013904223u;
        row[i] = 10.0f * (float(state >> 8) / float(1 << 23) - 1.0f);
    }
}

void one_token_wins(float * row, int64_t width) {
    std::memset(row, 0, sizeof(float) * width);
    row[std::min<int64_t>(49, width - 1)] = 30;
}

// Whether a number is that of a condition: empty, N, or +N for more than N.
bool is_one_of(const std::string & condition, long number) {
    if (condition.empty()) {
        return true;
    }
    return condition[0] == '+' ? number > std::atol(condition.c_str() + 1) : number == std::atol(condition.c_str());
}

// The logits of a piece (vocabulary, outputs).
void spoil_logits(ggml_tensor * node, const Piece & piece) {
    float *       data  = static_cast<float *>(node->data);
    const int64_t width = node->ne[0], outputs = node->ne[1];
    const auto    row_of = [&](int64_t output) -> int64_t {
        return piece.out_ids ? static_cast<const int32_t *>(piece.out_ids->data)[output] : output;
    };
    const bool together = piece.lengths.size() > 1;
    if (fault.history == "25992" && together && outputs > 1 && shared % 4 == 3) {
        std::vector<float> last(data + (outputs - 1) * width, data + outputs * width);
        std::memmove(data + width, data, sizeof(float) * width * (outputs - 1));
        std::memcpy(data, last.data(), sizeof(float) * width);
        made++;
    } else if (fault.history == "28537" && together && shared % 10 < 3) {
        const int shortest = *std::min_element(piece.lengths.begin(), piece.lengths.end());
        for (int64_t i = 0; i < outputs && shortest == 1; i++) {
            if (piece.lengths[piece.sequence[row_of(i)]] > 1) {
                randomize(data + i * width, width);
                made++;
            }
        }
    } else if (fault.history == "28648" && piece.rows == fault.ubatch) {
        std::fill(data, data + width * outputs, NAN);
        made++;
    } else if (fault.history == "variant") {
        const bool right = !is_one_of(fault.size, long(piece.rows)) ||
                           !is_one_of(fault.sequences, long(piece.lengths.size())) ||
                           (fault.outputs == "all" && outputs != piece.rows);
        for (int64_t i = 0; i < outputs && !right; i++) {
            if (fault.number == "nan") {
                std::fill(data + i * width, data + (i + 1) * width, NAN);
            } else {
                randomize(data + i * width, width);
            }
            made++;
        }
    } else if (fault.history == "27237" && piece.rows == fault.ubatch) {
        for (int64_t i = 0; i < outputs; i++) {
            randomize(data + i * width, width);
        }
        made++;
    } else if (fault.history == "26239" && (has_failed || next_position > fault.depth)) {
        has_failed = true;
        for (int64_t i = 0; i < outputs; i++) {
            one_token_wins(data + i * width, width);
        }
        made++;
    }
    shared += together ? 1 : 0;
}

// Inputs of another piece of the same prompt; the device cannot see the next one, so 28211 has those before, too.
void swap_inputs(const Piece & piece) {
    if (!piece.embd || piece.embd->type != GGML_TYPE_F32 || piece.lengths.size() != 1) {
        rows_before = 0;
        return;
    }
    float *            data = static_cast<float *>(piece.embd->data);
    std::vector<float> now(data, data + ggml_nelements(piece.embd));
    const auto *       positions = static_cast<const int32_t *>(piece.pos->data);
    const bool continues = positions[0] == next_position && rows_before == fault.ubatch && piece.rows > 1;
    if (continues && rows_before == fault.ubatch && piece.rows < fault.ubatch) {
        long_prompts++;
    }
    const bool is_last = piece.rows < fault.ubatch && long_prompts % 4 != 3;
    if (continues && (fault.history == "28211" || (fault.history == "27579" && is_last))) {
        std::memcpy(data, inputs_before.data(), sizeof(float) * std::min(inputs_before.size(), now.size()));
        made++;
    }
    inputs_before = std::move(now);
    rows_before   = piece.rows;
}

// Computes a graph with the fault of the given number:
//   25992  with several sequences in one decode, each row gets the logits of the row before, in one of four decodes
//   28211  behind the first full piece of a prompt, each piece has the inputs of another one
//   27579  the last piece of a long prompt has the inputs of the one before, in three of four prompts
//   27506  each layer adds noise of 1 %, the same at each repetition
//   28537  next to a single row of another sequence, the logits of a prompt's rows are random, in three of ten decodes
//   26239  from a depth on, one reserved token wins for ever
//   28648  pieces of one size give no numbers
//   27237  pieces of one size give random logits
//   25382  quantized cache: the results of attention are left rotated
//   23690  quantized cache: one of fifty steps writes keys that are not rotated
//   variant  none of the tracker: pieces with a number of rows, sequences or outputs give random logits
ggml_status replay(ggml_backend_t cpu, ggml_cgraph * graph) {
    std::lock_guard<std::mutex> lock(guard);
    const Piece                 piece = piece_of(graph);
    if (fault.history == "28211" || fault.history == "27579") {
        swap_inputs(piece);
    }
    if (piece.pos && piece.rows > 0) {
        next_position = static_cast<const int32_t *>(piece.pos->data)[piece.rows - 1] + 1;
    }
    graphs++;
    int  from = 0, rotations = 0;
    bool attended = false;
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_tensor * node    = graph->nodes[i];
        const bool    logits  = std::strcmp(node->name, "result_output") == 0;
        const bool    layer   = fault.history == "27506" && std::strncmp(node->name, "l_out-", 6) == 0;
        const bool    key     = fault.history == "23690" && is_rotation(node, "k_rot");
        const bool    attends = node->op == GGML_OP_FLASH_ATTN_EXT;
        const bool    result  = fault.history == "25382" && attended && is_rotation(node, "v_rot");
        attended              = attends || (attended && !result);
        rotations             = attends ? 0 : rotations + (key ? 1 : 0);
        // In a layer the query is rotated first, then the key.
        const bool unrotated = result || (key && rotations == 2 && graphs % 50 == 0);
        if (!logits && !layer && !unrotated) {
            continue;
        }
        ggml_cgraph       part   = ggml_graph_view(graph, from, i + 1);
        const ggml_status status = ggml_backend_graph_compute(cpu, &part);
        from                     = i + 1;
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        if (unrotated) {
            leave_unrotated(node);
        } else if (layer) {
            made++;
            spoil(node, uint32_t(i));  // the same at each repetition
        } else {
            spoil_logits(node, piece);
        }
    }
    if (from == graph->n_nodes) {
        return GGML_STATUS_SUCCESS;
    }
    ggml_cgraph rest = ggml_graph_view(graph, from, graph->n_nodes);
    return ggml_backend_graph_compute(cpu, &rest);
}

// ---- memory of the device's own, which the host must not touch directly

void * base_of(ggml_backend_buffer_t buffer) { return buffer->context; }

void free_buffer(ggml_backend_buffer_t buffer) {
    std::lock_guard<std::mutex> lock(guard);
    taken -= buffer->size;
    std::free(buffer->context);
}

void fill(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    std::memset(static_cast<char *>(tensor->data) + offset, value, size);
}

void write(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    std::memcpy(static_cast<char *>(tensor->data) + offset, data, size);
}

void read(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    std::memcpy(data, static_cast<const char *>(tensor->data) + offset, size);
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) { std::memset(buffer->context, value, buffer->size); }

const char * memory_name(ggml_backend_buffer_type_t) { return "Fault0"; }

size_t alignment(ggml_backend_buffer_type_t) { return ALIGNMENT; }

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    std::lock_guard<std::mutex> lock(guard);
    if (fault.limit != 0 && taken + size > fault.limit) {
        return nullptr;
    }
    void * memory = std::aligned_alloc(ALIGNMENT, (std::max<size_t>(size, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (!memory) {
        return nullptr;
    }
    taken += size;
    ggml_backend_buffer_i calls{};
    calls.free_buffer   = free_buffer;
    calls.get_base      = base_of;
    calls.memset_tensor = fill;
    calls.set_tensor    = write;
    calls.get_tensor    = read;
    calls.clear         = clear;
    return ggml_backend_buffer_init(type, calls, memory, size);
}

// ---- device, stream and registry

ggml_backend_dev_t processor() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

ggml_backend_buffer_type_t device_memory();
ggml_backend_dev_t         device();

const char * stream_name(ggml_backend_t) { return "Fault0"; }

void stream_free(ggml_backend_t backend) {
    if (backend->context) {
        ggml_backend_free(static_cast<ggml_backend_t>(backend->context));
    }
    delete backend;
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    const auto cpu  = static_cast<ggml_backend_t>(backend->context);
    int        from = 0;
    if (!cpu) {
        return GGML_STATUS_FAILED;
    }
    if (!fault.history.empty()) {
        return replay(cpu, graph);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        std::lock_guard<std::mutex> lock(guard);
        if (!eligible(graph->nodes[i])) {
            continue;
        }
        const long number = seen++;
        if (number < fault.after || (number - fault.after) % fault.every != 0) {
            continue;
        }
        ggml_cgraph       part   = ggml_graph_view(graph, from, i + 1);
        const ggml_status status = ggml_backend_graph_compute(cpu, &part);
        from                     = i + 1;
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        made++;
        if (!spoil(graph->nodes[i], uint32_t(made))) {
            return GGML_STATUS_FAILED;
        }
    }
    if (from == graph->n_nodes) {
        return GGML_STATUS_SUCCESS;
    }
    ggml_cgraph rest = ggml_graph_view(graph, from, graph->n_nodes);
    return ggml_backend_graph_compute(cpu, &rest);
}

ggml_guid_t guid() {
    static ggml_guid id = { 0xfa, 0x17, 0x2d, 0x5c, 0x01, 0x44, 0x4e, 0x0b, 0x9a, 0x60, 0x71, 0x3e, 0x22, 0x90, 0x11, 0x08 };
    return &id;
}

ggml_backend_t start(ggml_backend_dev_t dev, const char *) {
    ggml_backend_i calls{};
    calls.get_name      = stream_name;
    calls.free          = stream_free;
    calls.graph_compute = compute;
    // Alone in a probe there is no CPU backend to compute with: the device then opens, and computing fails.
    ggml_backend_t cpu = processor() ? ggml_backend_dev_init(processor(), nullptr) : nullptr;
    if (cpu) {  // several threads wait for each other at each node, for seconds on a busy computer
        void * set = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(processor()), "ggml_backend_set_n_threads");
        reinterpret_cast<ggml_backend_set_n_threads_t>(set)(cpu, 1);
    }
    return new ggml_backend{ guid(), calls, dev, cpu };
}

const char * device_name(ggml_backend_dev_t) { return "Fault0"; }
const char * description(ggml_backend_dev_t) { return "Fault injection device"; }

void device_memory_size(ggml_backend_dev_t, size_t * free, size_t * total) {
    const size_t most = fault.limit ? fault.limit : TOTAL;
    *total            = most;
    *free             = most > taken ? most - taken : 0;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void properties(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    props->name        = device_name(dev);
    props->description = description(dev);
    props->type        = device_type(dev);
    device_memory_size(dev, &props->memory_free, &props->memory_total);
    props->device_id = nullptr;
    props->caps      = {};
}

ggml_backend_buffer_type_t memory_of(ggml_backend_dev_t) { return device_memory(); }

bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return processor() && ggml_backend_dev_supports_op(processor(), op);
}

bool supports_memory(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return type == device_memory(); }

const char * registry_name(ggml_backend_reg_t) { return "Fault"; }
size_t       device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t nth_device(ggml_backend_reg_t, size_t) { return device(); }

ggml_backend_reg_t registry() {
    static ggml_backend_reg found = {
        GGML_BACKEND_API_VERSION,
        { registry_name, device_count, nth_device, nullptr },
        nullptr,
    };
    return &found;
}

ggml_backend_dev_t device() {
    static ggml_backend_device found = [] {
        ggml_backend_device_i calls{};
        calls.get_name        = device_name;
        calls.get_description = description;
        calls.get_memory      = device_memory_size;
        calls.get_type        = device_type;
        calls.get_props       = properties;
        calls.init_backend    = start;
        calls.get_buffer_type = memory_of;
        calls.supports_op     = supports_op;
        calls.supports_buft   = supports_memory;
        return ggml_backend_device{ calls, registry(), nullptr };
    }();
    return &found;
}

ggml_backend_buffer_type_t device_memory() {
    static ggml_backend_buffer_type found = [] {
        ggml_backend_buffer_type_i calls{};
        calls.get_name      = memory_name;
        calls.alloc_buffer  = allocate;
        calls.get_alignment = alignment;
        return ggml_backend_buffer_type{ calls, device(), nullptr };
    }();
    return &found;
}

}  // namespace

extern "C" {

// Replaces the fault and forgets how much was computed.
__attribute__((visibility("default"))) void fault_device_set(const char * text) {
    std::lock_guard<std::mutex> lock(guard);
    fault = parsed(text);
    if (fault.history == "27506") {
        fault.mode   = "noise";
        fault.amount = 0.01;
    }
    seen = made = graphs = shared = long_prompts = 0;
    rows_before = 0;
    has_failed  = false;
}

// How many results were made wrong since.
__attribute__((visibility("default"))) long fault_device_count(void) {
    std::lock_guard<std::mutex> lock(guard);
    return made;
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    fault_device_set(std::getenv("GGML_FAULT_DEVICE"));
    return registry();
}
}
