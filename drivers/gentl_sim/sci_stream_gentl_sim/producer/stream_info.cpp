// What the data stream shows about itself and its buffers.
#include <algorithm>

#include "data_stream.h"

namespace sci {

void DataStream::info(int32_t command, Answer answer) {
    const size_t payload = camera_->payload_bytes();  // before the lock: the camera's comes first
    const std::lock_guard<std::mutex> lock(mutex_);
    switch (command) {
        case gentl::STREAM_INFO_ID: return answer.text(id());
        case gentl::STREAM_INFO_NUM_DELIVERED: return answer.uint64(delivered_);
        case gentl::STREAM_INFO_NUM_UNDERRUN: return answer.uint64(underrun_);
        case gentl::STREAM_INFO_NUM_ANNOUNCED: return answer.size(buffers_.size());
        case gentl::STREAM_INFO_NUM_QUEUED: return answer.size(input_.size());
        case gentl::STREAM_INFO_NUM_AWAIT_DELIVERY: return answer.size(output_.size());
        case gentl::STREAM_INFO_NUM_STARTED: return answer.uint64(started_);
        case gentl::STREAM_INFO_PAYLOAD_SIZE: return answer.size(payload);
        case gentl::STREAM_INFO_IS_GRABBING: return answer.boolean(grabbing_);
        case gentl::STREAM_INFO_DEFINES_PAYLOADSIZE: return answer.boolean(false);
        case gentl::STREAM_INFO_TLTYPE: return answer.text("Custom");
        case gentl::STREAM_INFO_NUM_CHUNKS_MAX: return answer.size(kChunks);
        case gentl::STREAM_INFO_BUF_ANNOUNCE_MIN: return answer.size(1);
        case gentl::STREAM_INFO_BUF_ALIGNMENT: return answer.size(1);
        default: unknown_command("DSGetInfo", command);
    }
}

void DataStream::buffer_info(gentl::Handle handle, int32_t command, Answer answer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Buffer& buffer = find(handle);
    const Shot& shot = buffer.shot;
    switch (command) {  // what is true of any buffer
        case gentl::BUFFER_INFO_BASE: return answer.pointer(buffer.memory);
        case gentl::BUFFER_INFO_SIZE: return answer.size(buffer.size);
        case gentl::BUFFER_INFO_USER_PTR: return answer.pointer(buffer.user_pointer);
        case gentl::BUFFER_INFO_NEW_DATA: return answer.boolean(buffer.has_data);
        case gentl::BUFFER_INFO_IS_QUEUED:
            return answer.boolean(buffer.state == Buffer::State::Queued || buffer.state == Buffer::State::Acquiring);
        case gentl::BUFFER_INFO_IS_ACQUIRING: return answer.boolean(buffer.state == Buffer::State::Acquiring);
        case gentl::BUFFER_INFO_TLTYPE: return answer.text("Custom");
        case gentl::BUFFER_INFO_IS_COMPOSITE: return answer.boolean(false);
        default: break;
    }
    if (!buffer.has_data) {
        throw Error(gentl::GC_ERR_NO_DATA, "there is no frame in the buffer");
    }
    const size_t image = shot.image_bytes();
    switch (command) {  // what is true of the frame in it
        case gentl::BUFFER_INFO_TIMESTAMP: return answer.uint64(shot.timestamp_ns);
        case gentl::BUFFER_INFO_TIMESTAMP_NS: return answer.uint64(shot.timestamp_ns);
        case gentl::BUFFER_INFO_IS_INCOMPLETE: return answer.boolean(shot.incomplete);
        case gentl::BUFFER_INFO_SIZE_FILLED: return answer.size(buffer.filled);
        case gentl::BUFFER_INFO_DATA_SIZE: return answer.size(buffer.filled);
        case gentl::BUFFER_INFO_WIDTH: return answer.size(shot.width);
        case gentl::BUFFER_INFO_HEIGHT: return answer.size(shot.height);
        case gentl::BUFFER_INFO_DELIVERED_IMAGEHEIGHT:
            return answer.size(std::min(buffer.filled, image) / shot.format->line_bytes(shot.width));
        case gentl::BUFFER_INFO_XOFFSET: return answer.size(shot.x);
        case gentl::BUFFER_INFO_YOFFSET: return answer.size(shot.y);
        case gentl::BUFFER_INFO_XPADDING: return answer.size(0);
        case gentl::BUFFER_INFO_YPADDING: return answer.size(0);
        case gentl::BUFFER_INFO_FRAMEID: return answer.uint64(shot.id);
        case gentl::BUFFER_INFO_IMAGEPRESENT: return answer.boolean(true);
        case gentl::BUFFER_INFO_IMAGEOFFSET: return answer.size(0);
        case gentl::BUFFER_INFO_PAYLOADTYPE: return answer.size(gentl::PAYLOAD_TYPE_IMAGE);
        case gentl::BUFFER_INFO_PIXELFORMAT: return answer.uint64(shot.format->code);
        case gentl::BUFFER_INFO_PIXELFORMAT_NAMESPACE: return answer.uint64(gentl::PIXELFORMAT_NAMESPACE_PFNC_32BIT);
        case gentl::BUFFER_INFO_PIXEL_ENDIANNESS: return answer.int32(gentl::PIXELENDIANNESS_LITTLE);
        case gentl::BUFFER_INFO_DELIVERED_CHUNKPAYLOADSIZE:
            return answer.size(buffer.filled > image ? buffer.filled - image : 0);
        case gentl::BUFFER_INFO_CHUNKLAYOUTID:
            throw Error(gentl::GC_ERR_NOT_AVAILABLE, "chunk layouts have no ids on this link");
        case gentl::BUFFER_INFO_FILENAME: throw Error(gentl::GC_ERR_NOT_AVAILABLE, "the payload is no file");
        case gentl::BUFFER_INFO_DATA_LARGER_THAN_BUFFER: return answer.boolean(shot.payload_bytes() > buffer.size);
        case gentl::BUFFER_INFO_CONTAINS_CHUNKDATA: return answer.boolean(shot.chunks && !shot.incomplete);
        default: unknown_command("DSGetBufferInfo", command);
    }
}

size_t DataStream::buffer_chunks(gentl::Handle handle, gentl::SingleChunkData* chunks, size_t room) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Buffer& buffer = find(handle);
    if (!buffer.has_data || !buffer.shot.chunks || buffer.shot.incomplete) {
        throw Error(gentl::GC_ERR_NO_DATA, "there are no chunks in the buffer");
    }
    gentl::SingleChunkData found[kChunks];
    size_t count = 0, offset = buffer.shot.image_bytes();
    for (int i = 0; i < kChunks; ++i) {
        const auto chunk = static_cast<Chunk>(i);
        const size_t length = chunk == Chunk::Image ? offset : buffer.shot.chunk_bytes(chunk);
        if (length != 0) {
            const size_t at = chunk == Chunk::Image ? 0 : offset;
            found[count++] = {kFirstChunkId + static_cast<uint32_t>(i), static_cast<ptrdiff_t>(at), length};
            offset += chunk == Chunk::Image ? 0 : length;
        }
    }
    if (chunks != nullptr) {
        if (room < count) {
            throw Error(gentl::GC_ERR_BUFFER_TOO_SMALL, format("the buffer has %zu chunks", count));
        }
        std::copy(found, found + count, chunks);
    }
    return count;
}

}  // namespace sci
