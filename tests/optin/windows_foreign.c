// A plugin built for another ggml: its registry has an interface version of the future.

#include <stddef.h>

struct registry {
    int          api_version;
    const char * (*get_name)(struct registry *);
    size_t (*count)(struct registry *);
    void * (*device)(struct registry *, size_t);
    void * (*address)(struct registry *, const char *);
    void * context;
};

static const char * name(struct registry * registry) { (void) registry; return "Foreign"; }
static size_t none(struct registry * registry) { (void) registry; return 0; }

static struct registry found = { 1000, name, none, NULL, NULL, NULL };

__declspec(dllexport) struct registry * ggml_backend_init(void) { return &found; }
