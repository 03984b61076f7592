// Server-sent events out of chunks of bytes that end anywhere.

export interface ServerEvent {
  event: string;
  data: string;
}

export class EventParser {
  private readonly decoder = new TextDecoder();
  private text = '';
  private event = '';
  private data: string[] = [];

  /** The events that these bytes complete. */
  push(bytes: Uint8Array): ServerEvent[] {
    this.text += this.decoder.decode(bytes, { stream: true });
    const out: ServerEvent[] = [];
    for (;;) {
      const end = /\r\n|\n|\r/.exec(this.text);
      // A carriage return at the end may be the first half of a line's end.
      if (end === null || (end[0] === '\r' && end.index + 1 === this.text.length)) return out;
      const line = this.text.slice(0, end.index);
      this.text = this.text.slice(end.index + end[0].length);
      if (line !== '') this.take(line);
      else if (this.data.length > 0) out.push(this.complete());
      else this.event = '';
    }
  }

  private take(line: string): void {
    if (line.startsWith(':')) return;
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value.startsWith(' ')) value = value.slice(1);
    if (field === 'data') this.data.push(value);
    else if (field === 'event') this.event = value;
  }

  private complete(): ServerEvent {
    const event = { event: this.event || 'message', data: this.data.join('\n') };
    this.event = '';
    this.data = [];
    return event;
  }
}
