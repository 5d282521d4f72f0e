#include "error.h"

#include <cstdio>

namespace sci {

namespace {
// GenTL keeps the last error for each thread apart.
thread_local int32_t last_code = gentl::GC_ERR_SUCCESS;
thread_local std::string last_text = "No error";
}  // namespace

std::string format(const char* pattern, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, pattern);
    vsnprintf(text, sizeof text, pattern, arguments);
    va_end(arguments);
    return text;
}

int32_t remember(gentl::GcError code, const std::string& text) noexcept {
    last_code = code;
    try {
        last_text = text;
    } catch (...) {
        last_text.clear();
    }
    return code;
}

int32_t last_error_code() noexcept { return last_code; }

const std::string& last_error_text() noexcept { return last_text; }

}  // namespace sci
