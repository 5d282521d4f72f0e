// The table of the camera's features: what each is called, what may be written, and what it is read from.
// Names, categories and units are those of the standard's naming convention (SFNC) where it has one.
#include <algorithm>

#include "camera.h"
#include "error.h"

namespace sci {

void Camera::add_features() {
    add_device_control();
    add_image_format();
    add_pixel_formats();
    add_acquisition();
    add_triggers();
    add_analog_and_lines();
    add_chunks();
    add_transport_and_user_sets();
    add_simulation();
}

void Camera::add_device_control() {
    const char* category = "DeviceControl";
    const auto constant = [&](const char* name, const char* tooltip, const std::string& text) {
        features_.text(name, category, tooltip).computed([text] { return text; });
    };
    constant("DeviceVendorName", "Name of the manufacturer", "sci_stream");
    constant("DeviceModelName", "Model of the device", "SciSim");
    constant("DeviceManufacturerInfo", "Manufacturer information", "Simulated snapshot compressive imaging camera");
    constant("DeviceVersion", "Version of the device", "1.0");
    constant("DeviceFirmwareVersion", "Version of the firmware", "1.0");
    constant("DeviceSerialNumber", "Serial number", serial_);
    features_.text("DeviceUserID", category, "Name that the user gave the device").saved();
    features_.enumeration("DeviceScanType", category, "Scan type of the sensor").entry("Areascan", 0).computed([] {
        return int64_t{0};
    });
    features_.integer("DeviceSFNCVersionMajor", category, "Naming convention, major").seen_by(Visibility::Expert)
        .computed([] { return int64_t{2}; });
    features_.integer("DeviceSFNCVersionMinor", category, "Naming convention, minor").seen_by(Visibility::Expert)
        .computed([] { return int64_t{5}; });
    features_.enumeration("DeviceTemperatureSelector", category, "Where the temperature is measured")
        .seen_by(Visibility::Expert).entry("Sensor", 0).entry("Mainboard", 1);
    features_.number("DeviceTemperature", category, "Temperature at the selected place").in("C")
        .seen_by(Visibility::Expert).selected_by("DeviceTemperatureSelector")
        .computed([this] { return temperature_degc(features_.get_integer("DeviceTemperatureSelector")); });
    features_.command("DeviceReset", category, "Restart the device: it is gone for half a second")
        .seen_by(Visibility::Guru).changed([this] { unplug(500.0); });

    const auto latch = [this] { latched_timestamp_ = clock_ns(Clock::now()); };
    const auto latched = [this] { return latched_timestamp_; };
    features_.command("TimestampLatch", category, "Latch the device's clock").seen_by(Visibility::Expert)
        .changed(latch);
    features_.integer("TimestampLatchValue", category, "Latched clock").in("ns").seen_by(Visibility::Expert)
        .computed(latched);
    features_.command("GevTimestampControlLatch", category, "Latch the device's clock (GigE Vision's name)")
        .seen_by(Visibility::Expert).changed(latch);
    features_.integer("GevTimestampValue", category, "Latched clock, ticks").seen_by(Visibility::Expert)
        .computed(latched);
    features_.integer("GevTimestampTickFrequency", category, "Ticks per second").in("Hz").seen_by(Visibility::Expert)
        .computed([] { return int64_t{1000000000}; });
}

void Camera::add_image_format() {
    const char* category = "ImageFormatControl";
    const auto value = [this](const char* name) { return features_.get_integer(name); };
    features_.integer("SensorWidth", category, "Width of the sensor, pixels").seen_by(Visibility::Expert)
        .computed([this] { return int64_t{sensor_.width}; });
    features_.integer("SensorHeight", category, "Height of the sensor, pixels").seen_by(Visibility::Expert)
        .computed([this] { return int64_t{sensor_.height}; });
    features_.integer("WidthMax", category, "Greatest width of an image").seen_by(Visibility::Expert)
        .computed([this] { return int64_t{sensor_.width}; });
    features_.integer("HeightMax", category, "Greatest height of an image").seen_by(Visibility::Expert)
        .computed([this] { return int64_t{sensor_.height}; });
    features_.integer("Width", category, "Width of the image, pixels").range(16, "WidthLimit", 8).locked().saved();
    features_.integer("Height", category, "Height of the image, pixels").range(2, "HeightLimit", 2).locked().saved();
    features_.integer("OffsetX", category, "Left edge of the image on the sensor, pixels").range(0, "OffsetXLimit", 2)
        .locked().saved();
    features_.integer("OffsetY", category, "Top edge of the image on the sensor, pixels").range(0, "OffsetYLimit", 2)
        .locked().saved();
    // What the image can still grow or move to; nodes that the user does not see.
    const auto limit = [&](const char* name, std::function<Value()> compute) {
        features_.integer(name, category, "Limit").custom().seen_by(Visibility::Invisible).computed(std::move(compute));
    };
    limit("WidthLimit", [this, value] { return int64_t{sensor_.width} - value("OffsetX"); });
    limit("HeightLimit", [this, value] { return int64_t{sensor_.height} - value("OffsetY"); });
    limit("OffsetXLimit", [this, value] { return int64_t{sensor_.width} - value("Width"); });
    limit("OffsetYLimit", [this, value] { return int64_t{sensor_.height} - value("Height"); });
    features_.enumeration("TestPattern", category, "What is imaged instead of the scene").saved()
        .entry("Off", static_cast<int64_t>(TestPattern::Off))
        .entry("Black", static_cast<int64_t>(TestPattern::Black))
        .entry("White", static_cast<int64_t>(TestPattern::White))
        .entry("GreyDiagonalRampMoving", static_cast<int64_t>(TestPattern::GreyDiagonalRampMoving));
}

void Camera::add_pixel_formats() {
    const char* category = "ImageFormatControl";
    static const char* const available[] = {"HasMono", "HasBayerGR", "HasBayerRG", "HasBayerGB", "HasBayerBG"};
    Feature& feature = features_.enumeration("PixelFormat", category, "Format of the pixels").locked().saved();
    for (const PixelFormat& format : pixel_formats()) {
        feature.entry(format.name, format.code, available[static_cast<int>(format.mosaic)]);
    }
    for (uint32_t mosaic = 0; mosaic < 5; ++mosaic) {
        features_.integer(available[mosaic], category, "Whether the sensor's colour filters give these formats")
            .custom().seen_by(Visibility::Invisible).computed([this, mosaic] {
                return int64_t{mosaic == 0 || sensor_.any_mosaic || sensor_.mosaic == static_cast<Mosaic>(mosaic)};
            });
    }
    features_.enumeration("PixelColorFilter", category, "Colour filters of the sensor").seen_by(Visibility::Expert)
        .entry("None", 0).entry("BayerGR", 1).entry("BayerRG", 2).entry("BayerGB", 3).entry("BayerBG", 4)
        .computed([this] { return static_cast<int64_t>(sensor_.mosaic); });
}

void Camera::add_acquisition() {
    const char* category = "AcquisitionControl";
    features_.enumeration("AcquisitionMode", category, "How many frames an acquisition has").locked().saved()
        .entry("Continuous", 0).entry("SingleFrame", 1).entry("MultiFrame", 2);
    features_.integer("AcquisitionFrameCount", category, "Frames of an acquisition of mode MultiFrame")
        .range(1, 65535, 1).starts_as(int64_t{1}).locked().saved();
    features_.command("AcquisitionStart", category, "Begin exposing").changed([this] { start_acquisition(); });
    features_.command("AcquisitionStop", category, "End exposing").changed([this] { stop_acquisition(); });
    features_.enumeration("ExposureMode", category, "What ends an exposure: the time, or the triggering line").saved()
        .entry("Timed", kTimed).entry("TriggerWidth", kTriggerWidth);
    features_.number("ExposureTime", category, "Duration of the exposure").range(10, 10e6).in("us").saved()
        .changed([this] {  // a rate that cannot be kept any more becomes the greatest that can
            const double rate = std::min(features_.get_number("AcquisitionFrameRate"), frame_rate_max_hz());
            features_.set("AcquisitionFrameRate", rate);
        });
    features_.boolean("AcquisitionFrameRateEnable", category, "Keep AcquisitionFrameRate; else as fast as can be")
        .starts_as(int64_t{1}).saved();
    features_.number("AcquisitionFrameRate", category, "Rate of a camera that runs freely")
        .range(0.05, "AcquisitionFrameRateMax").in("Hz").saved();
    features_.number("AcquisitionFrameRateMax", category, "Greatest rate at this exposure time").custom().in("Hz")
        .seen_by(Visibility::Expert).computed([this] { return frame_rate_max_hz(); });
}

void Camera::add_triggers() {
    const char* category = "AcquisitionControl";
    const auto changed = [this] { forget_the_past(); };
    features_.enumeration("TriggerSelector", category, "Which trigger the features below are of")
        .entry("AcquisitionStart", kAcquisitionStart).entry("FrameStart", kFrameStart)
        .starts_as(int64_t{kFrameStart});
    features_.enumeration("TriggerMode", category, "Wait for the selected trigger").selected_by("TriggerSelector")
        .entry("Off", kOff).entry("On", kOn).saved().changed(changed);
    features_.enumeration("TriggerSource", category, "Where the selected trigger comes from")
        .selected_by("TriggerSelector").entry("Software", kSoftware).entry("Line1", kLine1).saved().changed(changed);
    features_.enumeration("TriggerActivation", category, "Which edge triggers").selected_by("TriggerSelector")
        .entry("RisingEdge", kRisingEdge).entry("FallingEdge", kFallingEdge).entry("AnyEdge", kAnyEdge).saved()
        .changed(changed);
    features_.number("TriggerDelay", category, "Time from the trigger to the exposure").in("us").range(0, 1e6)
        .selected_by("TriggerSelector").saved().changed(changed);
    features_.command("TriggerSoftware", category, "Trigger by software").changed([this] { software_trigger(); });
}

void Camera::add_analog_and_lines() {
    features_.number("Gain", "AnalogControl", "Gain, on top of the one that the scene was rendered with")
        .range(0, 24).in("dB").saved();
    features_.number("BlackLevel", "AnalogControl", "Counts without light, in digital numbers of the sensor")
        .range(0, "BlackLevelMax").saved();
    features_.number("BlackLevelMax", "AnalogControl", "Limit").custom().seen_by(Visibility::Invisible)
        .computed([this] { return sensor_.max_dn() / 4.0; });

    const char* category = "DigitalIOControl";
    features_.enumeration("LineSelector", category, "Which line the features below are of").seen_by(Visibility::Expert)
        .entry("Line1", kInputLine).entry("Line2", kOutputLine).starts_as(int64_t{kInputLine});
    features_.enumeration("LineMode", category, "Direction of the line").seen_by(Visibility::Expert)
        .selected_by("LineSelector").entry("Input", kInput).entry("Output", kOutput).saved()
        .starts_as(kOutputLine, int64_t{kOutput}).changed([this] { forget_the_past(); });
    features_.boolean("LineInverter", category, "Invert the line").seen_by(Visibility::Expert)
        .selected_by("LineSelector").saved().changed([this] { forget_the_past(); });
    features_.boolean("LineStatus", category, "Whether the line is high").seen_by(Visibility::Expert)
        .selected_by("LineSelector").computed([this] {
            return int64_t{line_status(features_.get_integer("LineSelector"))};
        });
    features_.enumeration("LineSource", category, "What an output line shows").seen_by(Visibility::Expert)
        .selected_by("LineSelector").entry("Off", kNoSource).entry("ExposureActive", kExposureActive)
        .entry("FrameTriggerWait", kFrameTriggerWait).saved();
}

void Camera::add_chunks() {
    const char* category = "ChunkDataControl";
    features_.boolean("ChunkModeActive", category, "Append chunks to the image").seen_by(Visibility::Expert).locked()
        .saved();
    features_.enumeration("ChunkSelector", category, "Which chunk ChunkEnable is of").seen_by(Visibility::Expert)
        .entry("Image", static_cast<int64_t>(Chunk::Image))
        .entry("FrameID", static_cast<int64_t>(Chunk::FrameID))
        .entry("Timestamp", static_cast<int64_t>(Chunk::Timestamp))
        .entry("ExposureTime", static_cast<int64_t>(Chunk::ExposureTime))
        .entry("Gain", static_cast<int64_t>(Chunk::Gain))
        .starts_as(static_cast<int64_t>(Chunk::FrameID));
    features_.boolean("ChunkEnable", category, "Append the selected chunk").seen_by(Visibility::Expert)
        .selected_by("ChunkSelector").locked().saved()
        .starts_as(static_cast<int64_t>(Chunk::Image), int64_t{1}).changed([this] {
            if (features_.get_integer("ChunkEnable", static_cast<int64_t>(Chunk::Image)) == 0) {
                throw Error(gentl::GC_ERR_INVALID_VALUE, "ChunkEnable: the image cannot be left away");
            }
        });
    const auto id = [](Chunk chunk) { return kFirstChunkId + static_cast<uint32_t>(chunk); };
    features_.integer("ChunkFrameID", category, "Frame id of the buffer").seen_by(Visibility::Expert)
        .chunk(id(Chunk::FrameID));
    features_.integer("ChunkTimestamp", category, "Beginning of the buffer's exposure").in("ns")
        .seen_by(Visibility::Expert).chunk(id(Chunk::Timestamp));
    features_.number("ChunkExposureTime", category, "Exposure time of the buffer").in("us")
        .seen_by(Visibility::Expert).chunk(id(Chunk::ExposureTime));
    features_.number("ChunkGain", category, "Gain of the buffer").in("dB").seen_by(Visibility::Expert)
        .chunk(id(Chunk::Gain));
}

void Camera::add_transport_and_user_sets() {
    const char* transport = "TransportLayerControl";
    features_.integer("PayloadSize", transport, "Bytes of a buffer").seen_by(Visibility::Expert)
        .computed([this] { return static_cast<int64_t>(shot_of_now().payload_bytes()); });
    features_.integer("TLParamsLocked", transport, "Set by the consumer while a stream runs").range(0, 1)
        .seen_by(Visibility::Invisible);
    features_.boolean("PtpEnable", transport, "Follow a clock on the network (IEEE 1588)").seen_by(Visibility::Expert)
        .saved().changed([this] { ptp_since_ = Clock::now(); });
    features_.enumeration("PtpStatus", transport, "State of the clock").seen_by(Visibility::Expert)
        .entry("Disabled", kPtpDisabled).entry("Listening", kPtpListening).entry("Uncalibrated", kPtpUncalibrated)
        .entry("Slave", kPtpSlave).computed([this] { return ptp_status(); });
    features_.integer("PtpOffsetFromMaster", transport, "How far the clock is off").in("ns")
        .seen_by(Visibility::Expert).computed([] { return int64_t{0}; });

    const char* sets = "UserSetControl";
    const auto add_sets = [](Feature& feature) {
        feature.entry("Default", 0).entry("UserSet1", 1).entry("UserSet2", 2);
    };
    add_sets(features_.enumeration("UserSetSelector", sets, "Which set is loaded or saved"));
    features_.command("UserSetLoad", sets, "Load the selected set").locked()
        .changed([this] { load_user_set(features_.get_integer("UserSetSelector")); });
    features_.command("UserSetSave", sets, "Save into the selected set")
        .changed([this] { save_user_set(features_.get_integer("UserSetSelector")); });
    add_sets(features_.enumeration("UserSetDefault", sets, "Set that the device starts with").changed([this] {
        default_set_ = features_.get_integer("UserSetDefault");
    }));
}

void Camera::add_simulation() {
    const char* scene = "SimulatedScene";
    features_.text("SimFramesFile", scene, "Frames to image, rendered to a file; empty: none").custom().locked()
        .changed([this] { load_scene(features_.get_text("SimFramesFile")); });
    features_.number("SimLinePeriod", scene, "Period of the pulses on Line1; 0: none").custom().range(0, 60e6).in("us")
        .changed([this] { forget_the_past(); });

    const char* faults = "SimulatedFaults";
    const auto percent = [&](const char* name, const char* tooltip) {
        features_.number(name, faults, tooltip).custom().range(0, 100).in("%");
    };
    percent("SimIncompletePercent", "Share of frames that break off half-way");
    percent("SimLostPercent", "Share of frames that get lost on the way: their ids are missing");
    percent("SimDelayPercent", "Share of frames that arrive late by SimDelay");
    features_.number("SimDelay", faults, "How late late frames are").custom().range(0, 10e6).in("us");
    features_.enumeration("SimFrameIdBits", faults, "Ids of 64 bits, or of 16: 65535 is followed by 1").custom()
        .locked().entry("Bits64", 64).entry("Bits16", 16).starts_as(int64_t{64});
    features_.integer("SimFrameIdFirst", faults, "Id of the first frame after a start").custom().locked()
        .range(0, 4294967295.0, 1);
    features_.command("SimUnplug", faults, "Pull the cable for SimUnplugTime").custom()
        .changed([this] { unplug(features_.get_number("SimUnplugTime")); });
    features_.number("SimUnplugTime", faults, "How long the camera stays away").custom().range(0, 3600e3).in("ms")
        .starts_as(500.0);
    features_.integer("SimUnplugAfter", faults, "Unplug after this number of frames since power-up; 0: never")
        .custom().range(0, 1000000000, 1);
    features_.integer("SimUnplugLimit", faults, "But only until it was pulled so often in all").custom()
        .range(0, 1000000, 1).starts_as(int64_t{1});
    features_.integer("SimUnplugCount", faults, "How often it was pulled since the producer was loaded").custom()
        .computed([this] { return unplugs_; });
    features_.boolean("SimUnplugSilent", faults, "The stream does not notice: no frame comes, and no error").custom();

    const auto count = [&](const char* name, const char* tooltip, int64_t Counts::* member) {
        features_.integer(name, faults, tooltip).custom().computed([this, member] { return counts_.*member; });
    };
    count("SimExposedCount", "Frames exposed since the start", &Counts::exposed);
    count("SimIncompleteCount", "Frames broken off since the start", &Counts::incomplete);
    count("SimLostCount", "Frames lost on the way since the start", &Counts::lost);
    count("SimTriggersIgnoredCount", "Triggers that found the sensor busy since the start", &Counts::triggers_ignored);
}

}  // namespace sci
