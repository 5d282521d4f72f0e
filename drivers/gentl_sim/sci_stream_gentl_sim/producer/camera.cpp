#include "camera.h"

#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "error.h"

namespace sci {

namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

/// The frame file that the environment names: one file for all cameras, or a folder with one for each serial number.
std::string scene_from_environment(const std::string& serial) {
    const char* value = std::getenv("SCI_GENTL_SIM_FRAMES");
    if (value == nullptr || *value == '\0') {
        return "";
    }
    struct stat status {};
    if (stat(value, &status) == 0 && S_ISDIR(status.st_mode)) {
        const std::string own = std::string(value) + "/" + serial + ".sciframes";
        return stat(own.c_str(), &status) == 0 ? own : "";
    }
    return value;
}

}  // namespace

Camera::Camera(int number) : serial_(format("SIM%04d", number)), lock_file_(serial_) {
    features_.is_locked = [this] { return acquiring_; };
    add_features();
    xml_ = features_.xml("SciSim", "Device");
    power_on_at_ = Clock::now();
}

Camera::~Camera() { close(); }

std::string Camera::user_id() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return features_.get_text("DeviceUserID");
}

bool Camera::present() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!present_ && Clock::now() >= back_at_) {
        present_ = true;
    }
    return present_;
}

bool Camera::opened_here() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return opened_;
}

bool Camera::in_use() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return opened_ || lock_file_.held_elsewhere();
}

uint64_t Camera::open() {
    if (!present()) {
        throw Error(gentl::GC_ERR_NOT_AVAILABLE, "camera " + serial_ + " is unplugged");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (opened_) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "camera " + serial_ + " is open in this process: close it first");
    }
    if (!lock_file_.acquire()) {
        throw Error(gentl::GC_ERR_ACCESS_DENIED,
                    "camera " + serial_ + " is in use by another program: close it there first");
    }
    try {
        power_on();
        quit_ = false;
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        lock_file_.release();
        throw;
    }
    opened_ = true;
    return ++connection_;
}

void Camera::close() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!opened_ || quit_) {
            return;
        }
        stop_acquisition();
        quit_ = true;
        changed_.notify_all();
    }
    thread_.join();
    set_receiver(nullptr);
    const std::lock_guard<std::mutex> lock(mutex_);
    lock_file_.release();
    opened_ = false;
    ++connection_;
}

void Camera::set_receiver(FrameReceiver* receiver) {
    const std::lock_guard<std::mutex> lock(delivery_mutex_);  // waits for a frame that is being handed over
    receiver_ = receiver;
}

void Camera::require_connection(uint64_t connection) {
    if (connection != connection_) {
        throw Error(gentl::GC_ERR_IO, "camera " + serial_ + " was unplugged: close it, and open it when it is back");
    }
}

bool Camera::is_lost(uint64_t connection) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return connection != connection_;
}

void Camera::read_register(uint64_t connection, uint64_t address, void* buffer, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    require_connection(connection);
    features_.read(address, buffer, size);
}

void Camera::write_register(uint64_t connection, uint64_t address, const void* buffer, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    require_connection(connection);
    features_.write(address, buffer, size);
    changed_.notify_all();  // a trigger, a rate, a start: whatever it was, the thread looks again
}

size_t Camera::payload_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return shot_of_now().payload_bytes();
}

void Camera::power_on() {
    features_.reset();
    power_on_at_ = Clock::now();
    delivered_ = 0;
    acquiring_ = false;
    ready_at_ = due_at_ = power_on_at_;
    load_scene(scene_from_environment(serial_));
    features_.set("UserSetDefault", default_set_);
    load_user_set(default_set_);
}

void Camera::load_scene(const std::string& path) {
    std::shared_ptr<const FrameFile> file;
    if (!path.empty()) {
        file = std::make_shared<const FrameFile>(path);
    }
    file_ = file;
    sensor_ = file ? file->sensor() : Sensor();
    features_.set("SimFramesFile", path);
    features_.set("OffsetX", int64_t{0});
    features_.set("OffsetY", int64_t{0});
    features_.set("Width", int64_t{sensor_.width});
    features_.set("Height", int64_t{sensor_.height});
    const auto depth = static_cast<int>(sensor_.bits);
    features_.set("PixelFormat", int64_t{plain_format(sensor_.mosaic, file ? depth : 8).code});
    features_.set("TestPattern", static_cast<int64_t>(file ? TestPattern::Off : TestPattern::GreyDiagonalRampMoving));
    features_.set("ExposureTime", sensor_.exposure_us);
    features_.set("AcquisitionFrameRate", sensor_.rate_hz);
    features_.set("BlackLevel", sensor_.black_dn);
    features_.set("Gain", 0.0);
}

void Camera::load_user_set(int64_t number) {
    const auto saved = user_sets_.find(number);
    if (saved == user_sets_.end()) {  // the factory's, or one that no one saved: as after power came
        const std::string scene = features_.get_text("SimFramesFile");
        for (const auto& entry : features_.save()) {
            features_.at(entry.first).banks.clear();
        }
        load_scene(scene);
        return;
    }
    const auto before = features_.save();
    features_.load(saved->second);
    const bool fits = features_.get_integer("OffsetX") + features_.get_integer("Width") <= sensor_.width &&
                      features_.get_integer("OffsetY") + features_.get_integer("Height") <= sensor_.height &&
                      offers(*find_pixel_format(static_cast<uint32_t>(features_.get_integer("PixelFormat"))));
    if (!fits) {
        features_.load(before);
        throw Error(gentl::GC_ERR_INVALID_VALUE, "the user set was saved with a scene of another size or mosaic");
    }
}

void Camera::save_user_set(int64_t number) {
    if (number == 0) {
        throw Error(gentl::GC_ERR_ACCESS_DENIED, "the user set Default is the factory's: save into UserSet1 or 2");
    }
    user_sets_[number] = features_.save();
}

bool Camera::offers(const PixelFormat& format) const {
    return format.mosaic == Mosaic::Mono || sensor_.any_mosaic || format.mosaic == sensor_.mosaic;
}

Shot Camera::shot_of_now() {
    Shot shot;
    shot.x = static_cast<uint32_t>(features_.get_integer("OffsetX"));
    shot.y = static_cast<uint32_t>(features_.get_integer("OffsetY"));
    shot.width = static_cast<uint32_t>(features_.get_integer("Width"));
    shot.height = static_cast<uint32_t>(features_.get_integer("Height"));
    shot.format = find_pixel_format(static_cast<uint32_t>(features_.get_integer("PixelFormat")));
    shot.exposure_us = features_.get_number("ExposureTime");
    shot.gain_db = features_.get_number("Gain");
    shot.black_dn = features_.get_number("BlackLevel");
    shot.pattern = static_cast<TestPattern>(features_.get_integer("TestPattern"));
    shot.file = file_;
    shot.sensor = sensor_;
    shot.chunks = features_.get_integer("ChunkModeActive") != 0;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
        shot.chunk_enabled[chunk] = features_.get_integer("ChunkEnable", chunk) != 0;
    }
    return shot;
}

int64_t Camera::ptp_status() {
    if (features_.get_integer("PtpEnable") == 0) {
        return kPtpDisabled;
    }
    const auto since = Clock::now() - ptp_since_;
    const auto step = std::chrono::milliseconds(100);
    return since < step ? kPtpListening : since < 2 * step ? kPtpUncalibrated : kPtpSlave;
}

int64_t Camera::clock_ns(Clock::time_point when) {
    if (ptp_status() == kPtpSlave) {  // then the clock is the host's, whom we take for the grandmaster
        const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
        return duration_cast<nanoseconds>(unix_now).count() + duration_cast<nanoseconds>(when - Clock::now()).count();
    }
    return duration_cast<nanoseconds>(when - power_on_at_).count();
}

double Camera::temperature_degc(int64_t place) const {
    // It warms up within minutes to what such cameras have: sensor (0) hotter than the board (1).
    const double minutes = std::chrono::duration<double>(Clock::now() - power_on_at_).count() / 60.0;
    return 24.0 + (place == 0 ? 23.0 : 16.0) * (1.0 - std::exp(-minutes / 5.0));
}

}  // namespace sci
