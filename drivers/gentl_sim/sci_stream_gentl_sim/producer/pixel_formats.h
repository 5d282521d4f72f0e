// Pixel formats of GenICam's PFNC: their codes, and how a line of samples is laid out in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sci {

/// Colour filters of a sensor: the colours of its first two pixels name the phase. As in the frame file.
enum class Mosaic : uint32_t { Mono = 0, GR = 1, RG = 2, GB = 3, BG = 4 };

enum class Packing {
    Bytes,       ///< 8 bits in a byte each
    Words,       ///< 10, 12 or 16 bits in the low end of a little-endian 16-bit word each
    LsbPacked,   ///< "p": one after the other without a gap, lowest bit first
    GigePacked,  ///< "Packed": two in three bytes, the low bits of both share the middle one
};

struct PixelFormat {
    std::string name;
    uint32_t code;
    Mosaic mosaic;
    int bits;
    Packing packing;

    size_t line_bytes(size_t width) const { return width * ((code >> 16) & 0xff) / 8; }
};

/// All that the camera has.
const std::vector<PixelFormat>& pixel_formats();

/// The one with a PFNC code, or null.
const PixelFormat* find_pixel_format(uint32_t code);

/// The unpacked format of a depth, such as Mono12: what a camera starts with.
const PixelFormat& plain_format(Mosaic mosaic, int bits);

/// Lay out `width` samples, each within the format's bits; `width` must be a multiple of 4.
void pack_line(const PixelFormat& format, const uint16_t* samples, size_t width, uint8_t* out);

}  // namespace sci
