#include "data_stream.h"

#include <algorithm>

#include "modules.h"
#include "new_buffer_event.h"

namespace sci {

namespace {

constexpr int64_t kOldestFirst = 0, kNewestOnly = 1;

}  // namespace

DataStream::DataStream(std::shared_ptr<Camera> camera, std::weak_ptr<Device> device)
    : Module("TLDataStream", "StreamPort"), device(std::move(device)), camera_(std::move(camera)) {
    add_features();
}

void DataStream::add_features() {
    const auto text = [&](const char* name, const char* tooltip, const std::string& value) {
        features_.text(name, "StreamInformation", tooltip).computed([value] { return value; });
    };
    text("StreamID", "Name of the stream", id());
    text("StreamType", "Kind of link", "Custom");
    const auto count = [&](const char* name, const char* tooltip, std::function<uint64_t()> read) {
        features_.integer(name, "BufferHandlingControl", tooltip).computed([this, read] {
            const std::lock_guard<std::mutex> lock(mutex_);
            return static_cast<int64_t>(read());
        });
    };
    count("StreamAnnouncedBufferCount", "Buffers announced", [this] { return buffers_.size(); });
    count("StreamStartedFrameCount", "Frames that came since the start", [this] { return started_; });
    count("StreamDeliveredFrameCount", "Frames put into buffers", [this] { return delivered_; });
    count("StreamLostFrameCount", "Frames that found no buffer", [this] { return underrun_; });
    count("StreamInputBufferCount", "Buffers waiting for frames", [this] { return input_.size(); });
    count("StreamOutputBufferCount", "Frames waiting for the consumer", [this] { return output_.size(); });
    const auto grabbing = [this] {
        const std::lock_guard<std::mutex> lock(mutex_);
        return grabbing_;
    };
    features_.is_locked = grabbing;
    features_.integer("TLParamsLocked", "BufferHandlingControl", "Whether the stream runs")
        .seen_by(Visibility::Invisible).computed([grabbing] { return int64_t{grabbing()}; });
    features_.enumeration("StreamBufferHandlingMode", "BufferHandlingControl", "Which frames the consumer gets")
        .entry("OldestFirst", kOldestFirst).entry("NewestOnly", kNewestOnly).locked().changed([this] {
            const std::lock_guard<std::mutex> lock(mutex_);
            newest_only_ = features_.get_integer("StreamBufferHandlingMode") == kNewestOnly;
        });
}

std::shared_ptr<Event> DataStream::make_event(int32_t type) {
    if (type == gentl::EVENT_NEW_BUFFER) {
        return std::make_shared<NewBufferEvent>(shared_from_this());
    }
    return Module::make_event(type);
}

void DataStream::close() {
    camera_->set_receiver(nullptr);  // returns when no frame is under way into a buffer
    stop();
    if (const auto owner = device.lock()) {
        owner->forget_stream();
    }
    Module::close();
    const std::lock_guard<std::mutex> lock(mutex_);
    input_.clear();
    output_.clear();
    buffers_.clear();
}

gentl::Handle DataStream::announce(void* memory, size_t size, void* user_pointer) {
    auto buffer = std::make_unique<Buffer>();
    if (memory == nullptr) {
        buffer->owned = std::make_unique<uint8_t[]>(size);
        memory = buffer->owned.get();
    }
    buffer->memory = static_cast<uint8_t*>(memory);
    buffer->size = size;
    buffer->user_pointer = user_pointer;
    buffer->handle = Registry::instance().new_handle();
    const gentl::Handle handle = buffer->handle;
    const std::lock_guard<std::mutex> lock(mutex_);
    buffers_.push_back(std::move(buffer));
    return handle;
}

Buffer& DataStream::find(gentl::Handle handle) {
    for (const auto& buffer : buffers_) {
        if (buffer->handle == handle) {
            return *buffer;
        }
    }
    throw Error(gentl::GC_ERR_INVALID_HANDLE, "the buffer is not announced to this stream");
}

void DataStream::require_buffer(gentl::Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    find(handle);
}

void DataStream::drop_from_queues(Buffer& buffer) {
    input_.erase(std::remove(input_.begin(), input_.end(), &buffer), input_.end());
    output_.erase(std::remove(output_.begin(), output_.end(), &buffer), output_.end());
}

void DataStream::revoke(gentl::Handle handle, void** memory, void** user_pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Buffer& buffer = find(handle);
    if (buffer.state == Buffer::State::Acquiring) {
        throw Error(gentl::GC_ERR_BUSY, "the buffer is being filled: stop the stream first");
    }
    drop_from_queues(buffer);
    if (memory != nullptr) {
        *memory = buffer.owned ? nullptr : buffer.memory;
    }
    if (user_pointer != nullptr) {
        *user_pointer = buffer.user_pointer;
    }
    buffers_.erase(std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& b) { return b.get() == &buffer; }));
}

void DataStream::queue(gentl::Handle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Buffer& buffer = find(handle);
    if (buffer.state != Buffer::State::Unqueued) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "the buffer is queued, or its frame was not taken yet");
    }
    buffer.state = Buffer::State::Queued;
    buffer.has_data = false;
    input_.push_back(&buffer);
}

void DataStream::flush(int32_t operation) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto empty = [](std::deque<Buffer*>& pool) {
        for (Buffer* buffer : pool) {
            buffer->state = Buffer::State::Unqueued;
            buffer->has_data = false;
        }
        pool.clear();
    };
    switch (operation) {
        case gentl::ACQ_QUEUE_INPUT_TO_OUTPUT:
            for (Buffer* buffer : input_) {
                buffer->state = Buffer::State::Delivered;
                output_.push_back(buffer);
            }
            input_.clear();
            changed_.notify_all();
            break;
        case gentl::ACQ_QUEUE_OUTPUT_DISCARD:
            empty(output_);
            break;
        case gentl::ACQ_QUEUE_ALL_DISCARD:
            empty(input_);
            empty(output_);
            break;
        case gentl::ACQ_QUEUE_ALL_TO_INPUT:
            empty(output_);
            [[fallthrough]];
        case gentl::ACQ_QUEUE_UNQUEUED_TO_INPUT:
            for (const auto& buffer : buffers_) {
                if (buffer->state == Buffer::State::Unqueued) {
                    buffer->state = Buffer::State::Queued;
                    buffer->has_data = false;
                    input_.push_back(buffer.get());
                }
            }
            break;
        default:
            throw Error(gentl::GC_ERR_INVALID_PARAMETER, format("there is no queue operation %d", operation));
    }
}

gentl::Handle DataStream::buffer_at(uint32_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index >= buffers_.size()) {
        throw Error(gentl::GC_ERR_INVALID_INDEX, format("%zu buffers are announced", buffers_.size()));
    }
    return buffers_[index]->handle;
}

void DataStream::start(uint64_t frames) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (grabbing_) {
        throw Error(gentl::GC_ERR_RESOURCE_IN_USE, "the stream is started");
    }
    started_ = delivered_ = underrun_ = 0;
    remaining_ = frames;
    grabbing_ = true;
}

void DataStream::stop() {
    std::unique_lock<std::mutex> lock(mutex_);
    grabbing_ = false;
    // A frame that is being written is finished: afterwards the consumer may free the memory.
    changed_.wait(lock, [&] {
        return std::none_of(buffers_.begin(), buffers_.end(),
                            [](const auto& buffer) { return buffer->state == Buffer::State::Acquiring; });
    });
}

void DataStream::receive(const Shot& shot) {
    Buffer* buffer = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!grabbing_ || remaining_ == 0) {
            return;
        }
        ++started_;
        --remaining_;
        if (input_.empty()) {
            ++underrun_;
            return;
        }
        buffer = input_.front();
        input_.pop_front();
        buffer->state = Buffer::State::Acquiring;
    }
    const size_t filled = render(shot, buffer->memory, buffer->size);  // the long part, without the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    buffer->filled = filled;
    buffer->shot = shot;
    buffer->shot.incomplete = filled < shot.payload_bytes();
    buffer->shot.file.reset();
    buffer->has_data = true;
    buffer->state = Buffer::State::Delivered;
    if (newest_only_) {
        for (Buffer* older : output_) {
            older->state = Buffer::State::Queued;
            older->has_data = false;
            input_.push_back(older);
        }
        output_.clear();
    }
    output_.push_back(buffer);
    ++delivered_;
    changed_.notify_all();
}

void DataStream::camera_lost(bool silent) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        lost_ = !silent;
        changed_.notify_all();
    }
    if (!silent) {
        const std::string text = "camera " + camera_->serial() + " was unplugged";
        raise_error(gentl::GC_ERR_IO, text);
        if (const auto owner = device.lock()) {
            owner->raise_error(gentl::GC_ERR_IO, text);
        }
    }
}

gentl::EventNewBufferData DataStream::wait_for_buffer(uint64_t timeout_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [&] { return killed_ || lost_ || !output_.empty(); };
    if (!wait_for(changed_, lock, timeout_ms, ready)) {
        throw Error(gentl::GC_ERR_TIMEOUT, "no frame came within the time");
    }
    if (killed_) {
        killed_ = false;
        throw Error(gentl::GC_ERR_ABORT, "the wait was ended by EventKill");
    }
    if (output_.empty()) {  // what came before the cable was pulled is delivered first
        throw Error(gentl::GC_ERR_IO, "camera " + camera_->serial() + " was unplugged");
    }
    Buffer* buffer = output_.front();
    output_.pop_front();
    buffer->state = Buffer::State::Unqueued;
    return {buffer->handle, buffer->user_pointer};
}

void DataStream::kill_wait() {
    const std::lock_guard<std::mutex> lock(mutex_);
    killed_ = true;
    changed_.notify_all();
}

size_t DataStream::awaiting_delivery() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return output_.size();
}

uint64_t DataStream::delivered() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return delivered_;
}

}  // namespace sci
