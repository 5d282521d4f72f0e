#include "modules.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

namespace sci {

namespace {

constexpr int kMostDevices = 16;
const char* const kInterfaceId = "SciSimInterface";

/// How many cameras there are: SCI_GENTL_SIM_DEVICES, two if it says nothing.
int devices_wanted() {
    const char* value = std::getenv("SCI_GENTL_SIM_DEVICES");
    if (value == nullptr || *value == '\0') {
        return 2;
    }
    char* end = nullptr;
    const long number = std::strtol(value, &end, 10);
    if (*end != '\0' || number < 0 || number > kMostDevices) {
        throw Error(gentl::GC_ERR_INVALID_PARAMETER,
                    format("SCI_GENTL_SIM_DEVICES: expected 0 to %d, got '%s'", kMostDevices, value));
    }
    return static_cast<int>(number);
}

/// Where this library lies: the .cti that a consumer asked for.
std::string own_path() {
    Dl_info found{};
    return dladdr(reinterpret_cast<const void*>(&own_path), &found) != 0 ? found.dli_fname : "sci_camera.cti";
}

std::string last_part(const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace

Library& Library::instance() {
    static Library& library = *new Library;  // never destroyed: threads may outlive main()
    return library;
}

void Library::init() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (initialised_) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "GCInitLib was called before: call GCCloseLib first");
    }
    const auto wanted = static_cast<size_t>(devices_wanted());
    cameras_.resize(std::min(cameras_.size(), wanted));
    while (cameras_.size() < wanted) {
        cameras_.push_back(std::make_shared<Camera>(static_cast<int>(cameras_.size()) + 1));
    }
    initialised_ = true;
}

void Library::close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto system = system_.lock()) {
        system->close();
    }
    initialised_ = false;
}

void Library::require_init() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!initialised_) {
        throw Error(gentl::GC_ERR_NOT_INITIALIZED, "call GCInitLib first");
    }
}

gentl::Handle Library::open_system() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!system_.expired()) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "the system is open: close it first");
    }
    const auto system = std::make_shared<System>(cameras_);
    Registry::instance().add(system);
    system_ = system;
    return system->handle;
}

System::System(std::vector<std::shared_ptr<Camera>> cameras)
    : Module("TLSystem", "TLPort"), cameras_(std::move(cameras)) {
    const auto text = [&](const char* name, const char* tooltip, const std::string& value) {
        features_.text(name, "SystemInformation", tooltip).computed([value] { return value; });
    };
    text("TLID", "Name of the producer", id());
    text("TLVendorName", "Maker of the producer", "sci_stream");
    text("TLModelName", "Model of the producer", "SciSim");
    text("TLVersion", "Version of the producer", "1.0");
    text("TLPath", "Where the producer lies", own_path());
    text("TLType", "Kind of link", "Custom");
    text("InterfaceID", "Name of the interface", kInterfaceId);
    features_.integer("GenTLVersionMajor", "SystemInformation", "GenTL, major").computed([] { return int64_t{1}; });
    features_.integer("GenTLVersionMinor", "SystemInformation", "GenTL, minor").computed([] { return int64_t{5}; });
}

void System::close() {
    std::shared_ptr<Interface> interface;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        interface = interface_.lock();
    }
    if (interface) {
        interface->close();
    }
    Module::close();
}

std::string System::interface_id(uint32_t index) {
    if (index != 0) {
        throw Error(gentl::GC_ERR_INVALID_INDEX, "there is one interface");
    }
    return kInterfaceId;
}

gentl::Handle System::open_interface(const std::string& interface_id) {
    if (interface_id != kInterfaceId) {
        throw Error(gentl::GC_ERR_INVALID_ID, "there is no interface " + interface_id);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!interface_.expired()) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "the interface is open: close it first");
    }
    const auto interface = std::make_shared<Interface>(cameras_, weak_from_this());
    Registry::instance().add(interface);
    interface_ = interface;
    return interface->handle;
}

void System::info(int32_t command, Answer answer) {
    switch (command) {
        case gentl::TL_INFO_ID: return answer.text("SciSim");
        case gentl::TL_INFO_VENDOR: return answer.text("sci_stream");
        case gentl::TL_INFO_MODEL: return answer.text("SciSim");
        case gentl::TL_INFO_VERSION: return answer.text("1.0");
        case gentl::TL_INFO_TLTYPE: return answer.text("Custom");
        case gentl::TL_INFO_NAME: return answer.text(last_part(own_path()));
        case gentl::TL_INFO_PATHNAME: return answer.text(own_path());
        case gentl::TL_INFO_DISPLAYNAME: return answer.text("Simulated SCI cameras");
        case gentl::TL_INFO_CHAR_ENCODING: return answer.int32(gentl::TL_CHAR_ENCODING_UTF8);
        case gentl::TL_INFO_GENTL_VER_MAJOR: return answer.uint32(1);
        case gentl::TL_INFO_GENTL_VER_MINOR: return answer.uint32(5);
        default: unknown_command("TLGetInfo", command);
    }
}

void System::interface_info(const std::string& interface_id, int32_t command, Answer answer) {
    if (interface_id != kInterfaceId) {
        throw Error(gentl::GC_ERR_INVALID_ID, "there is no interface " + interface_id);
    }
    switch (command) {
        case gentl::INTERFACE_INFO_ID: return answer.text(interface_id);
        case gentl::INTERFACE_INFO_DISPLAYNAME: return answer.text("Simulated link");
        case gentl::INTERFACE_INFO_TLTYPE: return answer.text("Custom");
        default: unknown_command("TLGetInterfaceInfo", command);
    }
}

Interface::Interface(std::vector<std::shared_ptr<Camera>> cameras, std::weak_ptr<Module> parent)
    : Module("TLInterface", "InterfacePort"), parent(std::move(parent)), cameras_(std::move(cameras)) {
    add_features();
}

void Interface::add_features() {
    const auto text = [&](const char* name, const char* category, const char* tooltip, std::function<Value()> read) {
        return &features_.text(name, category, tooltip).computed(std::move(read));
    };
    text("InterfaceID", "InterfaceInformation", "Name of the interface", [this] { return id(); });
    text("InterfaceType", "InterfaceInformation", "Kind of link", [] { return std::string("Custom"); });
    const char* devices = "DeviceEnumeration";
    features_.command("DeviceUpdateList", devices, "Look for cameras").changed([this] { update(); });
    features_.integer("DeviceSelector", devices, "Which camera the features below are of")
        .range(0, "DeviceSelectorMax");
    features_.integer("DeviceSelectorMax", devices, "Limit").custom().seen_by(Visibility::Invisible)
        .computed([this] { return std::max<int64_t>(0, static_cast<int64_t>(size()) - 1); });
    text("DeviceID", devices, "Name of the camera", [this] { return selected() ? selected()->id() : std::string(); })
        ->selected_by("DeviceSelector");
    text("DeviceSerialNumber", devices, "Serial number of the camera", [this] {
        return selected() ? selected()->serial() : std::string();
    })->selected_by("DeviceSelector");
}

std::shared_ptr<Camera> Interface::selected() {
    const auto index = static_cast<size_t>(features_.get_integer("DeviceSelector"));
    const std::lock_guard<std::mutex> lock(mutex_);
    return index < listed_.size() ? listed_[index] : nullptr;
}

void Interface::close() {
    std::vector<std::weak_ptr<Device>> devices;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        devices.swap(devices_);
    }
    for (const auto& device : devices) {
        if (const auto alive = device.lock()) {
            alive->close();
        }
    }
    Module::close();
}

bool Interface::update() {
    std::vector<std::shared_ptr<Camera>> present;
    for (const auto& camera : cameras_) {
        if (camera->present()) {
            present.push_back(camera);
        }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool changed = present != listed_;
    listed_ = std::move(present);
    return changed;
}

size_t Interface::size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return listed_.size();
}

std::string Interface::device_id(size_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index >= listed_.size()) {
        throw Error(gentl::GC_ERR_INVALID_INDEX, format("%zu cameras were found", listed_.size()));
    }
    return listed_[index]->id();
}

std::shared_ptr<Camera> Interface::listed(const std::string& id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& camera : listed_) {
        if (camera->id() == id) {
            return camera;
        }
    }
    throw Error(gentl::GC_ERR_INVALID_ID, "no camera " + id + " was found; call IFUpdateDeviceList to look again");
}

void Interface::device_info(const std::string& id, int32_t command, Answer answer) {
    const auto camera = listed(id);
    const int32_t status = !camera->present()      ? gentl::DEVICE_ACCESS_STATUS_NOACCESS
                           : camera->opened_here() ? gentl::DEVICE_ACCESS_STATUS_OPEN_READWRITE
                           : camera->in_use()      ? gentl::DEVICE_ACCESS_STATUS_BUSY
                                                   : gentl::DEVICE_ACCESS_STATUS_READWRITE;
    sci::device_info(*camera, status, command, answer);
}

gentl::Handle Interface::open_device(const std::string& id, int32_t access_flags) {
    if (access_flags < gentl::DEVICE_ACCESS_READONLY || access_flags > gentl::DEVICE_ACCESS_EXCLUSIVE) {
        throw Error(gentl::GC_ERR_INVALID_PARAMETER, format("%d is no way to open a device", access_flags));
    }
    // Some programs (Aravis) list devices through one interface and open them through another, never updated one.
    update();
    const auto device = std::make_shared<Device>(listed(id), weak_from_this(), access_flags);
    device->connect();
    const std::lock_guard<std::mutex> lock(mutex_);
    devices_.erase(std::remove_if(devices_.begin(), devices_.end(), [](const auto& d) { return d.expired(); }),
                   devices_.end());
    devices_.push_back(device);
    return device->handle;
}

void Interface::info(int32_t command, Answer answer) { System::interface_info(id(), command, answer); }

}  // namespace sci
