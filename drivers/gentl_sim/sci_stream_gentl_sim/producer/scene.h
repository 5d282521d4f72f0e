// What the simulated sensor sees: coded frames from a file, or a test pattern; and what comes out of its converter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pixel_formats.h"

namespace sci {

/// The sensor, and where it had its light when its frames were rendered.
struct Sensor {
    uint32_t width = 1280, height = 1024;
    uint32_t frames = 0;  ///< In the file; 0 without one.
    uint32_t bits = 12;
    Mosaic mosaic = Mosaic::Mono;
    bool any_mosaic = true;  ///< Without a file there are no colour filters to contradict.
    double black_dn = 64;
    double exposure_us = 1000;  ///< ExposureTime at which the frames come as they were rendered.
    double rate_hz = 30;

    uint32_t max_dn() const { return (1u << bits) - 1; }
};

/// Frames in a file of the format that README.md describes, mapped, so that none of it is read before it is shown.
class FrameFile {
public:
    /// Throws `Error` (GC_ERR_IO) that names the file and what is wrong with it.
    explicit FrameFile(const std::string& path);
    ~FrameFile();
    FrameFile(const FrameFile&) = delete;
    FrameFile& operator=(const FrameFile&) = delete;

    const Sensor& sensor() const { return sensor_; }
    /// Samples of a line of frame `index`, counted round and round.
    const uint16_t* line(uint64_t index, uint32_t y) const;

private:
    void parse(const std::string& path);

    const uint8_t* data_ = nullptr;
    size_t size_ = 0, first_ = 0;
    Sensor sensor_;
};

enum class TestPattern : int64_t { Off = 0, Black = 1, White = 2, GreyDiagonalRampMoving = 3 };

enum class Chunk : int64_t { Image = 0, FrameID = 1, Timestamp = 2, ExposureTime = 3, Gain = 4 };
constexpr int kChunks = 5;

/// Chunks have ids of this number and up in the description; the image is not one that can be read as a feature.
constexpr uint32_t kFirstChunkId = 0x1000;

/// One exposure: everything that its image depends on, as it was when the exposure began.
struct Shot {
    uint64_t index = 0;  ///< Since the start of the acquisition, whatever became of the ones before.
    uint64_t id = 0;
    uint64_t timestamp_ns = 0;
    uint32_t x = 0, y = 0, width = 0, height = 0;
    const PixelFormat* format = nullptr;
    double exposure_us = 0, gain_db = 0, black_dn = 0;
    TestPattern pattern = TestPattern::Off;
    std::shared_ptr<const FrameFile> file;
    Sensor sensor;
    bool chunks = false;
    bool chunk_enabled[kChunks] = {};
    bool incomplete = false;

    size_t image_bytes() const { return format->line_bytes(width) * height; }
    size_t payload_bytes() const;
    /// Bytes of one chunk; 0 if it is not there.
    size_t chunk_bytes(Chunk chunk) const;
};

/// Write image and chunks; an incomplete shot breaks off half-way through the image. Returns the bytes written.
size_t render(const Shot& shot, uint8_t* out, size_t size);

}  // namespace sci
