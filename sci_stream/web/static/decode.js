// Decode messages to pictures: JPEG in every browser, H.264 with WebCodecs (a secure context: https or this machine).

const MESSAGE_VERSION = 2;
const PROBE = "avc1.42c028";  // constrained baseline, level 4.0: what the sink node encodes up to 1920×1080

let codec = "jpeg";
/** @type {VideoDecoder | null} */
let decoder = null;
let configured = "";
/** @type {Promise<ImageBitmap>[]} */
let decoded = [];
let failure = null;
/** @type {Promise<any>} */
let work = Promise.resolve();  // one snapshot at a time: they share the decoder

// The codec to request from the sink node.
export const wanted = () => codec;

// Test whether the browser decodes H.264, unless it has failed before.
export async function probe() {
  if (!("VideoDecoder" in window) || sessionStorage.getItem("codec") === "jpeg") return;
  const { supported } = await VideoDecoder.isConfigSupported({ codec: PROBE }).catch(() => ({ supported: false }));
  if (supported) codec = "h264";
}

function giveUpH264() {
  codec = "jpeg";
  sessionStorage.setItem("codec", "jpeg");
}

export function split(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  if (header.v !== MESSAGE_VERSION) throw new Error(`message version ${header.v}; reload the page`);
  let offset = 4 + length;
  const parts = header.sizes.map((size) => { const part = new Uint8Array(buffer, offset, size); offset += size; return part; });
  return { header, parts };
}

// Decode a message to { header, frames, coded, drawn }; coded, and the picture of an analysis, are null if they were not sent.
export async function decode(buffer) {
  const { header, parts } = split(buffer);
  const drawn = header.drawn ? await jpeg(parts.pop()) : null;
  const coded = header.coded ? await jpeg(parts.pop()) : null;
  const frames = header.codec === "jpeg" ? await Promise.all(parts.map(jpeg)) : await (work = work.catch(() => {}).then(() => h264(header, parts)));
  return { header, frames, coded, drawn };
}

const jpeg = (part) => createImageBitmap(new Blob([part], { type: "image/jpeg" }));

async function h264({ codec: name, shown_px: [width, height] }, units) {
  try {
    if (configured !== name || decoder.state !== "configured") configure();
    decoded = [];
    units.forEach((data, i) => decoder.decode(new EncodedVideoChunk({ type: i ? "delta" : "key", timestamp: i, data })));
    await decoder.flush();  // the next snapshot begins with a key frame
    if (failure) throw failure;
    if (decoded.length !== units.length) throw new Error(`${decoded.length} of ${units.length} frames decoded`);
    return await Promise.all(decoded);
  } catch (error) {
    giveUpH264();
    configured = "";
    throw error;
  }
  // An odd row or column was padded. A VideoFrame holds one of the decoder's few buffers: copy, and close it at once.
  function configure() {
    failure = null;
    decoder = new VideoDecoder({
      output: (frame) => decoded.push(createImageBitmap(frame, 0, 0, width, height).finally(() => frame.close())),
      error: (error) => { failure = error; },
    });
    decoder.configure({ codec: name, optimizeForLatency: true });
    configured = name;
  }
}
