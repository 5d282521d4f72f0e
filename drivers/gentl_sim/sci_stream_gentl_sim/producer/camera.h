// The simulated camera itself: the thing at the other end of the cable.
//
// It keeps time of its own. When an exposure begins follows from its registers and its triggers alone, never from when
// the thread below got to run; a thread that comes late delivers late, as a busy link does, but exposes nothing late.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "features.h"
#include "lock_file.h"
#include "scene.h"

namespace sci {

using Clock = std::chrono::steady_clock;

/// Where a camera's exposures go: the data stream. Called from the camera's thread; must not call back.
class FrameReceiver {
public:
    virtual ~FrameReceiver() = default;
    virtual void receive(const Shot& shot) = 0;
    /// The cable was pulled; `silent` means that the link does not notice, as a GigE link may not.
    virtual void camera_lost(bool silent) = 0;
};

/// Values of the features that say how exposures are triggered.
enum Trigger : int64_t {
    kAcquisitionStart = 0, kFrameStart = 1,             // TriggerSelector
    kOff = 0, kOn = 1,                                  // TriggerMode
    kSoftware = 0, kLine1 = 1,                          // TriggerSource
    kRisingEdge = 0, kFallingEdge = 1, kAnyEdge = 2,    // TriggerActivation
};
enum ExposureMode : int64_t { kTimed = 0, kTriggerWidth = 1 };
enum PtpStatus : int64_t { kPtpDisabled = 2, kPtpListening = 3, kPtpUncalibrated = 7, kPtpSlave = 8 };
enum Line : int64_t { kInputLine = 1, kOutputLine = 2 };
enum LineMode : int64_t { kInput = 0, kOutput = 1 };
enum LineSource : int64_t { kNoSource = 0, kExposureActive = 1, kFrameTriggerWait = 2 };

/// Time from the end of an exposure until the frame is out and the next may begin.
constexpr std::chrono::microseconds kReadout{100};

class Camera {
public:
    explicit Camera(int number);
    ~Camera();
    Camera(const Camera&) = delete;
    Camera& operator=(const Camera&) = delete;

    const std::string& serial() const { return serial_; }
    std::string id() const { return "SciSim_" + serial_; }
    std::string user_id();

    /// Whether it is plugged in. One that was unplugged returns by itself, restarted.
    bool present();
    /// Whether any process has it open.
    bool in_use();
    bool opened_here();

    /// Take it for this process. Returns the number of the connection; throws `Error` if another process has it.
    uint64_t open();
    /// Stop it and let it go. No frame comes after this returns.
    void close();

    void set_receiver(FrameReceiver* receiver);

    /// Registers, as over a cable: throws `Error` (GC_ERR_IO) if the camera was unplugged since that connection.
    void read_register(uint64_t connection, uint64_t address, void* buffer, size_t size);
    void write_register(uint64_t connection, uint64_t address, const void* buffer, size_t size);

    const std::string& xml() const { return xml_; }
    size_t payload_bytes();
    /// Of the connection only: no register is touched.
    bool is_lost(uint64_t connection);

private:
    struct Counts {
        int64_t exposed = 0, incomplete = 0, lost = 0, triggers_ignored = 0;
    };

    // camera_features.cpp: the table of features
    void add_features();
    void add_device_control();
    void add_image_format();
    void add_pixel_formats();
    void add_acquisition();
    void add_triggers();
    void add_analog_and_lines();
    void add_chunks();
    void add_transport_and_user_sets();
    void add_simulation();

    // camera.cpp: what they do. All of it under the mutex.
    void power_on();
    void load_scene(const std::string& path);
    void start_acquisition();
    void stop_acquisition();
    void software_trigger();
    void load_user_set(int64_t number);
    void save_user_set(int64_t number);
    void require_connection(uint64_t connection);
    Shot shot_of_now();
    bool offers(const PixelFormat& format) const;
    int64_t clock_ns(Clock::time_point when);
    double frame_rate_max_hz();
    int64_t ptp_status();
    bool line_status(int64_t line);
    double temperature_degc(int64_t place) const;

    // exposures.cpp: when exposures happen. All of it under the mutex, but for the hand-over of a frame.
    void run();
    std::optional<Clock::time_point> next_exposure();
    std::optional<Clock::time_point> next_edge(Clock::time_point from, int64_t activation);
    bool trigger_is(int64_t selector, const char* feature, int64_t value);
    void forget_the_past();
    void expose(std::unique_lock<std::mutex>& lock, Clock::time_point start);
    void account_for_edges(Clock::time_point start);
    void after_frame();
    uint64_t frame_id(uint64_t index);
    bool happens(const char* percent_feature, uint64_t index, uint64_t stream);
    void unplug(double duration_ms);

    const std::string serial_;
    LockFile lock_file_;
    std::mutex mutex_;
    std::condition_variable changed_;  // anything that the thread may be waiting for
    FeatureMap features_;
    std::string xml_;
    std::shared_ptr<const FrameFile> file_;
    Sensor sensor_;
    std::map<int64_t, FeatureMap::Saved> user_sets_;
    int64_t default_set_ = 0;  // survives a loss of power, as the sets do

    bool opened_ = false, quit_ = false;
    bool present_ = true;
    Clock::time_point back_at_, power_on_at_, ptp_since_;
    uint64_t connection_ = 0;  // counts connections and losses: an old number is a lost connection
    int64_t unplugs_ = 0;

    bool acquiring_ = false, armed_ = false;
    uint64_t session_ = 0;  // counts starts of acquisition
    uint64_t index_ = 0;
    int64_t delivered_ = 0;  // since power came
    Clock::time_point ready_at_, due_at_;
    std::optional<Clock::time_point> software_trigger_, last_edge_;
    Counts counts_;
    int64_t latched_timestamp_ = 0;

    std::mutex delivery_mutex_;  // taken after mutex_, if both are; guards receiver_
    FrameReceiver* receiver_ = nullptr;
    std::thread thread_;
};

}  // namespace sci
