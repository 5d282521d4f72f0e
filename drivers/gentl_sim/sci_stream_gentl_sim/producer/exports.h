// How this producer's functions are exported.
#pragma once

#include <algorithm>

#include "modules.h"

/// Everything else is hidden, so that two producers in one process do not mix.
#define GC_API extern "C" __attribute__((visibility("default"))) int32_t

namespace sci {

/// The body of a function that needs GCInitLib first.
template <class Body>
int32_t call(Body&& body) noexcept {
    return guarded([&] {
        Library::instance().require_init();
        body();
    });
}

inline void put_handle(gentl::Handle* out, const char* name, const std::function<gentl::Handle()>& make) {
    require(out, name);
    *out = make();
}

}  // namespace sci
