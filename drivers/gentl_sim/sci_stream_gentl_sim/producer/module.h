// What every object behind a GenTL handle has: a registry that knows stale handles, a port, events.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "answer.h"
#include "features.h"

namespace sci {

/// Anything that a handle stands for.
class Object {
public:
    virtual ~Object() = default;
    /// Let go of everything below; the handle is stale afterwards.
    virtual void close();
    gentl::Handle handle = nullptr;
};

/// Handles are numbers that are never given out twice, so that a stale one is recognised rather than followed.
class Registry {
public:
    static Registry& instance();
    void add(const std::shared_ptr<Object>& object);
    void remove(gentl::Handle handle);
    std::shared_ptr<Object> find(gentl::Handle handle);
    gentl::Handle new_handle();

private:
    std::mutex mutex_;
    uintptr_t last_ = 0x1000;
    std::map<gentl::Handle, std::shared_ptr<Object>> objects_;
};

/// The object behind a handle. It lives as long as the caller holds it, even if it is closed meanwhile.
template <class T>
std::shared_ptr<T> resolve(gentl::Handle handle) {
    auto object = std::dynamic_pointer_cast<T>(Registry::instance().find(handle));
    if (!object) {
        throw Error(gentl::GC_ERR_INVALID_HANDLE, "the handle is not one of an open module of that kind");
    }
    return object;
}

/// Events of one type of one module, waited for with EventGetData.
class Event : public Object {
public:
    explicit Event(gentl::EventType type) : type(type) {}
    virtual void get(void* buffer, size_t* size, uint64_t timeout_ms) = 0;
    virtual void info(int32_t command, Answer answer) = 0;
    virtual void data_info(const void* data, size_t size, int32_t command, Answer answer) = 0;
    virtual void flush() = 0;
    /// Make one EventGetData, running or next, return GC_ERR_ABORT.
    virtual void kill() = 0;
    const gentl::EventType type;
};

/// What the module has to say about itself when something goes wrong: a code and a text.
class ErrorEvent : public Event {
public:
    ErrorEvent() : Event(gentl::EVENT_ERROR) {}
    void push(int32_t code, const std::string& text);
    void get(void* buffer, size_t* size, uint64_t timeout_ms) override;
    void info(int32_t command, Answer answer) override;
    void data_info(const void* data, size_t size, int32_t command, Answer answer) override;
    void flush() override;
    void kill() override;

private:
    struct Record {
        int32_t code;
        char text[252];
    };
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Record> queue_;
    uint64_t fired_ = 0;
    bool killed_ = false;
};

/// A module of the producer, or the remote device: it has a port with a description, and events.
class Module : public Object {
public:
    Module(const char* kind, const char* port_name) : kind(kind), port_name(port_name) {}
    void close() override;

    virtual std::string id() const = 0;
    virtual const std::string& xml();
    virtual void read_port(uint64_t address, void* buffer, size_t size);
    virtual void write_port(uint64_t address, const void* buffer, size_t size);

    void port_info(int32_t command, Answer answer);
    void url_info(int32_t command, Answer answer);
    std::string url();
    /// One, but none of the data stream if SCI_GENTL_SIM_BARE_STREAM is set: some makers' producers have none.
    uint32_t descriptions() const;

    std::shared_ptr<Event> register_event(int32_t type);
    void unregister_event(int32_t type);
    void raise_error(int32_t code, const std::string& text);

    const char* const kind;       ///< As PORT_INFO_MODULE gives it.
    const char* const port_name;  ///< As the description calls its port.

protected:
    virtual std::shared_ptr<Event> make_event(int32_t type);
    FeatureMap features_;  ///< Of the local port; filled in by the constructor, not changed later.

private:
    std::string file_name() const;

    std::mutex features_mutex_, events_mutex_;
    std::string xml_;
    std::map<int32_t, std::shared_ptr<Event>> events_;
};

/// Wait on a condition as GenTL's timeouts mean it: milliseconds, the greatest number meaning no timeout.
template <class Predicate>
bool wait_for(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, uint64_t timeout_ms,
              Predicate predicate) {
    constexpr uint64_t kLongest = 24ull * 3600 * 1000;  // beyond that, the clock's arithmetic could overflow
    if (timeout_ms > kLongest) {
        condition.wait(lock, predicate);
        return true;
    }
    return condition.wait_for(lock, std::chrono::milliseconds(timeout_ms), predicate);
}

}  // namespace sci
