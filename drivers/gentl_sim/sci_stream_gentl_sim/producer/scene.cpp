#include "scene.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "error.h"

namespace sci {

namespace {

/// Header of a frame file, little-endian. The Python side writes the same in drivers/gentl_sim/frames.py.
struct Header {
    char magic[8];
    uint32_t version, header_bytes, width, height, frames, bits, mosaic, reserved;
    double black_dn, exposure_us, rate_hz;
};
static_assert(sizeof(Header) == 64, "the header has no padding");

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
    throw Error(gentl::GC_ERR_IO, "frame file " + path + ": " + why);
}

/// The sample that the pattern has at a place on the sensor: README.md gives the formula, tests hold us to it.
uint32_t ramp(uint64_t index, uint32_t x, uint32_t y) {
    return static_cast<uint32_t>(x + 3 * static_cast<uint64_t>(y) + 17 * index);
}

/// What exposure, gain and black level make of each digital number that the frames were rendered with.
std::vector<uint16_t> response(const Shot& shot) {
    const Sensor& sensor = shot.sensor;
    const double gain = shot.exposure_us / sensor.exposure_us * std::pow(10.0, shot.gain_db / 20.0);
    std::vector<uint16_t> out(sensor.max_dn() + 1);
    for (uint32_t dn = 0; dn < out.size(); ++dn) {
        const double counts = std::rint((dn - sensor.black_dn) * gain + shot.black_dn);
        out[dn] = static_cast<uint16_t>(std::clamp(counts, 0.0, static_cast<double>(sensor.max_dn())));
    }
    return out;
}

/// Fill one line with samples of the sensor's depth.
void expose_line(const Shot& shot, const std::vector<uint16_t>& table, uint32_t y, std::vector<uint16_t>& line) {
    const uint32_t max_dn = shot.sensor.max_dn();
    if (shot.pattern == TestPattern::GreyDiagonalRampMoving) {
        for (uint32_t i = 0; i < shot.width; ++i) {
            line[i] = static_cast<uint16_t>(ramp(shot.index, shot.x + i, y) & max_dn);
        }
    } else if (shot.pattern == TestPattern::Off && shot.file) {
        const uint16_t* from = shot.file->line(shot.index, y) + shot.x;
        for (uint32_t i = 0; i < shot.width; ++i) {
            line[i] = table[std::min<uint32_t>(from[i], max_dn)];
        }
    } else {  // without a scene the sensor sits in the dark
        const double dark = std::clamp(std::rint(shot.black_dn), 0.0, static_cast<double>(max_dn));
        const bool white = shot.pattern == TestPattern::White;
        std::fill(line.begin(), line.end(), static_cast<uint16_t>(white ? max_dn : dark));
    }
}

/// Bring samples from the sensor's depth to the format's: a converter of fewer bits leaves the lowest away.
void quantise(std::vector<uint16_t>& line, int from_bits, int to_bits) {
    const int down = from_bits - to_bits;
    for (uint16_t& sample : line) {
        sample = static_cast<uint16_t>(down >= 0 ? sample >> down : sample << -down);
    }
}

}  // namespace

FrameFile::FrameFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        refuse(path, std::strerror(errno));
    }
    struct stat status {};
    if (fstat(file, &status) == 0) {
        size_ = static_cast<size_t>(status.st_size);
    }
    void* map = size_ == 0 ? MAP_FAILED : mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map == MAP_FAILED) {
        refuse(path, "empty, or cannot be mapped");
    }
    data_ = static_cast<const uint8_t*>(map);
    try {
        parse(path);
    } catch (...) {
        munmap(map, size_);
        throw;
    }
}

void FrameFile::parse(const std::string& path) {
    Header header;
    if (size_ < sizeof header) {
        refuse(path, format("expected a header of %zu bytes, got %zu", sizeof header, size_));
    }
    std::memcpy(&header, data_, sizeof header);
    if (std::memcmp(header.magic, "SCIFRAME", 8) != 0 || header.version != 1) {
        refuse(path, "expected the mark SCIFRAME and version 1: render it with python -m drivers.gentl_sim render");
    }
    const bool fits = header.width >= 16 && header.width <= 16384 && header.width % 8 == 0 && header.height >= 2 &&
                      header.height <= 16384 && header.height % 2 == 0;
    const bool sane = header.frames > 0 && header.bits >= 8 && header.bits <= 16 && header.mosaic <= 4 &&
                      header.header_bytes >= sizeof header && header.header_bytes % 2 == 0 &&
                      header.exposure_us >= 1 && header.rate_hz > 0 && header.black_dn >= 0;
    if (!fits || !sane) {
        refuse(path, format("the header says %u frames of %u x %u, %u bit: expected a width in steps of 8, an even "
                            "height and 8 to 16 bit", header.frames, header.width, header.height, header.bits));
    }
    const uint64_t needed = header.header_bytes + uint64_t{2} * header.width * header.height * header.frames;
    if (size_ < needed) {
        refuse(path, format("expected %llu bytes for %u frames, got %zu", static_cast<unsigned long long>(needed),
                            header.frames, size_));
    }
    first_ = header.header_bytes;
    sensor_ = {header.width, header.height, header.frames, header.bits, static_cast<Mosaic>(header.mosaic), false,
               header.black_dn, header.exposure_us, header.rate_hz};
}

FrameFile::~FrameFile() { munmap(const_cast<uint8_t*>(data_), size_); }

const uint16_t* FrameFile::line(uint64_t index, uint32_t y) const {
    const size_t number = index % sensor_.frames * sensor_.height + y;
    return reinterpret_cast<const uint16_t*>(data_ + first_) + number * sensor_.width;
}

size_t Shot::chunk_bytes(Chunk chunk) const {
    return chunks && chunk != Chunk::Image && chunk_enabled[static_cast<int>(chunk)] ? 8 : 0;
}

size_t Shot::payload_bytes() const {
    size_t bytes = image_bytes();
    for (int chunk = 0; chunk < kChunks; ++chunk) {
        bytes += chunk_bytes(static_cast<Chunk>(chunk));
    }
    return bytes;
}

size_t render(const Shot& shot, uint8_t* out, size_t size) {
    const size_t line_bytes = shot.format->line_bytes(shot.width);
    const uint32_t lines = static_cast<uint32_t>(
        std::min<size_t>(shot.incomplete ? shot.height / 2 : shot.height, line_bytes == 0 ? 0 : size / line_bytes));
    const bool from_file = shot.pattern == TestPattern::Off && shot.file;
    const std::vector<uint16_t> table = from_file ? response(shot) : std::vector<uint16_t>();
    std::vector<uint16_t> line(shot.width);
    for (uint32_t row = 0; row < lines; ++row) {
        expose_line(shot, table, shot.y + row, line);
        quantise(line, static_cast<int>(shot.sensor.bits), shot.format->bits);
        pack_line(*shot.format, line.data(), shot.width, out + row * line_bytes);
    }
    size_t filled = lines * line_bytes;
    if (shot.incomplete || size < shot.payload_bytes()) {
        return filled;
    }
    const uint64_t chunks[kChunks] = {0, shot.id, shot.timestamp_ns, 0, 0};
    const double numbers[kChunks] = {0, 0, 0, shot.exposure_us, shot.gain_db};
    for (int i = 0; i < kChunks; ++i) {
        const auto chunk = static_cast<Chunk>(i);
        const bool real = chunk == Chunk::ExposureTime || chunk == Chunk::Gain;
        const size_t bytes = shot.chunk_bytes(chunk);
        std::memcpy(out + filled, real ? static_cast<const void*>(&numbers[i]) : &chunks[i], bytes);
        filled += bytes;
    }
    return filled;
}

}  // namespace sci
