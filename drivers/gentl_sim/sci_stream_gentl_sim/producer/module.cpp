#include "module.h"

#include <cstdlib>
#include <cstring>

namespace sci {

void Object::close() { Registry::instance().remove(handle); }

Registry& Registry::instance() {
    static Registry& registry = *new Registry;  // never destroyed: threads may outlive main()
    return registry;
}

gentl::Handle Registry::new_handle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return reinterpret_cast<gentl::Handle>(last_ += 16);
}

void Registry::add(const std::shared_ptr<Object>& object) {
    object->handle = new_handle();
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_[object->handle] = object;
}

void Registry::remove(gentl::Handle handle) {
    std::shared_ptr<Object> last;  // dies after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found != objects_.end()) {
        last = found->second;
        objects_.erase(found);
    }
}

std::shared_ptr<Object> Registry::find(gentl::Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
}

void ErrorEvent::push(int32_t code, const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Record record{code, {}};
    std::strncpy(record.text, text.c_str(), sizeof record.text - 1);
    queue_.push_back(record);
    ++fired_;
    changed_.notify_all();
}

void ErrorEvent::get(void* buffer, size_t* size, uint64_t timeout_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (*size < sizeof(Record)) {
        throw Error(gentl::GC_ERR_BUFFER_TOO_SMALL, format("an error event takes %zu bytes", sizeof(Record)));
    }
    if (!wait_for(changed_, lock, timeout_ms, [&] { return killed_ || !queue_.empty(); })) {
        throw Error(gentl::GC_ERR_TIMEOUT, "no error came within the time");
    }
    if (killed_) {
        killed_ = false;
        throw Error(gentl::GC_ERR_ABORT, "the wait was ended by EventKill");
    }
    std::memcpy(buffer, &queue_.front(), sizeof(Record));
    *size = sizeof(Record);
    queue_.pop_front();
}

void ErrorEvent::info(int32_t command, Answer answer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    switch (command) {
        case gentl::EVENT_EVENT_TYPE: return answer.int32(type);
        case gentl::EVENT_NUM_IN_QUEUE: return answer.size(queue_.size());
        case gentl::EVENT_NUM_FIRED: return answer.uint64(fired_);
        case gentl::EVENT_SIZE_MAX: return answer.size(sizeof(Record));
        case gentl::EVENT_INFO_DATA_SIZE_MAX: return answer.size(sizeof(Record::text));
        default: unknown_command("EventGetInfo", command);
    }
}

void ErrorEvent::data_info(const void* data, size_t size, int32_t command, Answer answer) {
    if (size < sizeof(Record)) {
        throw Error(gentl::GC_ERR_INVALID_PARAMETER, "this is not the data of an error event");
    }
    Record record;
    std::memcpy(&record, data, sizeof record);
    record.text[sizeof record.text - 1] = '\0';
    switch (command) {
        case gentl::EVENT_DATA_ID: return answer.int32(record.code);
        case gentl::EVENT_DATA_VALUE: return answer.text(record.text);
        default: unknown_command("EventGetDataInfo", command);
    }
}

void ErrorEvent::flush() {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.clear();
}

void ErrorEvent::kill() {
    const std::lock_guard<std::mutex> lock(mutex_);
    killed_ = true;
    changed_.notify_all();
}

void Module::close() {
    {
        const std::lock_guard<std::mutex> lock(events_mutex_);
        for (const auto& entry : events_) {
            entry.second->kill();
            entry.second->close();
        }
        events_.clear();
    }
    Object::close();
}

const std::string& Module::xml() {
    const std::lock_guard<std::mutex> lock(features_mutex_);
    if (xml_.empty()) {
        xml_ = features_.xml(std::string("SciSim") + kind, port_name);
    }
    return xml_;
}

void Module::read_port(uint64_t address, void* buffer, size_t size) {
    const std::lock_guard<std::mutex> lock(features_mutex_);
    features_.read(address, buffer, size);
}

void Module::write_port(uint64_t address, const void* buffer, size_t size) {
    const std::lock_guard<std::mutex> lock(features_mutex_);
    features_.write(address, buffer, size);
}

std::string Module::file_name() const { return std::string("sci_sim_") + kind + ".xml"; }

std::string Module::url() {
    return format("Local:///%s;%llx;%zx?SchemaVersion=1.1.0", file_name().c_str(),
                  static_cast<unsigned long long>(FeatureMap::kXmlAddress), xml().size());
}

void Module::port_info(int32_t command, Answer answer) {
    switch (command) {
        case gentl::PORT_INFO_ID: return answer.text(id());
        case gentl::PORT_INFO_VENDOR: return answer.text("sci_stream");
        case gentl::PORT_INFO_MODEL: return answer.text("SciSim");
        case gentl::PORT_INFO_TLTYPE: return answer.text("Custom");
        case gentl::PORT_INFO_MODULE: return answer.text(kind);
        case gentl::PORT_INFO_LITTLE_ENDIAN: return answer.boolean(true);
        case gentl::PORT_INFO_BIG_ENDIAN: return answer.boolean(false);
        case gentl::PORT_INFO_ACCESS_READ: return answer.boolean(true);
        case gentl::PORT_INFO_ACCESS_WRITE: return answer.boolean(true);
        case gentl::PORT_INFO_ACCESS_NA: return answer.boolean(false);
        case gentl::PORT_INFO_ACCESS_NI: return answer.boolean(false);
        case gentl::PORT_INFO_VERSION: return answer.text("1.0");
        case gentl::PORT_INFO_PORTNAME: return answer.text(port_name);
        default: unknown_command("GCGetPortInfo", command);
    }
}

void Module::url_info(int32_t command, Answer answer) {
    switch (command) {
        case gentl::URL_INFO_URL: return answer.text(url());
        case gentl::URL_INFO_SCHEMA_VER_MAJOR: return answer.int32(1);
        case gentl::URL_INFO_SCHEMA_VER_MINOR: return answer.int32(1);
        case gentl::URL_INFO_FILE_VER_MAJOR: return answer.int32(1);
        case gentl::URL_INFO_FILE_VER_MINOR: return answer.int32(0);
        case gentl::URL_INFO_FILE_VER_SUBMINOR: return answer.int32(0);
        case gentl::URL_INFO_FILE_SHA1_HASH:
            throw Error(gentl::GC_ERR_NOT_AVAILABLE, "the description has no SHA-1 hash");
        case gentl::URL_INFO_FILE_REGISTER_ADDRESS: return answer.uint64(FeatureMap::kXmlAddress);
        case gentl::URL_INFO_FILE_SIZE: return answer.uint64(xml().size());
        case gentl::URL_INFO_SCHEME: return answer.int32(gentl::URL_SCHEME_LOCAL);
        case gentl::URL_INFO_FILENAME: return answer.text(file_name());
        default: unknown_command("GCGetPortURLInfo", command);
    }
}

uint32_t Module::descriptions() const {
    return std::getenv("SCI_GENTL_SIM_BARE_STREAM") != nullptr && std::string(kind) == "TLDataStream" ? 0 : 1;
}

std::shared_ptr<Event> Module::make_event(int32_t type) {
    if (type != gentl::EVENT_ERROR) {
        throw Error(gentl::GC_ERR_NOT_IMPLEMENTED, format("%s has no events of type %d", kind, type));
    }
    return std::make_shared<ErrorEvent>();
}

std::shared_ptr<Event> Module::register_event(int32_t type) {
    const std::lock_guard<std::mutex> lock(events_mutex_);
    if (events_.find(type) != events_.end()) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "the event is registered: unregister it first");
    }
    const auto event = make_event(type);
    Registry::instance().add(event);
    events_[type] = event;
    return event;
}

void Module::unregister_event(int32_t type) {
    const std::lock_guard<std::mutex> lock(events_mutex_);
    const auto found = events_.find(type);
    if (found == events_.end()) {
        throw Error(gentl::GC_ERR_INVALID_PARAMETER, "no event of that type is registered");
    }
    found->second->kill();
    found->second->close();
    events_.erase(found);
}

void Module::raise_error(int32_t code, const std::string& text) {
    const std::lock_guard<std::mutex> lock(events_mutex_);
    const auto found = events_.find(gentl::EVENT_ERROR);
    if (found != events_.end()) {
        static_cast<ErrorEvent&>(*found->second).push(code, text);
    }
}

}  // namespace sci
