#include "modules.h"

namespace sci {

RemoteDevice::RemoteDevice(std::shared_ptr<Camera> camera, uint64_t connection, bool read_only)
    : Module("Device", "Device"), camera_(std::move(camera)), connection_(connection), read_only_(read_only) {}

void RemoteDevice::read_port(uint64_t address, void* buffer, size_t size) {
    camera_->read_register(connection_, address, buffer, size);
}

void RemoteDevice::write_port(uint64_t address, const void* buffer, size_t size) {
    if (read_only_) {
        throw Error(gentl::GC_ERR_ACCESS_DENIED, "the camera was opened for reading only");
    }
    camera_->write_register(connection_, address, buffer, size);
}

Device::Device(std::shared_ptr<Camera> camera, std::weak_ptr<Module> parent, int32_t access_flags)
    : Module("TLDevice", "DevicePort"),
      camera(std::move(camera)),
      parent(std::move(parent)),
      read_only_(access_flags == gentl::DEVICE_ACCESS_READONLY) {
    connection_ = this->camera->open();
    add_features();
}

Device::~Device() {
    if (!closed_) {  // otherwise another process may have the camera by now
        camera->close();
    }
}

void Device::connect() {
    remote_ = std::make_shared<RemoteDevice>(camera, connection_, read_only_);
    Registry::instance().add(remote_);
    Registry::instance().add(shared_from_this());
}

void Device::add_features() {
    const auto text = [&](const char* name, const char* tooltip, const std::string& value) {
        features_.text(name, "DeviceInformation", tooltip).computed([value] { return value; });
    };
    text("DeviceID", "Name of the camera", camera->id());
    text("DeviceVendorName", "Maker of the camera", "sci_stream");
    text("DeviceModelName", "Model of the camera", "SciSim");
    text("DeviceSerialNumber", "Serial number of the camera", camera->serial());
    text("DeviceType", "Kind of link", "Custom");
    text("StreamID", "Name of the camera's stream", "Stream0");
    features_.boolean("DeviceIsLost", "DeviceInformation", "Whether the camera was unplugged").custom().computed(
        [this] { return int64_t{camera->is_lost(connection_)}; });
}

void Device::close() {
    std::shared_ptr<DataStream> stream;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (closed_) {
            return;
        }
        closed_ = true;
        stream = stream_;
    }
    if (stream) {
        stream->close();
    }
    camera->close();
    remote_->close();
    Module::close();
}

gentl::Handle Device::open_stream(const std::string& stream_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stream_id != "Stream0") {
        throw Error(gentl::GC_ERR_INVALID_ID, "the device has one stream, Stream0; there is no " + stream_id);
    }
    if (stream_) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "the stream is open: close it first");
    }
    stream_ = std::make_shared<DataStream>(camera, weak_from_this());
    Registry::instance().add(stream_);
    camera->set_receiver(stream_.get());
    return stream_->handle;
}

void Device::forget_stream() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream_.reset();
}

void Device::info(int32_t command, Answer answer) {
    const bool lost = camera->is_lost(connection_);
    device_info(*camera,
                lost         ? gentl::DEVICE_ACCESS_STATUS_NOACCESS
                : read_only_ ? gentl::DEVICE_ACCESS_STATUS_OPEN_READONLY
                             : gentl::DEVICE_ACCESS_STATUS_OPEN_READWRITE,
                command, answer);
}

void device_info(Camera& camera, int32_t access_status, int32_t command, Answer answer) {
    switch (command) {
        case gentl::DEVICE_INFO_ID: return answer.text(camera.id());
        case gentl::DEVICE_INFO_VENDOR: return answer.text("sci_stream");
        case gentl::DEVICE_INFO_MODEL: return answer.text("SciSim");
        case gentl::DEVICE_INFO_TLTYPE: return answer.text("Custom");
        case gentl::DEVICE_INFO_DISPLAYNAME: return answer.text("Simulated SCI camera " + camera.serial());
        case gentl::DEVICE_INFO_ACCESS_STATUS: return answer.int32(access_status);
        case gentl::DEVICE_INFO_USER_DEFINED_NAME: return answer.text(camera.user_id());
        case gentl::DEVICE_INFO_SERIAL_NUMBER: return answer.text(camera.serial());
        case gentl::DEVICE_INFO_VERSION: return answer.text("1.0");
        case gentl::DEVICE_INFO_TIMESTAMP_FREQUENCY: return answer.uint64(1000000000);
        default: unknown_command("DevGetInfo", command);
    }
}

}  // namespace sci
