// The event by which filled buffers are delivered.
#pragma once

#include "data_stream.h"

namespace sci {

/// Its queue is the stream's output pool.
class NewBufferEvent : public Event {
public:
    explicit NewBufferEvent(const std::shared_ptr<DataStream>& stream)
        : Event(gentl::EVENT_NEW_BUFFER), stream_(stream) {}

    void get(void* buffer, size_t* size, uint64_t timeout_ms) override {
        if (*size < sizeof(gentl::EventNewBufferData)) {
            throw Error(gentl::GC_ERR_BUFFER_TOO_SMALL, "a new buffer event takes two pointers");
        }
        const gentl::EventNewBufferData data = stream()->wait_for_buffer(timeout_ms);
        std::memcpy(buffer, &data, sizeof data);
        *size = sizeof data;
    }

    void info(int32_t command, Answer answer) override {
        switch (command) {
            case gentl::EVENT_EVENT_TYPE: return answer.int32(type);
            case gentl::EVENT_NUM_IN_QUEUE: return answer.size(stream()->awaiting_delivery());
            case gentl::EVENT_NUM_FIRED: return answer.uint64(stream()->delivered());
            case gentl::EVENT_SIZE_MAX: return answer.size(sizeof(gentl::EventNewBufferData));
            case gentl::EVENT_INFO_DATA_SIZE_MAX: return answer.size(sizeof(gentl::EventNewBufferData));
            default: unknown_command("EventGetInfo", command);
        }
    }

    void data_info(const void* data, size_t size, int32_t command, Answer answer) override {
        gentl::EventNewBufferData event;
        if (size < sizeof event) {
            throw Error(gentl::GC_ERR_INVALID_PARAMETER, "this is not the data of a new buffer event");
        }
        std::memcpy(&event, data, sizeof event);
        switch (command) {
            case gentl::EVENT_DATA_ID: return answer.pointer(event.buffer);
            case gentl::EVENT_DATA_VALUE: return answer.pointer(event.user_pointer);
            default: unknown_command("EventGetDataInfo", command);
        }
    }

    void flush() override { stream()->flush(gentl::ACQ_QUEUE_OUTPUT_DISCARD); }
    void kill() override {
        if (const auto alive = stream_.lock()) {
            alive->kill_wait();
        }
    }

private:
    std::shared_ptr<DataStream> stream() const {
        const auto alive = stream_.lock();
        if (!alive) {
            throw Error(gentl::GC_ERR_INVALID_HANDLE, "the data stream is closed");
        }
        return alive;
    }

    const std::weak_ptr<DataStream> stream_;
};

}  // namespace sci
