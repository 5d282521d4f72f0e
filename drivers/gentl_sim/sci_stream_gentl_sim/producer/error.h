// Errors inside the producer, and how they become GenTL's return codes.
#pragma once

#include <cstdarg>
#include <stdexcept>
#include <string>

#include "gentl.h"

namespace sci {

/// What went wrong, with the code that the consumer gets and the text that GCGetLastError gives.
class Error : public std::runtime_error {
public:
    Error(gentl::GcError code, const std::string& text) : std::runtime_error(text), code(code) {}
    const gentl::GcError code;
};

/// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

/// Keep an error for this thread's GCGetLastError, and return its code.
int32_t remember(gentl::GcError code, const std::string& text) noexcept;

/// The code and text of the thread's last error.
int32_t last_error_code() noexcept;
const std::string& last_error_text() noexcept;

/// Run the body of an exported function: no C++ exception may cross a C interface.
template <class Body>
int32_t guarded(Body&& body) noexcept {
    try {
        body();
        return gentl::GC_ERR_SUCCESS;
    } catch (const Error& error) {
        return remember(error.code, error.what());
    } catch (const std::bad_alloc&) {
        return remember(gentl::GC_ERR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception& error) {
        return remember(gentl::GC_ERR_ERROR, error.what());
    } catch (...) {
        return remember(gentl::GC_ERR_ERROR, "an unknown error");
    }
}

/// Refuse a null pointer that the caller had to give.
inline void require(const void* pointer, const char* name) {
    if (pointer == nullptr) {
        throw Error(gentl::GC_ERR_INVALID_PARAMETER, std::string(name) + " must not be NULL");
    }
}

}  // namespace sci
