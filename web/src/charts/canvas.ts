// What pictures on a canvas have in common: sharp pixels, the page's font and colours, where the pointer is.

export interface Drawing {
  draw: CanvasRenderingContext2D;
  style: CSSStyleDeclaration;
}

/** An empty canvas of this size in CSS pixels, ready for text in the middle of its lines. */
export function startDrawing(canvas: HTMLCanvasElement, width: number, height: number): Drawing {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const draw = canvas.getContext('2d')!;
  draw.scale(scale, scale);
  const style = getComputedStyle(canvas);
  draw.font = `11px ${style.fontFamily}`;
  draw.textBaseline = 'middle';
  return { draw, style };
}

/** Where the pointer is, in CSS pixels from the upper left corner. */
export function pointerAt(event: MouseEvent, canvas: HTMLCanvasElement): [number, number] {
  const area = canvas.getBoundingClientRect();
  return [event.clientX - area.left, event.clientY - area.top];
}
