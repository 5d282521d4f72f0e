// Exported functions: data stream and events.
#include "exports.h"

using namespace sci;
using gentl::Handle;

GC_API DSClose(Handle stream) {
    return call([&] { resolve<DataStream>(stream)->close(); });
}

GC_API DSGetInfo(Handle stream, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] { resolve<DataStream>(stream)->info(command, Answer(type, buffer, size)); });
}

GC_API DSGetParentDev(Handle stream, Handle* device) {
    return call([&] {
        const auto owner = resolve<DataStream>(stream)->device.lock();
        put_handle(device, "phDevice", [&] { return owner ? owner->handle : nullptr; });
    });
}

GC_API DSAnnounceBuffer(Handle stream, void* memory, size_t size, void* user, Handle* buffer) {
    return call([&] {
        const auto module = resolve<DataStream>(stream);
        require(memory, "pBuffer");
        put_handle(buffer, "phBuffer", [&] { return module->announce(memory, size, user); });
    });
}

GC_API DSAllocAndAnnounceBuffer(Handle stream, size_t size, void* user, Handle* buffer) {
    return call([&] {
        const auto module = resolve<DataStream>(stream);
        put_handle(buffer, "phBuffer", [&] { return module->announce(nullptr, size, user); });
    });
}

GC_API DSAnnounceCompositeBuffer(Handle, void**, size_t, void*, Handle*) {
    return call([] { throw Error(gentl::GC_ERR_NOT_IMPLEMENTED, "buffers have one part here"); });
}

GC_API DSRevokeBuffer(Handle stream, Handle buffer, void** memory, void** user) {
    return call([&] { resolve<DataStream>(stream)->revoke(buffer, memory, user); });
}

GC_API DSQueueBuffer(Handle stream, Handle buffer) {
    return call([&] { resolve<DataStream>(stream)->queue(buffer); });
}

GC_API DSFlushQueue(Handle stream, int32_t operation) {
    return call([&] { resolve<DataStream>(stream)->flush(operation); });
}

GC_API DSGetBufferID(Handle stream, uint32_t index, Handle* buffer) {
    return call([&] {
        const auto module = resolve<DataStream>(stream);
        put_handle(buffer, "phBuffer", [&] { return module->buffer_at(index); });
    });
}

GC_API DSStartAcquisition(Handle stream, int32_t, uint64_t frames) {
    return call([&] { resolve<DataStream>(stream)->start(frames); });
}

GC_API DSStopAcquisition(Handle stream, int32_t) {
    return call([&] { resolve<DataStream>(stream)->stop(); });
}

GC_API DSGetBufferInfo(Handle stream, Handle buffer, int32_t command, int32_t* type, void* out, size_t* size) {
    return call([&] { resolve<DataStream>(stream)->buffer_info(buffer, command, Answer(type, out, size)); });
}

GC_API DSGetBufferInfoStacked(Handle stream, Handle buffer, gentl::BufferInfoStackEntry* entries, size_t number) {
    return call([&] {
        const auto module = resolve<DataStream>(stream);
        require(entries, "pInfoStack");
        module->require_buffer(buffer);
        for (size_t i = 0; i < number; ++i) {
            auto& entry = entries[i];
            entry.result = guarded(
                [&] { module->buffer_info(buffer, entry.command, Answer(&entry.type, entry.buffer, &entry.size)); });
        }
    });
}

GC_API DSGetBufferChunkData(Handle stream, Handle buffer, gentl::SingleChunkData* chunks, size_t* number) {
    return call([&] {
        require(number, "piNumChunks");
        *number = resolve<DataStream>(stream)->buffer_chunks(buffer, chunks, *number);
    });
}

// Buffers of several parts, flows and segments are of GenTL 1.5 and later and have no use here: a consumer that asks
// is notified. They must exist all the same, since some consumers call what they looked up without a second look.

GC_API DSGetNumBufferParts(Handle stream, Handle buffer, uint32_t* number) {
    return call([&] {
        resolve<DataStream>(stream)->require_buffer(buffer);
        require(number, "piNumParts");
        *number = 0;
        throw Error(gentl::GC_ERR_NO_DATA, "the buffer is one image, not several parts");
    });
}

GC_API DSGetBufferPartInfo(Handle stream, Handle buffer, uint32_t, int32_t, int32_t*, void*, size_t*) {
    return call([&] {
        resolve<DataStream>(stream)->require_buffer(buffer);
        throw Error(gentl::GC_ERR_NO_DATA, "the buffer is one image, not several parts");
    });
}

GC_API DSGetBufferPartInfoStacked(Handle stream, Handle buffer, void*, size_t) {
    return call([&] {
        resolve<DataStream>(stream)->require_buffer(buffer);
        throw Error(gentl::GC_ERR_NO_DATA, "the buffer is one image, not several parts");
    });
}

GC_API DSGetNumFlows(Handle, uint32_t*) {
    return call([] { throw Error(gentl::GC_ERR_NOT_IMPLEMENTED, "the stream has no flows"); });
}

GC_API DSGetFlowInfo(Handle, uint32_t, int32_t, int32_t*, void*, size_t*) {
    return call([] { throw Error(gentl::GC_ERR_NOT_IMPLEMENTED, "the stream has no flows"); });
}

GC_API DSGetNumBufferSegments(Handle, Handle, uint32_t*) {
    return call([] { throw Error(gentl::GC_ERR_NOT_IMPLEMENTED, "buffers have no segments"); });
}

GC_API DSGetBufferSegmentInfo(Handle, Handle, uint32_t, int32_t, int32_t*, void*, size_t*) {
    return call([] { throw Error(gentl::GC_ERR_NOT_IMPLEMENTED, "buffers have no segments"); });
}

// ---- events ----------------------------------------------------------------------------------------------------

GC_API GCRegisterEvent(Handle source, int32_t type, Handle* event) {
    return call([&] {
        const auto module = resolve<Module>(source);
        put_handle(event, "phEvent", [&] { return module->register_event(type)->handle; });
    });
}

GC_API GCUnregisterEvent(Handle source, int32_t type) {
    return call([&] { resolve<Module>(source)->unregister_event(type); });
}

GC_API EventGetData(Handle event, void* buffer, size_t* size, uint64_t timeout_ms) {
    return call([&] {
        const auto waited = resolve<Event>(event);
        require(buffer, "pBuffer");
        require(size, "piSize");
        waited->get(buffer, size, timeout_ms);
    });
}

GC_API EventGetInfo(Handle event, int32_t command, int32_t* type, void* buffer, size_t* size) {
    return call([&] { resolve<Event>(event)->info(command, Answer(type, buffer, size)); });
}

GC_API EventGetDataInfo(Handle event, const void* data, size_t data_size, int32_t command, int32_t* type, void* out,
                        size_t* size) {
    return call([&] {
        require(data, "pInBuffer");
        resolve<Event>(event)->data_info(data, data_size, command, Answer(type, out, size));
    });
}

GC_API EventFlush(Handle event) {
    return call([&] { resolve<Event>(event)->flush(); });
}

GC_API EventKill(Handle event) {
    return call([&] { resolve<Event>(event)->kill(); });
}
