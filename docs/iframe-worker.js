// The search of a site that is opened from a folder. Browsers start no worker there, so a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.ready = new Promise((resolve) => { frame.addEventListener("load", resolve); });
      window.addEventListener("message", (event) => {
        if (event.source !== this.inner) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        this.onmessage?.(event);
      });
      this.inner.document.open();
      this.inner.document.write(`<script>
        postMessage = parent.postMessage.bind(parent);
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
          const script = document.createElement("script");
          script.src = url;
          script.addEventListener("load", done);
          document.body.append(script);
        })), Promise.resolve());
      <\/script><body><script src="${url}"><\/script>`);
      this.inner.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
