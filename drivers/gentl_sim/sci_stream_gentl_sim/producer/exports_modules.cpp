// Exported functions: library, system, interface, device, ports.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "exports.h"

using namespace sci;
using gentl::Handle;

GC_API GCInitLib(void) {
    return guarded([] { Library::instance().init(); });
}

GC_API GCCloseLib(void) {
    return call([] { Library::instance().close(); });
}

GC_API GCGetInfo(int32_t command, int32_t* type, void* buffer, size_t* size) {
    return guarded([&] { System::info(command, Answer(type, buffer, size)); });
}

GC_API GCGetLastError(int32_t* code, char* text, size_t* size) {
    // Not guarded(): asking for the last error must not replace it.
    if (size == nullptr) {
        return gentl::GC_ERR_INVALID_PARAMETER;
    }
    if (code != nullptr) {
        *code = last_error_code();
    }
    const std::string& last = last_error_text();
    if (text != nullptr) {
        if (*size < last.size() + 1) {
            return gentl::GC_ERR_BUFFER_TOO_SMALL;
        }
        std::memcpy(text, last.c_str(), last.size() + 1);
    }
    *size = last.size() + 1;
    return gentl::GC_ERR_SUCCESS;
}

// ---- system ----------------------------------------------------------------------------------------------------

GC_API TLOpen(Handle* system) {
    return call([&] { put_handle(system, "phSystem", [] { return Library::instance().open_system(); }); });
}

GC_API TLClose(Handle system) {
    return call([&] { resolve<System>(system)->close(); });
}

GC_API TLGetInfo(Handle system, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] {
        resolve<System>(system);
        System::info(command, Answer(type, buffer, size));
    });
}

GC_API TLUpdateInterfaceList(Handle system, gentl::bool8* changed, uint64_t) {
    return call([&] {
        resolve<System>(system);
        if (changed != nullptr) {
            *changed = 0;
        }
    });
}

GC_API TLGetNumInterfaces(Handle system, uint32_t* number) {
    return call([&] {
        resolve<System>(system);
        require(number, "piNumIfaces");
        *number = 1;
    });
}

GC_API TLGetInterfaceID(Handle system, uint32_t index, char* id, size_t* size) {
    return call([&] {
        resolve<System>(system);
        Answer(nullptr, id, size).text(System::interface_id(index));
    });
}

GC_API TLGetInterfaceInfo(Handle system, const char* id, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] {
        resolve<System>(system);
        require(id, "sIfaceID");
        System::interface_info(id, command, Answer(type, buffer, size));
    });
}

GC_API TLOpenInterface(Handle system, const char* id, Handle* interface) {
    return call([&] {
        const auto module = resolve<System>(system);
        require(id, "sIfaceID");
        put_handle(interface, "phIface", [&] { return module->open_interface(id); });
    });
}

// ---- interface -------------------------------------------------------------------------------------------------

GC_API IFClose(Handle interface) {
    return call([&] { resolve<Interface>(interface)->close(); });
}

GC_API IFGetInfo(Handle interface, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] { resolve<Interface>(interface)->info(command, Answer(type, buffer, size)); });
}

GC_API IFGetParentTL(Handle interface, Handle* system) {
    return call([&] {
        const auto parent = resolve<Interface>(interface)->parent.lock();
        put_handle(system, "phSystem", [&] { return parent ? parent->handle : nullptr; });
    });
}

GC_API IFUpdateDeviceList(Handle interface, gentl::bool8* changed, uint64_t) {
    return call([&] {
        const bool differs = resolve<Interface>(interface)->update();
        if (changed != nullptr) {
            *changed = differs ? 1 : 0;
        }
    });
}

GC_API IFGetNumDevices(Handle interface, uint32_t* number) {
    return call([&] {
        const auto module = resolve<Interface>(interface);
        require(number, "piNumDevices");
        *number = static_cast<uint32_t>(module->size());
    });
}

GC_API IFGetDeviceID(Handle interface, uint32_t index, char* id, size_t* size) {
    return call([&] { Answer(nullptr, id, size).text(resolve<Interface>(interface)->device_id(index)); });
}

GC_API IFGetDeviceInfo(Handle interface, const char* id, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] {
        const auto module = resolve<Interface>(interface);
        require(id, "sDeviceID");
        module->device_info(id, command, Answer(type, buffer, size));
    });
}

GC_API IFOpenDevice(Handle interface, const char* id, int32_t flags, Handle* device) {
    return call([&] {
        const auto module = resolve<Interface>(interface);
        require(id, "sDeviceID");
        put_handle(device, "phDevice", [&] { return module->open_device(id, flags); });
    });
}

// ---- device ----------------------------------------------------------------------------------------------------

GC_API DevClose(Handle device) {
    return call([&] { resolve<Device>(device)->close(); });
}

GC_API DevGetInfo(Handle device, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] { resolve<Device>(device)->info(command, Answer(type, buffer, size)); });
}

GC_API DevGetParentIF(Handle device, Handle* interface) {
    return call([&] {
        const auto parent = resolve<Device>(device)->parent.lock();
        put_handle(interface, "phIface", [&] { return parent ? parent->handle : nullptr; });
    });
}

GC_API DevGetPort(Handle device, Handle* port) {
    return call([&] {
        const auto module = resolve<Device>(device);
        put_handle(port, "phRemoteDev", [&] { return module->remote_port(); });
    });
}

GC_API DevGetNumDataStreams(Handle device, uint32_t* number) {
    return call([&] {
        resolve<Device>(device);
        require(number, "piNumDataStreams");
        *number = 1;
    });
}

GC_API DevGetDataStreamID(Handle device, uint32_t index, char* id, size_t* size) {
    return call([&] {
        resolve<Device>(device);
        if (index != 0) {
            throw Error(gentl::GC_ERR_INVALID_INDEX, "the device has one stream");
        }
        Answer(nullptr, id, size).text("Stream0");
    });
}

GC_API DevOpenDataStream(Handle device, const char* id, Handle* stream) {
    return call([&] {
        const auto module = resolve<Device>(device);
        require(id, "sDataStreamID");
        put_handle(stream, "phDataStream", [&] { return module->open_stream(id); });
    });
}

// ---- ports -----------------------------------------------------------------------------------------------------

namespace {

/// The description lies behind the registers, in a range of its own.
/// As with a network camera that is gone: while the file SCI_GENTL_SIM_SILENT is there, registers are tried in vain.
void try_in_vain() {
    const char* path = std::getenv("SCI_GENTL_SIM_SILENT");
    if (path != nullptr && std::ifstream(path).good()) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        throw Error(gentl::GC_ERR_IO, "the camera does not answer");
    }
}

void read_port(Module& module, uint64_t address, void* buffer, size_t size) {
    try_in_vain();
    if (address < FeatureMap::kXmlAddress) {
        return module.read_port(address, buffer, size);
    }
    const std::string& xml = module.xml();
    const uint64_t offset = address - FeatureMap::kXmlAddress;
    if (offset > xml.size() || size > xml.size() - offset) {
        throw Error(gentl::GC_ERR_INVALID_ADDRESS, "beyond the end of the description");
    }
    std::memcpy(buffer, xml.data() + offset, size);
}

}  // namespace

GC_API GCGetPortInfo(Handle port, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] { resolve<Module>(port)->port_info(command, Answer(type, buffer, size)); });
}

GC_API GCGetPortURL(Handle port, char* url, size_t* size) {
    return call([&] { Answer(nullptr, url, size).text(resolve<Module>(port)->url()); });
}

GC_API GCGetNumPortURLs(Handle port, uint32_t* number) {
    return call([&] {
        require(number, "piNumURLs");
        *number = resolve<Module>(port)->descriptions();
    });
}

GC_API GCGetPortURLInfo(Handle port, uint32_t index, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] {
        const auto module = resolve<Module>(port);
        if (index >= module->descriptions()) {
            throw Error(gentl::GC_ERR_INVALID_INDEX, "the port has no such description");
        }
        module->url_info(command, Answer(type, buffer, size));
    });
}

GC_API GCReadPort(Handle port, uint64_t address, void* buffer, size_t* size) {
    return call([&] {
        require(buffer, "pBuffer");
        require(size, "piSize");
        read_port(*resolve<Module>(port), address, buffer, *size);
    });
}

GC_API GCWritePort(Handle port, uint64_t address, const void* buffer, size_t* size) {
    return call([&] {
        require(buffer, "pBuffer");
        require(size, "piSize");
        resolve<Module>(port)->write_port(address, buffer, *size);
    });
}

GC_API GCReadPortStacked(Handle port, gentl::PortRegisterStackEntry* entries, size_t* number) {
    return call([&] {
        require(entries, "pEntries");
        require(number, "piNumEntries");
        const auto module = resolve<Module>(port);
        const size_t wanted = *number;
        for (*number = 0; *number < wanted; ++*number) {  // on an error the caller learns how many were done
            const auto& entry = entries[*number];
            read_port(*module, entry.address, entry.buffer, entry.size);
        }
    });
}

GC_API GCWritePortStacked(Handle port, gentl::PortRegisterStackEntry* entries, size_t* number) {
    return call([&] {
        require(entries, "pEntries");
        require(number, "piNumEntries");
        const auto module = resolve<Module>(port);
        const size_t wanted = *number;
        for (*number = 0; *number < wanted; ++*number) {
            const auto& entry = entries[*number];
            module->write_port(entry.address, entry.buffer, entry.size);
        }
    });
}
