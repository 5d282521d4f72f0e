#include "pixel_formats.h"

#include <cstring>

namespace sci {

namespace {

/// The formats of one mosaic, whose codes are given in this order: 8, 10, 12, 16, 10p, 12p, 10Packed, 12Packed.
void add_family(std::vector<PixelFormat>& formats, const std::string& family, Mosaic mosaic, const uint32_t (&ids)[8]) {
    struct Layout {
        const char* suffix;
        int bits;
        uint32_t bits_in_memory;
        Packing packing;
    };
    static const Layout layouts[8] = {
        {"8", 8, 8, Packing::Bytes},          {"10", 10, 16, Packing::Words},
        {"12", 12, 16, Packing::Words},       {"16", 16, 16, Packing::Words},
        {"10p", 10, 10, Packing::LsbPacked},  {"12p", 12, 12, Packing::LsbPacked},
        {"10Packed", 10, 12, Packing::GigePacked}, {"12Packed", 12, 12, Packing::GigePacked},
    };
    for (int i = 0; i < 8; ++i) {
        // PFNC: 0x01 for one component, then the bits that a pixel takes in memory, then the format's number.
        const uint32_t code = 0x01000000u | layouts[i].bits_in_memory << 16 | ids[i];
        formats.push_back({family + layouts[i].suffix, code, mosaic, layouts[i].bits, layouts[i].packing});
    }
}

std::vector<PixelFormat> make_formats() {
    std::vector<PixelFormat> formats;
    add_family(formats, "Mono", Mosaic::Mono, {0x01, 0x03, 0x05, 0x07, 0x46, 0x47, 0x04, 0x06});
    add_family(formats, "BayerGR", Mosaic::GR, {0x08, 0x0c, 0x10, 0x2e, 0x56, 0x57, 0x26, 0x2a});
    add_family(formats, "BayerRG", Mosaic::RG, {0x09, 0x0d, 0x11, 0x2f, 0x58, 0x59, 0x27, 0x2b});
    add_family(formats, "BayerGB", Mosaic::GB, {0x0a, 0x0e, 0x12, 0x30, 0x54, 0x55, 0x28, 0x2c});
    add_family(formats, "BayerBG", Mosaic::BG, {0x0b, 0x0f, 0x13, 0x31, 0x52, 0x53, 0x29, 0x2d});
    return formats;
}

/// Four samples are a whole number of bytes in either depth, and fit into one word of the processor.
template <int bits>
void pack_lsb(const uint16_t* samples, size_t width, uint8_t* out) {
    for (size_t i = 0; i + 3 < width; i += 4, out += bits / 2) {
        const uint64_t four = samples[i] | uint64_t{samples[i + 1]} << bits | uint64_t{samples[i + 2]} << 2 * bits |
                              uint64_t{samples[i + 3]} << 3 * bits;
        std::memcpy(out, &four, bits / 2);  // the host is little-endian, see port information
    }
}

/// Two samples are three bytes: high bits, low bits of both, high bits. Two such pairs go out at a time.
template <int bits>
void pack_gige(const uint16_t* samples, size_t width, uint8_t* out) {
    constexpr int low = bits - 8;
    constexpr uint64_t mask = (1u << low) - 1;
    const auto pair = [](uint64_t first, uint64_t second) {
        return first >> low | (first & mask) << 8 | (second & mask) << 12 | (second >> low) << 16;
    };
    for (size_t i = 0; i + 3 < width; i += 4, out += 6) {
        const uint64_t four = pair(samples[i], samples[i + 1]) | pair(samples[i + 2], samples[i + 3]) << 24;
        std::memcpy(out, &four, 6);  // likewise
    }
}

}  // namespace

const std::vector<PixelFormat>& pixel_formats() {
    static const std::vector<PixelFormat> formats = make_formats();
    return formats;
}

const PixelFormat* find_pixel_format(uint32_t code) {
    for (const PixelFormat& format : pixel_formats()) {
        if (format.code == code) {
            return &format;
        }
    }
    return nullptr;
}

const PixelFormat& plain_format(Mosaic mosaic, int bits) {
    for (const PixelFormat& format : pixel_formats()) {
        if (format.mosaic == mosaic && format.bits >= bits) {
            return format;
        }
    }
    return pixel_formats().front();
}

void pack_line(const PixelFormat& format, const uint16_t* samples, size_t width, uint8_t* out) {
    switch (format.packing) {
        case Packing::Bytes:
            for (size_t i = 0; i < width; ++i) {
                out[i] = static_cast<uint8_t>(samples[i]);
            }
            break;
        case Packing::Words:
            std::memcpy(out, samples, width * sizeof *samples);  // likewise
            break;
        case Packing::LsbPacked:
            format.bits == 10 ? pack_lsb<10>(samples, width, out) : pack_lsb<12>(samples, width, out);
            break;
        case Packing::GigePacked:
            format.bits == 10 ? pack_gige<10>(samples, width, out) : pack_gige<12>(samples, width, out);
            break;
    }
}

}  // namespace sci
