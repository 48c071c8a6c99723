// Memory and threads of one backend, and what it computes with them.
#pragma once

#include "tiles.h"

#include "ggml.h"

#include <memory>
#include <new>

namespace tiles {

// Parts of an operation for each thread, so that none waits long for the last one.
constexpr int64_t PARTS = 4;

constexpr std::align_val_t LINE{64};

// C's aligned_alloc is not in every C library: mingw-w64 has none.
struct Free {
    void operator()(uint8_t * p) const { ::operator delete(p, LINE); }
};

struct Context {
    int threads = 1;
    std::unique_ptr<uint8_t, Free> memory;
    size_t size = 0;

    uint8_t * at_least(size_t bytes) {
        if (size < bytes) {
            memory.reset();
            const size_t whole = (bytes + 4095) / 4096 * 4096;
            memory.reset(static_cast<uint8_t *>(::operator new(whole, LINE, std::nothrow)));
            size = memory ? whole : 0;
        }
        return memory.get();
    }
};

inline size_t lined_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The best of this processor; null: it has none.
const Kernels * kernels();

// These weights lie in an order of llama.cpp's own kernels.
bool is_rewritten(const ggml_tensor * weights);

// Products and attention. False: no memory for them.
bool multiply(Context & context, ggml_tensor * out);
bool multiply_experts(Context & context, ggml_tensor * out);
bool attend(Context & context, const ggml_tensor * out);

// This attention is one that `attend` computes.
bool can_attend(const ggml_tensor * out);

}  // namespace tiles
