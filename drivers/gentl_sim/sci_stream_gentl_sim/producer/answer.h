// How a GenTL information query is answered.
#pragma once

#include <cstring>
#include <string>

#include "error.h"

namespace sci {

/// Writes one value where the caller of an "…GetInfo" function wants it.
///
/// The standard's protocol: without a buffer the caller asks only for the size; a buffer that is too small is an error.
class Answer {
public:
    Answer(int32_t* type, void* buffer, size_t* size) : type_(type), buffer_(buffer), size_(size) {
        require(size, "piSize");
    }

    void text(const std::string& value) { put(gentl::INFO_DATATYPE_STRING, value.c_str(), value.size() + 1); }
    void int32(int32_t value) { put(gentl::INFO_DATATYPE_INT32, &value, sizeof value); }
    void uint32(uint32_t value) { put(gentl::INFO_DATATYPE_UINT32, &value, sizeof value); }
    void uint64(uint64_t value) { put(gentl::INFO_DATATYPE_UINT64, &value, sizeof value); }
    void size(size_t value) { put(gentl::INFO_DATATYPE_SIZET, &value, sizeof value); }
    void boolean(bool value) {
        const gentl::bool8 byte = value ? 1 : 0;
        put(gentl::INFO_DATATYPE_BOOL8, &byte, sizeof byte);
    }
    void pointer(const void* value) { put(gentl::INFO_DATATYPE_PTR, &value, sizeof value); }

private:
    void put(int32_t type, const void* value, size_t length) {
        if (type_ != nullptr) {
            *type_ = type;
        }
        if (buffer_ == nullptr) {
            *size_ = length;
            return;
        }
        if (*size_ < length) {
            throw Error(gentl::GC_ERR_BUFFER_TOO_SMALL,
                        format("the buffer holds %zu bytes, %zu are needed", *size_, length));
        }
        std::memcpy(buffer_, value, length);
        *size_ = length;
    }

    int32_t* type_;
    void* buffer_;
    size_t* size_;
};

/// The answer to a command that the standard does not know, or that has no meaning here.
[[noreturn]] inline void unknown_command(const char* function, int32_t command) {
    throw Error(gentl::GC_ERR_NOT_IMPLEMENTED, format("%s does not know the command %d", function, command));
}

}  // namespace sci
