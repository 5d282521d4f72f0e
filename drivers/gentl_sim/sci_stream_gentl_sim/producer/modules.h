// The modules of the producer above the stream: library, system, interface, device, and the camera as its port.
#pragma once

#include <vector>

#include "camera.h"
#include "data_stream.h"
#include "module.h"

namespace sci {

/// The camera's own registers, as the device module hands them out.
class RemoteDevice : public Module {
public:
    RemoteDevice(std::shared_ptr<Camera> camera, uint64_t connection, bool read_only);
    std::string id() const override { return camera_->id(); }
    const std::string& xml() override { return camera_->xml(); }
    void read_port(uint64_t address, void* buffer, size_t size) override;
    void write_port(uint64_t address, const void* buffer, size_t size) override;

private:
    const std::shared_ptr<Camera> camera_;
    const uint64_t connection_;
    const bool read_only_;
};

/// A camera that is open.
class Device : public Module, public std::enable_shared_from_this<Device> {
public:
    Device(std::shared_ptr<Camera> camera, std::weak_ptr<Module> parent, int32_t access_flags);
    ~Device() override;
    /// Make the handles of what belongs to it. Once, after construction.
    void connect();
    std::string id() const override { return camera->id(); }
    void close() override;

    gentl::Handle remote_port() const { return remote_->handle; }
    gentl::Handle open_stream(const std::string& stream_id);
    void forget_stream();
    void info(int32_t command, Answer answer);

    const std::shared_ptr<Camera> camera;
    const std::weak_ptr<Module> parent;

private:
    void add_features();

    uint64_t connection_ = 0;
    const bool read_only_;
    std::mutex mutex_;
    bool closed_ = false;
    std::shared_ptr<RemoteDevice> remote_;
    std::shared_ptr<DataStream> stream_;
};

/// Answers DevGetInfo and IFGetDeviceInfo. An open device need not be listed any more.
void device_info(Camera& camera, int32_t access_status, int32_t command, Answer answer);

/// The one interface, at which all cameras are.
class Interface : public Module, public std::enable_shared_from_this<Interface> {
public:
    Interface(std::vector<std::shared_ptr<Camera>> cameras, std::weak_ptr<Module> parent);
    std::string id() const override { return "SciSimInterface"; }
    void close() override;

    /// Look who is plugged in. True if that has changed.
    bool update();
    size_t size();
    std::string device_id(size_t index);
    void device_info(const std::string& id, int32_t command, Answer answer);
    gentl::Handle open_device(const std::string& id, int32_t access_flags);
    void info(int32_t command, Answer answer);

    const std::weak_ptr<Module> parent;

private:
    std::shared_ptr<Camera> listed(const std::string& id);
    std::shared_ptr<Camera> selected();
    void add_features();

    std::mutex mutex_;
    const std::vector<std::shared_ptr<Camera>> cameras_;
    std::vector<std::shared_ptr<Camera>> listed_;
    std::vector<std::weak_ptr<Device>> devices_;
};

/// The producer itself.
class System : public Module, public std::enable_shared_from_this<System> {
public:
    explicit System(std::vector<std::shared_ptr<Camera>> cameras);
    std::string id() const override { return "SciSim"; }
    void close() override;

    gentl::Handle open_interface(const std::string& interface_id);
    static void info(int32_t command, Answer answer);
    static void interface_info(const std::string& interface_id, int32_t command, Answer answer);
    static std::string interface_id(uint32_t index);

private:
    const std::vector<std::shared_ptr<Camera>> cameras_;
    std::mutex mutex_;
    std::weak_ptr<Interface> interface_;
};

/// What GCInitLib begins and GCCloseLib ends. The cameras stay: their user sets outlast a consumer, as on real ones.
class Library {
public:
    static Library& instance();
    void init();
    void close();
    void require_init();
    gentl::Handle open_system();

private:
    std::mutex mutex_;
    bool initialised_ = false;
    std::vector<std::shared_ptr<Camera>> cameras_;
    std::weak_ptr<System> system_;
};

}  // namespace sci
