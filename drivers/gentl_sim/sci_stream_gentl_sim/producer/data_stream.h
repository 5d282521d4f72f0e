// The data stream: the consumer's buffers, and how frames get into them.
#pragma once

#include <set>
#include <vector>

#include "camera.h"
#include "module.h"

namespace sci {

class Device;

/// One announced buffer, and the frame in it.
struct Buffer {
    gentl::Handle handle = nullptr;
    uint8_t* memory = nullptr;
    size_t size = 0;
    void* user_pointer = nullptr;
    std::unique_ptr<uint8_t[]> owned;  ///< Where the producer was asked to allocate.
    enum class State { Unqueued, Queued, Acquiring, Delivered } state = State::Unqueued;
    bool has_data = false;
    size_t filled = 0;
    Shot shot;  ///< What the data is of; without its file, which it need not keep open.
};

class DataStream : public Module, public FrameReceiver, public std::enable_shared_from_this<DataStream> {
public:
    DataStream(std::shared_ptr<Camera> camera, std::weak_ptr<Device> device);
    std::string id() const override { return "Stream0"; }
    void close() override;

    gentl::Handle announce(void* memory, size_t size, void* user_pointer);
    void revoke(gentl::Handle handle, void** memory, void** user_pointer);
    void queue(gentl::Handle handle);
    void flush(int32_t operation);
    gentl::Handle buffer_at(uint32_t index);
    void start(uint64_t frames);
    void stop();

    void info(int32_t command, Answer answer);
    void buffer_info(gentl::Handle handle, int32_t command, Answer answer);
    size_t buffer_chunks(gentl::Handle handle, gentl::SingleChunkData* chunks, size_t room);
    void require_buffer(gentl::Handle handle);

    void receive(const Shot& shot) override;
    void camera_lost(bool silent) override;

    /// The next filled buffer, for the new buffer event.
    gentl::EventNewBufferData wait_for_buffer(uint64_t timeout_ms);
    void kill_wait();
    size_t awaiting_delivery();
    uint64_t delivered();

    const std::weak_ptr<Device> device;

protected:
    std::shared_ptr<Event> make_event(int32_t type) override;

private:
    Buffer& find(gentl::Handle handle);
    void drop_from_queues(Buffer& buffer);
    void add_features();

    const std::shared_ptr<Camera> camera_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    std::deque<Buffer*> input_, output_;
    bool grabbing_ = false, killed_ = false, lost_ = false;
    bool newest_only_ = false;  // frames that were not taken make room for the next
    uint64_t remaining_ = 0;  // frames until the stream stops by itself
    uint64_t started_ = 0, delivered_ = 0, underrun_ = 0;
};

}  // namespace sci
