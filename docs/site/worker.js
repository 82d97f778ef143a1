/* The search runs in a Worker, which browsers do not start from a file. There, a hidden frame takes its place. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      const script = `<script src="${encodeURI(decodeURI(url))}"><\/script>`;
      inner.document.open();
      inner.document.write(
        `<html><body><script>
          postMessage = data => parent.postMessage(data, "*");
          importScripts = (...urls) => urls.reduce((before, each) => before.then(() => new Promise(loaded => {
            const script = document.createElement("script");
            script.src = each;
            script.onload = loaded;
            document.body.append(script);
          })), Promise.resolve());
        <\/script>${script}</body></html>`
      );
      inner.document.close();
      this.ready = new Promise(loaded => inner.addEventListener("load", loaded));
      this.receive = event => {
        if (event.source !== inner) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      window.addEventListener("message", this.receive);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      window.removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };
}
