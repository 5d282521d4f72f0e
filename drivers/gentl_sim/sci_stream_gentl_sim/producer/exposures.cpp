// When exposures happen: free running or triggered, and what is done to their frames on request.
#include <algorithm>
#include <cmath>

#include "camera.h"
#include "error.h"

namespace sci {

namespace {

using std::chrono::duration_cast;

Clock::duration microseconds(double value) {
    return duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(value));
}

/// A number in [0, 1) that follows from its arguments alone: faults strike the same frames in every run (splitmix64).
double draw(uint64_t stream, uint64_t index) {
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u + (stream << 56);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

enum FaultStream : uint64_t { kIncomplete = 1, kLost = 2, kDelayed = 3 };

}  // namespace

bool Camera::trigger_is(int64_t selector, const char* feature, int64_t value) {
    return features_.get_integer(feature, selector) == value;
}

void Camera::start_acquisition() {
    if (acquiring_) {
        return;
    }
    ++session_;
    index_ = 0;
    counts_ = {};
    armed_ = !trigger_is(kAcquisitionStart, "TriggerMode", kOn);
    acquiring_ = true;
    ready_at_ = due_at_ = Clock::now();
    forget_the_past();
}

void Camera::stop_acquisition() {
    acquiring_ = false;
    ++session_;  // an exposure that is under way is given up …
    const std::lock_guard<std::mutex> delivery(delivery_mutex_);  // … and a frame that is, is through afterwards
}

void Camera::forget_the_past() {
    // Edges and due times of before belong to settings that no longer hold: nothing may be exposed for them now.
    const auto now = Clock::now();
    ready_at_ = std::max(ready_at_, now);
    due_at_ = std::max(due_at_, now);
    software_trigger_.reset();
    last_edge_.reset();
}

double Camera::frame_rate_max_hz() {
    return 1e6 / (features_.get_number("ExposureTime") + std::chrono::duration<double, std::micro>(kReadout).count());
}

void Camera::software_trigger() {
    const int64_t selector = features_.get_integer("TriggerSelector");
    const auto now = Clock::now();
    const bool listens = acquiring_ && trigger_is(selector, "TriggerMode", kOn) &&
                         trigger_is(selector, "TriggerSource", kSoftware);
    if (listens && selector == kAcquisitionStart) {
        armed_ = true;
        forget_the_past();
    } else if (listens && armed_ && now >= ready_at_ && !software_trigger_) {
        software_trigger_ = now;
    } else {
        ++counts_.triggers_ignored;  // the sensor is busy, or does not listen: a real one misses such a trigger too
    }
}

std::optional<Clock::time_point> Camera::next_edge(Clock::time_point from, int64_t activation) {
    const double period_us = features_.get_number("SimLinePeriod");
    if (period_us <= 0 || features_.get_integer("LineMode", kInputLine) != kInput) {
        return std::nullopt;
    }
    const auto period = microseconds(period_us);
    // The line is high in the first half of each period, counted from when power came; the inverter turns that round.
    const bool inverted = features_.get_integer("LineInverter", kInputLine) != 0;
    const auto first_after = [&](Clock::duration phase) {
        const auto since = from - power_on_at_ - phase;
        const auto whole = since.count() <= 0 ? 0 : (since.count() + period.count() - 1) / period.count();
        return power_on_at_ + phase + whole * period;
    };
    const auto rising = first_after(inverted ? period / 2 : Clock::duration::zero());
    const auto falling = first_after(inverted ? Clock::duration::zero() : period / 2);
    return activation == kRisingEdge ? rising : activation == kFallingEdge ? falling : std::min(rising, falling);
}

bool Camera::line_status(int64_t line) {
    bool high = false;
    const auto now = Clock::now();
    if (features_.get_integer("LineMode", line) == kOutput) {
        const int64_t source = features_.get_integer("LineSource", line);
        const bool exposing = acquiring_ && now < ready_at_;
        high = (source == kExposureActive && exposing) || (source == kFrameTriggerWait && acquiring_ && !exposing);
    } else if (line == kInputLine && features_.get_number("SimLinePeriod") > 0) {
        const auto period = microseconds(features_.get_number("SimLinePeriod"));
        high = (now - power_on_at_) % period < period / 2;
    }
    return high != (features_.get_integer("LineInverter", line) != 0);
}

std::optional<Clock::time_point> Camera::next_exposure() {
    if (!armed_) {
        if (!trigger_is(kAcquisitionStart, "TriggerSource", kLine1)) {
            return std::nullopt;
        }
        const auto edge = next_edge(ready_at_, features_.get_integer("TriggerActivation", kAcquisitionStart));
        if (!edge) {
            return std::nullopt;
        }
        armed_ = true;
        ready_at_ = due_at_ = *edge;
    }
    if (!trigger_is(kFrameStart, "TriggerMode", kOn)) {
        return std::max(due_at_, ready_at_);
    }
    const bool by_software = trigger_is(kFrameStart, "TriggerSource", kSoftware);
    const auto trigger = by_software
                             ? software_trigger_
                             : next_edge(ready_at_, features_.get_integer("TriggerActivation", kFrameStart));
    if (!trigger) {
        return std::nullopt;
    }
    return *trigger + microseconds(std::get<double>(features_.value("TriggerDelay", kFrameStart)));
}

void Camera::account_for_edges(Clock::time_point start) {
    const auto delay = microseconds(std::get<double>(features_.value("TriggerDelay", kFrameStart)));
    software_trigger_.reset();
    if (!trigger_is(kFrameStart, "TriggerMode", kOn) || trigger_is(kFrameStart, "TriggerSource", kSoftware)) {
        last_edge_.reset();
        return;
    }
    const auto edge = start - delay;
    if (last_edge_) {
        const bool any = trigger_is(kFrameStart, "TriggerActivation", kAnyEdge);
        const auto distance = microseconds(features_.get_number("SimLinePeriod")) / (any ? 2 : 1);
        counts_.triggers_ignored += std::max<int64_t>(0, (edge - *last_edge_ + distance / 2) / distance - 1);
    }
    last_edge_ = edge;
}

void Camera::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!quit_) {
        const auto start = acquiring_ ? next_exposure() : std::nullopt;
        if (!start) {
            changed_.wait(lock);
        } else if (Clock::now() < *start) {
            changed_.wait_until(lock, *start);  // then look again: settings may have changed meanwhile
        } else {
            expose(lock, *start);
        }
    }
}

uint64_t Camera::frame_id(uint64_t index) {
    const auto first = static_cast<uint64_t>(features_.get_integer("SimFrameIdFirst"));
    if (features_.get_integer("SimFrameIdBits") == 64) {
        return first + index;
    }
    constexpr uint64_t kLast = 65535;  // as in GigE Vision 1: 65535 is followed by 1, and 0 means none
    return 1 + (std::max<uint64_t>(first, 1) - 1 + index) % kLast;
}

bool Camera::happens(const char* percent_feature, uint64_t index, uint64_t stream) {
    return draw(stream, index) * 100.0 < features_.get_number(percent_feature);
}

void Camera::expose(std::unique_lock<std::mutex>& lock, Clock::time_point start) {
    const uint64_t session = session_;
    Shot shot = shot_of_now();
    if (features_.get_integer("ExposureMode") == kTriggerWidth && trigger_is(kFrameStart, "TriggerMode", kOn) &&
        trigger_is(kFrameStart, "TriggerSource", kLine1)) {
        shot.exposure_us = features_.get_number("SimLinePeriod") / 2;  // as long as the line is high, or low
    }
    shot.index = index_++;
    shot.id = frame_id(shot.index);
    shot.timestamp_ns = static_cast<uint64_t>(clock_ns(start));
    shot.incomplete = happens("SimIncompletePercent", shot.index, kIncomplete);
    const bool lost = happens("SimLostPercent", shot.index, kLost);
    account_for_edges(start);
    ready_at_ = start + microseconds(shot.exposure_us) + kReadout;
    const double rate_hz = features_.get_integer("AcquisitionFrameRateEnable") != 0
                               ? features_.get_number("AcquisitionFrameRate")
                               : frame_rate_max_hz();
    due_at_ = start + microseconds(1e6 / rate_hz);
    const bool late = happens("SimDelayPercent", shot.index, kDelayed);
    const auto arrival = ready_at_ + microseconds(late ? features_.get_number("SimDelay") : 0.0);
    const auto given_up = [&] { return quit_ || session_ != session; };
    if (changed_.wait_until(lock, arrival, given_up)) {
        return;
    }
    ++counts_.exposed;
    counts_.lost += lost;
    counts_.incomplete += shot.incomplete && !lost;
    if (!lost) {
        // Taken before the other is let go: else a stop could slip in between, and this frame come after it.
        std::unique_lock<std::mutex> delivery(delivery_mutex_);
        lock.unlock();
        if (receiver_ != nullptr) {
            receiver_->receive(shot);
        }
        delivery.unlock();
        lock.lock();
        ++delivered_;
    }
    if (!given_up()) {
        after_frame();
    }
}

void Camera::after_frame() {
    const int64_t mode = features_.get_integer("AcquisitionMode");
    const int64_t limit = mode == 0 ? 0 : mode == 1 ? 1 : features_.get_integer("AcquisitionFrameCount");
    if (limit != 0 && counts_.exposed >= limit) {
        stop_acquisition();
    }
    const int64_t after = features_.get_integer("SimUnplugAfter");
    if (after != 0 && delivered_ >= after && unplugs_ < features_.get_integer("SimUnplugLimit")) {
        unplug(features_.get_number("SimUnplugTime"));
    }
}

void Camera::unplug(double duration_ms) {
    const bool silent = features_.get_integer("SimUnplugSilent") != 0;
    stop_acquisition();
    present_ = false;
    back_at_ = Clock::now() + microseconds(1e3 * duration_ms);
    ++unplugs_;
    ++connection_;
    const std::lock_guard<std::mutex> delivery(delivery_mutex_);
    if (receiver_ != nullptr) {
        receiver_->camera_lost(silent);
    }
}

}  // namespace sci
