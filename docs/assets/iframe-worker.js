// A Worker for pages that are opened from a file, where browsers refuse one: the script runs in a hidden frame.
// The site's search needs it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.pending = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html><title>worker</title>"
      this.frame.addEventListener("load", () => this.start(url), { once: true })
      document.body.append(this.frame)
    }

    start(url) {
      const scope = this.frame.contentWindow
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      scope.importScripts = (...urls) =>
        urls.reduce((earlier, each) => earlier.then(() => this.load(each)), Promise.resolve())
      this.load(url).then(() => {
        const waiting = this.pending
        this.pending = null
        waiting.forEach((data) => this.postMessage(data))
      })
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        this.frame.contentDocument.body.append(script)
      })
    }

    postMessage(data) {
      if (this.pending) this.pending.push(data)
      else this.frame.contentWindow.dispatchEvent(new this.frame.contentWindow.MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
